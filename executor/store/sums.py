"""Rows that several ranks have for one vertex, summed in an order that does not depend on timing."""

import torch


def sum_by_id(ids: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The different ``ids`` int64 [k], ascending, and for each the sum of its ``rows`` [k, F], added as they come."""
    order = torch.argsort(ids, stable=True)
    different, lengths = torch.unique_consecutive(ids[order], return_counts=True)
    if not len(ids):
        return ids, rows[:0]
    return different, torch.segment_reduce(rows.index_select(0, order), "sum", lengths=lengths, axis=0)
