"""Pulls that are known ahead: every rank tells each server once, in bulk, which rows it will need at which step.

RapidGNN's serve lists (spec rapidgnn 5.3). At run time rows travel alone, and a step that nobody needs remote rows for
is known to all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from executor.handlers.context import GroupHandle, LocalRoute
from executor.handlers.request import member_counts
from executor.handlers.wire import all_to_all, counts_of, row_bytes
from executor.store.places import Places
from executor.store.traffic import IntArray, pair_bytes
from simgnn.errors import BackendError


@dataclass(frozen=True)
class Schedule:
    """``routes``: one a step, from the rows of a host to the ids of a batch. ``payload`` int64 [P]: bytes of ids told
    to each rank; ``control_bytes``: of counts, and of agreeing which steps are empty."""

    routes: tuple[LocalRoute, ...]
    payload: IntArray
    control_bytes: int


def schedule_pulls(steps: Sequence[torch.Tensor], places: Places, group: GroupHandle) -> Schedule:
    """Routes for the ``gids`` int64 [k_i] that this rank pulls at each step. Every rank calls it, with as many steps
    as the others (a rank without a batch gives empty ids).

    Raises :class:`BackendError` where ranks differ in steps, :class:`GraphError` for a gid that is no vertex.
    """
    ranks, count = places.serving.ranks, len(steps)
    none = torch.empty(0, dtype=torch.int64)
    if places.serving.parts == 1:
        for gids in steps:
            places.part_of(gids)  # refused alike with any number of hosts
        nobody = (0,) * ranks
        return Schedule((LocalRoute(none, none, nobody, nobody, True),) * count, pair_bytes(nobody, 0, 0), 0)
    asked = torch.zeros((count, ranks), dtype=torch.int64)
    wanted, servers, scatter = [none], [none], []
    for step, gids in enumerate(steps):
        part = places.part_of(gids)
        remote = (part != places.host).nonzero().view(-1)
        server = places.server_of(part[remote])
        asked[step] = member_counts(server, group)
        scatter.append(remote[torch.argsort(server, stable=True)])
        servers.append(server)
        wanted.append(places.position_of(gids, part)[remote])
    lengths, header = counts_of(torch.full((ranks,), count), group)
    if any(length != count for length in lengths):
        raise BackendError(f"the ranks schedule {lengths} steps; expected as many on all: give empty ids for the rest")
    told = all_to_all(asked.T.contiguous(), [1] * ranks, [1] * ranks, group)
    # stable: what a server is asked for lies step by step, in the order of the ids
    leaving = torch.cat(wanted)[torch.argsort(torch.cat(servers), stable=True)]
    arrived = all_to_all(leaving, asked.sum(0).tolist(), told.sum(1).tolist(), group)
    needed = asked.sum(1)
    dist.all_reduce(needed, dist.ReduceOp.MAX, group=group.process_group)
    header += row_bytes(told) * (ranks - 1) + needed.element_size() * count
    pieces = torch.split(arrived, told.flatten().tolist())
    routes = tuple(
        LocalRoute(
            gather=torch.cat([pieces[rank * count + step] for rank in range(ranks)]),
            scatter=scatter[step],
            send=tuple(told[:, step].tolist()),
            receive=tuple(asked[step].tolist()),
            empty=not int(needed[step]),
        )
        for step in range(count)
    )
    return Schedule(routes, pair_bytes(asked.sum(0).tolist(), row_bytes(leaving), places.rank), header)
