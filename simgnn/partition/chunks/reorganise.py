"""Chooses the order of chunks: batches whose chunks share rows, then batches that share rows with the one before."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.hardware.price.transfer_rates import TransferRates
from simgnn.partition.chunks.kernels import add_moved, common_rows, count_rows
from simgnn.partition.chunks.needed_rows import ChunkedGraph, Masks
from simgnn.partition.chunks.orders import CANDIDATES, Candidate
from simgnn.partition.chunks.volumes import PeerRows, transfer_cost
from simgnn.program.sizes import IntArray

FIRST: tuple[Candidate, Candidate] = ("initial", "p2")
SECOND: tuple[Candidate, Candidate] = ("p1", "p1p2")
"""Candidates without and with phase 1; the second of each with phase 2."""


@dataclass(frozen=True)
class OrderCost:
    """What decides between orders, see :class:`Volumes`. ``cost``: seconds of a pass over a layer for each byte of a
    row; None: no rates are known."""

    v_p2p: int
    v_ru: int
    cost: float | None


@dataclass(frozen=True)
class Reorganised:
    """The chosen order, ``order`` int64 [P, C], and what each candidate costs, by name, the initial order first.
    ``transition`` uint64 [V, words], by gid: the batches in which any rank needs each row, in this order."""

    chosen: Candidate
    order: IntArray
    costs: Mapping[Candidate, OrderCost]
    transition: Masks


def reorganise(
    graph: ChunkedGraph, candidates: Sequence[Candidate], rates: TransferRates | None, peer_rows: PeerRows
) -> Reorganised:
    """Choose the cheapest of ``candidates`` by :func:`transfer_cost`, the first of equals in the order of
    :data:`CANDIDATES`. The initial order is always among them, so that no choice costs more.

    Source: HongTu, algorithm 4; ties go to the chunk of lowest number. Keeping the initial order where the published
    greedy choice costs more is our own. ``graph``: chunks in their initial order. ``rates``: None if there is nothing
    to choose. Raises :class:`ConfigError` where rates are missing."""
    names = [name for name in CANDIDATES if name == "initial" or name in candidates]
    if len(names) > 1 and rates is None:
        raise ConfigError(
            "partition.rates: missing: the order of chunks depends on how fast rows move; name a hardware profile "
            "(--hardware, or measure this machine with `simgnn calibrate`), state the rates, or set "
            "partition.candidates = ['initial']"
        )
    if rates is not None and rates.device_to_device_bytes_per_s is None and graph.ranks > 1:
        raise ConfigError(
            f"partition.rates.device_to_device_bytes_per_s: missing, expected a number with {graph.ranks} ranks, which "
            "read rows from each other"
        )
    initial = graph.empty_masks()
    joined = graph.empty_masks() if set(SECOND) & set(names) else None
    same = np.arange(graph.chunks)
    first_phase = np.tile(same, (graph.ranks, 1))
    v_ori = v_dd = 0
    for rank, masks in enumerate(graph.all_needed()):
        own = graph.owned(rank)
        (needed, _), (remote, _) = count_rows(masks, own.start, own.stop).tolist()
        v_ori, v_dd = v_ori + needed, v_dd + remote
        add_moved(masks, same, initial)
        if joined is not None:
            if rank:
                first_phase[rank] = _chunk_of_each_batch(_common(joined, masks, graph.chunks))
            add_moved(masks, np.argsort(first_phase[rank]), joined)
    found: dict[Candidate, tuple[Masks, IntArray, IntArray]] = {}
    costs: dict[Candidate, OrderCost] = {}
    by_first_phase = [(initial, np.tile(same, (graph.ranks, 1)), FIRST), (joined, first_phase, SECOND)]
    for union, first, (plain, moved) in by_first_phase:
        if union is None:
            continue
        shared = _common(union, union, graph.chunks)
        for name, batches in ((plain, same), (moved, _batches_in_order(shared))):
            v_p2p = int(np.trace(shared))
            v_ru = v_p2p - int(shared[batches[:-1], batches[1:]].sum())
            cost = None if rates is None else transfer_cost(v_ori, v_p2p, v_ru, v_dd, rates, peer_rows)
            found[name], costs[name] = (union, batches, first[:, batches]), OrderCost(v_p2p, v_ru, cost)
    ranked = {name: costs[name] for name in names}
    chosen = min(names, key=lambda name: ranked[name].cost or 0.0)
    union, batches, order = found[chosen]
    if not np.array_equal(batches, same):
        transition = graph.empty_masks()
        add_moved(union, np.argsort(batches), transition)
    else:
        transition = union
    return Reorganised(chosen, order, ranked, transition)


def _common(left: Masks, right: Masks, chunks: int) -> IntArray:
    counts = np.zeros((chunks, chunks), dtype=np.int64)
    common_rows(left, right, counts)
    return counts


def _chunk_of_each_batch(common: IntArray) -> IntArray:
    """Phase 1 for one rank: for each batch in turn, the remaining chunk that shares most rows with it. ``common``
    int64 [C, C]: rows that batch j and chunk k share."""
    left = np.ones(len(common), dtype=np.bool_)
    chosen = np.empty(len(common), dtype=np.int64)
    for batch, shared in enumerate(common):
        chosen[batch] = _most(shared, left)
        left[chosen[batch]] = False
    return chosen


def _batches_in_order(common: IntArray) -> IntArray:
    """Phase 2: from batch 0 on, the remaining batch that shares most rows with the one before. ``common`` int64
    [C, C]: rows that two batches share."""
    left = np.ones(len(common), dtype=np.bool_)
    order = np.zeros(len(common), dtype=np.int64)
    left[0] = False
    for place in range(1, len(common)):
        order[place] = _most(common[order[place - 1]], left)
        left[order[place]] = False
    return order


def _most(shared: IntArray, left: NDArray[np.bool_]) -> int:
    """The lowest of the remaining numbers that shares most."""
    return int(np.argmax(np.where(left, shared, -1)))
