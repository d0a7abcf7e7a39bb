"""A program's routes as one rank sees them: row lists from the local graph, counts from the size table."""

import numpy as np
import torch
from numpy.typing import NDArray

from executor.handlers.context import LocalRoute
from simgnn.errors import BackendError
from simgnn.partition.local import LocalGraph
from simgnn.program.program import Program

HALO, REVERSE = "halo", "/reverse"


def local_routes(program: Program, local: LocalGraph, device: torch.device) -> dict[str, LocalRoute]:
    """Every route of the program. Row lists belong to "halo" and its reverse; others travel packed as they are.

    Raises :class:`BackendError` when the partition's halo is not the one that the program was planned for.
    """
    result: dict[str, LocalRoute] = {}
    rank, ranks = local.rank, program.ranks
    for name, route in program.sizes.routes.items():
        rows = route.at(0, 0)
        leaves, arrives = route.source == rank, route.target == rank
        send, receive = np.zeros(ranks, dtype=np.int64), np.zeros(ranks, dtype=np.int64)
        send[route.target[leaves]] = rows[leaves]
        receive[route.source[arrives]] = rows[arrives]
        result[name] = LocalRoute(
            None, None, tuple(send.tolist()), tuple(receive.tolist()), empty=not bool(np.any(route.rows))
        )
    if HALO in result:
        _check(result[HALO], local)
        result[HALO] = _with_rows(result[HALO], local, device)
        if HALO + REVERSE in result:
            result[HALO + REVERSE] = result[HALO].reversed()
    return result


def _with_rows(route: LocalRoute, local: LocalGraph, device: torch.device) -> LocalRoute:
    lists = [local.send_rows[peer] for peer in sorted(local.send_rows)]
    joined: NDArray[np.int32] = np.concatenate(lists) if lists else np.empty(0, dtype=np.int32)
    rows = torch.from_numpy(joined.astype(np.int64)).to(device)
    return LocalRoute(rows, None, route.send, route.receive, route.empty)


def _check(route: LocalRoute, local: LocalGraph) -> None:
    sends = tuple(len(local.send_rows.get(peer, ())) for peer in range(len(route.send)))
    slices = [local.receive.get(peer, slice(0, 0)) for peer in range(len(route.send))]
    receives = tuple(part.stop - part.start for part in slices)
    if sends != route.send or receives != route.receive:
        raise BackendError(
            f"rank {local.rank}: the partition's halo sends {sends} and receives {receives} rows, the program says "
            f"{route.send} and {route.receive}: they belong to different partitions; prepare the run again"
        )
