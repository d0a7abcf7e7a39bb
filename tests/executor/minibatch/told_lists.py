"""What each rank must send at each step, told by the ranks that need it: fetches planned ahead are checked against it.

Every rank tells each server once, in bulk, which rows it will need (RapidGNN's serve lists, spec rapidgnn 5.3).
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from executor.handlers.wire import all_to_all, counts_of, member_counts
from executor.state.context import GroupHandle, LocalRoute
from executor.store.features import FeatureStore, Places


def told_routes(steps: Sequence[torch.Tensor], places: Places, group: GroupHandle) -> list[LocalRoute]:
    """Routes for the ``gids`` int64 [k_i] that this rank pulls at each step, on several hosts. Every rank calls it,
    with as many steps as the others (a rank without a batch gives empty ids)."""
    ranks, count = places.serving.ranks, len(steps)
    none = torch.empty(0, dtype=torch.int64)
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
    lengths, _ = counts_of(torch.full((ranks,), count), group)
    assert set(lengths) == {count}, "ranks differ in steps"
    told = all_to_all(asked.T.contiguous(), [1] * ranks, [1] * ranks, group)
    # stable: what a server is asked for lies step by step, in the order of the ids
    leaving = torch.cat(wanted)[torch.argsort(torch.cat(servers), stable=True)]
    arrived = all_to_all(leaving, asked.sum(0).tolist(), told.sum(1).tolist(), group)
    needed = asked.sum(1)
    dist.all_reduce(needed, dist.ReduceOp.MAX, group=group.process_group)
    pieces = torch.split(arrived, told.flatten().tolist())
    return [
        LocalRoute(
            gather=torch.cat([pieces[rank * count + step] for rank in range(ranks)]),
            scatter=scatter[step],
            send=tuple(told[:, step].tolist()),
            receive=tuple(asked[step].tolist()),
            empty=not int(needed[step]),
        )
        for step in range(count)
    ]


def rows_along(store: FeatureStore, name: str, gids: torch.Tensor, route: LocalRoute) -> torch.Tensor:
    """Rows [k, F] of ``gids``: those of other hosts by one exchange along ``route``, the rest from this one's table."""
    assert route.gather is not None
    assert route.scatter is not None
    table, part = store.table(name), store.places.part_of(gids)
    rows = table.new_zeros((len(gids), table.shape[1]))
    own = (part == store.places.host).nonzero().view(-1)
    rows[own] = table[store.places.position_of(gids, part)[own]]
    if not route.empty:
        rows[route.scatter] = all_to_all(table[route.gather], route.send, route.receive, store.group)
    return rows
