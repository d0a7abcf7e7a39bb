"""Rows sent to the ranks that write them, summed by vertex in an order that does not depend on timing."""

from dataclasses import dataclass

import torch

from executor.handlers.context import GroupHandle
from executor.handlers.request import member_counts
from executor.handlers.wire import all_to_all, counts_of, row_bytes
from executor.store.places import Places
from executor.store.traffic import Traffic, pair_bytes, remote_rows


@dataclass(frozen=True)
class Pushed:
    """At a rank that writes: ``gids`` int64 [n], ascending, each once, and ``sums`` [n, F]; elsewhere both empty."""

    gids: torch.Tensor
    sums: torch.Tensor
    traffic: Traffic


def push_rows(name: str, gids: torch.Tensor, rows: torch.Tensor, places: Places, group: GroupHandle) -> Pushed:
    """Sums of ``rows`` [k, F] by ``gids`` int64 [k] over all ranks. Every rank calls it, with rows or without.

    A sum adds source rank after source rank, and rows of one rank in the order that they have there, so that it is the
    same in every run. Local and remote rows go the same way (DistDGL, spec 5.3). Deviation: they go to the writing rank
    of the host at once, not by way of the rank that serves its rows; the same bytes between hosts, one hop less.
    """
    part = places.part_of(gids)
    writer = places.writer_of(part)
    order = torch.argsort(writer, stable=True)
    ask = member_counts(writer, group)
    given = ask.tolist()
    taken, header = counts_of(ask, group)
    leaving_ids, leaving_rows = gids[order], rows.index_select(0, order)
    arrived_ids = all_to_all(leaving_ids, given, taken, group)
    arrived_rows = all_to_all(leaving_rows, given, taken, group)
    summed, sums = sum_by_id(arrived_ids, arrived_rows)
    payload = {
        f"{name}_push_ids": pair_bytes(given, row_bytes(leaving_ids), places.rank),
        f"{name}_push_rows": pair_bytes(given, row_bytes(leaving_rows), places.rank),
    }
    away = remote_rows(part, places.host, places.serving.parts)
    return Pushed(summed, sums, Traffic(len(gids) - int(away.sum()), away, payload, header))


def sum_by_id(ids: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The different ``ids`` int64 [k], ascending, and for each the sum of its ``rows`` [k, F], added as they come."""
    order = torch.argsort(ids, stable=True)
    different, lengths = torch.unique_consecutive(ids[order], return_counts=True)
    if not len(ids):
        return ids, rows[:0]
    return different, torch.segment_reduce(rows.index_select(0, order), "sum", lengths=lengths, axis=0)
