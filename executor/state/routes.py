"""Which rows a rank sends and receives on each route: lists of rows from its graph, counts from the program."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from executor.state.context import LocalRoute
from simgnn.errors import BackendError
from simgnn.partition.local.vertex_cut import RankGraph
from simgnn.program.program import Program
from simgnn.program.sizes import Route, reverse_of


def local_routes(program: Program, local: RankGraph, device: torch.device) -> dict[str, LocalRoute]:
    """Return every route of the program. The rank's graph lists the rows of some routes, which also serve the reverse
    direction; rows of other routes are sent in buffer order. Raises :class:`BackendError` if the partition is not the
    one that the program was planned for."""
    result, rank = packed_routes(program, local.rank), local.rank
    for name, lists in local.row_lists.items():
        if name in result:
            planned, ranks = result[name], range(program.ranks)
            sends = tuple(len(lists.leaving.get(peer, ())) for peer in ranks)
            receives = tuple(lists.received.get(peer, 0) for peer in ranks)
            if sends != planned.send or receives != planned.receive:
                raise BackendError(
                    f"rank {rank}: the partition's route '{name}' sends {sends} and receives {receives} rows, the "
                    f"program {planned.send} and {planned.receive}: they belong to different partitions; prepare the "
                    "run again"
                )
            gather = _joined(lists.leaving, device)
            scatter = None if lists.arriving is None else _joined(lists.arriving, device)
            result[name] = replace(planned, gather=gather, scatter=scatter)
        if reverse_of(name) in result:
            result[reverse_of(name)] = result[name].reversed()
    for name, route in program.sizes.routes.items():
        if route.chosen is not None:
            places = _chosen_places(program.sizes.routes[route.part_of], route.chosen, rank, device)
            result[name] = _of_chosen(result[route.part_of], _with_slots(result[name], route, rank), *places)
        elif route.part_of:
            result[name] = _part(result[route.part_of], result[name])
    return result


def packed_routes(program: Program, rank: int) -> dict[str, LocalRoute]:
    """Return routes by their row counts alone, without row lists; routes whose counts differ by step are left out."""
    result: dict[str, LocalRoute] = {}
    for name, route in program.sizes.routes.items():
        if route.rows.ndim > 1:
            continue
        leaves, arrives = route.source == rank, route.target == rank
        send, receive = np.zeros((2, program.ranks), dtype=np.int64)
        send[route.target[leaves]] = route.rows[leaves]
        receive[route.source[arrives]] = route.rows[arrives]
        result[name] = LocalRoute(
            None, None, tuple(send.tolist()), tuple(receive.tolist()), empty=not bool(np.any(route.rows))
        )
    return result


def _part(whole: LocalRoute, part: LocalRoute) -> LocalRoute:
    """Return route ``part``, of some pairs of ranks of ``whole``, with the row lists of ``whole`` for these pairs."""

    def rows_of(rows: torch.Tensor | None, counts: tuple[int, ...], chosen: tuple[int, ...]) -> torch.Tensor | None:
        if rows is None:
            return None
        kept = torch.tensor([bool(count) for count in chosen]).repeat_interleave(torch.tensor(counts))
        return rows[kept.to(rows.device)]

    scatter = rows_of(whole.scatter, whole.receive, part.receive)
    return replace(part, gather=rows_of(whole.gather, whole.send, part.send), scatter=scatter)


def _chosen_places(
    whole: Route, chosen: NDArray[np.bool_], rank: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the places of chosen rows of the route ``whole`` among all rows that a rank sends, and among all that it
    receives, int64 each."""
    found = [np.flatnonzero(chosen[np.repeat(ends == rank, whole.rows)]) for ends in (whole.source, whole.target)]
    sent, received = (torch.from_numpy(places).to(device) for places in found)
    return sent, received


def _of_chosen(whole: LocalRoute, part: LocalRoute, sent: torch.Tensor, received: torch.Tensor) -> LocalRoute:
    """Return route ``part``, of the rows of ``whole`` at these places. Rows that ``whole`` sends or stores in the order
    of a buffer are named by their places in it."""
    gather = sent if whole.gather is None else whole.gather[sent]
    scatter = received if whole.scatter is None else whole.scatter[received]
    return replace(part, gather=gather, scatter=scatter, sent=sent)


def _with_slots(part: LocalRoute, route: Route, rank: int) -> LocalRoute:
    """Return a rank's ``part`` of a route with the slots of its rows, on the host."""
    if route.slots is None:
        return part
    sent, received = (
        torch.from_numpy(route.slots[np.repeat(ends == rank, route.rows)]) for ends in (route.source, route.target)
    )
    return replace(part, sent_slots=sent, received_slots=received)


def _joined(rows: Mapping[int, NDArray[np.int32]], device: torch.device) -> torch.Tensor:
    joined = np.concatenate([np.empty(0, dtype=np.int32), *(rows[peer] for peer in sorted(rows))])
    return torch.from_numpy(joined.astype(np.int64)).to(device)
