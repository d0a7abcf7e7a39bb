"""Rows that several ranks have for one vertex, summed in an order that does not depend on timing."""

import torch


def sum_by_id(ids: torch.Tensor, *parts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The different ``ids`` int64 [k], ascending, and for each the sum of its rows, added as they come. ``parts``: the
    k rows, [k1, F], [k2, F]... one behind the other."""
    order = torch.argsort(ids, stable=True)
    different, lengths = torch.unique_consecutive(ids[order], return_counts=True)
    if not len(ids):
        return ids, parts[0][:0]
    place = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order)))
    rows = parts[0].new_empty((len(ids), *parts[0].shape[1:]))
    # put in order part by part: joined first, all would be held twice
    for places, part in zip(torch.split(place, [len(part) for part in parts]), parts, strict=True):
        rows.index_copy_(0, places, part)
    return different, torch.segment_reduce(rows, "sum", lengths=lengths, axis=0)
