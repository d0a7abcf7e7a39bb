"""RAPA: halo rows removed from slow or full devices, until the costs of all devices are even.

Source: CaPGNN, section 4 (equations 13 to 16, algorithms 2 and 3). Where we deviate: balance is tested before anything
is removed, as removing loses edges; a step ends before it moves a rank's cost further from the mean of the others than
it was, so that every step lowers the spread; memory is repaired on ranks of low cost, too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simgnn.graph.csr import CSR
from simgnn.hardware.price.device_times import DeviceTimes
from simgnn.partition.local.edge_cut_kernels import group_by_owner, halo_of_ranks
from simgnn.program.sizes import IntArray

Floats = NDArray[np.float64]
Status = Literal["balanced", "no_progress", "max_passes"]


@dataclass(frozen=True)
class Halo:
    """The halo rows of a rank in the order in which they are removed, least influence first.

    ``vertices`` int64 [h]; ``removed_edges`` int64 [h + 1]: edges that vanish with the first 0..h of them."""

    vertices: IntArray
    removed_edges: IntArray

    @property
    def rows(self) -> int:
        return len(self.vertices)

    @property
    def edges(self) -> int:
        """Local edges from halo rows."""
        return int(self.removed_edges[-1])


@dataclass(frozen=True)
class Ratios:
    """Times of each device over those of the slowest one, float64 [P], for costs of a rank that shares its work with P
    devices (equations 13 and 14): ``spmm`` a_i, ``matmul`` b_i, ``communication`` c_i."""

    spmm: Floats
    matmul: Floats
    communication: Floats

    @classmethod
    def of(cls, devices: Sequence[DeviceTimes]) -> "Ratios":
        def ratio(times: Sequence[float]) -> Floats:
            return np.asarray(times, dtype=np.float64) / max(times)

        count = len(devices)
        across = ratio([one.h2d_s for one in devices]) + ratio([one.d2h_s for one in devices])
        inside = ratio([one.copy_s for one in devices])
        return cls(
            ratio([one.spmm_s for one in devices]),
            ratio([one.matmul_s for one in devices]),
            across * (1 - 1 / count) + inside / count,
        )

    def speed(self, alpha: float) -> Floats:
        """Return how slow each device is, float64 [P]: the mix of its ratios that weighs computation."""
        return alpha * self.spmm + (1 - alpha) * self.matmul


@dataclass(frozen=True)
class Costs:
    """Costs of ranks, lambda_i, float64 [P]: ``before`` any halo row is removed, what an ``edge`` from the halo costs,
    and the ``floor`` without halo rows. ``order``: ranks, weakest first."""

    before: Floats
    edge: Floats
    floor: Floats
    order: tuple[int, ...]

    @classmethod
    def of(cls, ratios: Ratios, alpha: float, rows: IntArray, edges: IntArray, halo_edges: IntArray) -> "Costs":
        """``rows`` [P]: owned vertices; ``edges`` [P]: local edges, ``halo_edges`` of them from halo rows."""
        edge = alpha * ratios.spmm + ratios.communication
        floor = alpha * (edges - halo_edges) * ratios.spmm + (1 - alpha) * rows * ratios.matmul
        weakest = np.lexsort((np.arange(len(rows)), -ratios.speed(alpha)))
        return cls(floor + halo_edges * edge, edge, floor, tuple(weakest.tolist()))


@dataclass(frozen=True)
class Step:
    """A committed step: ``rank`` now does without its first ``removed`` halo rows. ``forced``: its memory was too small
    before. ``costs`` float64 [P]: of all ranks, after the step."""

    rank: int
    removed: int
    forced: bool
    costs: Floats


@dataclass(frozen=True)
class Pruning:
    """``removed`` [P]: how many halo rows each rank does without; ``costs`` float64 [P]: what that leaves."""

    removed: tuple[int, ...]
    costs: Floats
    status: Status
    steps: tuple[Step, ...]


def prune(
    costs: Costs,
    removed_edges: Sequence[IntArray],
    fits: Callable[[int, int], bool],
    eps_rel: float,
    max_passes: int,
) -> Pruning:
    """Choose how many halo rows each of P ranks does without (algorithms 2 and 3, repaired).

    ``removed_edges[i]`` int64 [h_i + 1]: edges that vanish with the first 0..h_i rows; ``fits(i, q)``: whether rank i
    has memory enough without q of them, which stays true for larger q. Costs are even if their standard deviation is
    below ``eps_rel`` times their mean; equal costs always are."""
    ranks = len(removed_edges)
    now, removed, steps = costs.before.copy(), [0] * ranks, list[Step]()

    def cost(rank: int, count: int) -> float:
        return float(costs.before[rank] - removed_edges[rank][count] * costs.edge[rank])

    def even() -> bool:
        spread = float(now.std())
        return spread < eps_rel * float(now.mean()) or spread == 0.0

    def ended(status: Status) -> Pruning:
        return Pruning(tuple(removed), now, status, tuple(steps))

    if even() and all(fits(rank, 0) for rank in range(ranks)):
        return ended("balanced")
    for _ in range(max_passes):
        done = [False] * ranks
        for rank in costs.order:
            mean, here, least = float(now.mean()), float(now[rank]), removed[rank]
            fitted, heavy = fits(rank, least), here > mean
            if not heavy and fitted:
                done[rank] = True
                continue
            target = (here + mean) / 2 if heavy else inf  # the half-way step
            count = _first(rank, least, len(removed_edges[rank]) - 1, target, cost, fits)
            if heavy:  # else a hub's row could leave the rank below the others by more than it was above them
                others = (float(now.sum()) - here) / (ranks - 1)
                while count > least and abs(cost(rank, count) - others) >= abs(here - others) and fits(rank, count - 1):
                    count -= 1
            if count == least:
                done[rank] = True
                continue
            removed[rank], now[rank] = count, cost(rank, count)
            steps.append(Step(rank, count, not fitted, now.copy()))
        if even():
            return ended("balanced")
        if all(done):
            return ended("no_progress")
    return ended("max_passes")


def _first(
    rank: int,
    least: int,
    most: int,
    target: float,
    cost: Callable[[int, int], float],
    fits: Callable[[int, int], bool],
) -> int:
    """Return the smallest number of rows above ``least`` at which the cost is at most ``target`` and memory suffices;
    ``most``, all rows, if there is none."""
    low, high = least + 1, most
    while low < high:
        middle = (low + high) // 2
        if cost(rank, middle) <= target and fits(rank, middle):
            high = middle
        else:
            low = middle + 1
    return max(high, least)


def halos_by_influence(
    csr: CSR, owner: NDArray[np.int32], hosts: IntArray, inside: bool = False
) -> tuple[list[Halo], IntArray, IntArray]:
    """Return the halo of each rank by influence, and the owned vertices and local edges of each rank, int64 [P].
    ``inside``: without the halo rows that ranks of other hosts own, and without their edges.

    The influence of halo vertex v of rank i (equation 16) is (sum over the vertices j of i that v points to of
    1 / sqrt(in-degree of j * how many they are) + the same over those that point to v, with out-degrees) times the
    number of ranks on the rank's host that hold v as a halo row. Degrees of j are those of the whole graph. Ties are
    broken by id. ``hosts`` int64 [P]: the host of each rank."""
    indptr, indices, ranks = np.asarray(csr.indptr), np.asarray(csr.indices), len(hosts)
    owner = np.asarray(owner)
    grouped, starts = group_by_owner(owner, ranks)
    holder, vertex = halo_of_ranks(csr, owner, ranks)
    if inside:
        near_rows = hosts[owner[vertex]] == hosts[holder]
        holder, vertex = holder[near_rows], vertex[near_rows]
    found = np.split(vertex, np.searchsorted(holder, np.arange(1, ranks)))
    held = {host: np.zeros(csr.rows, dtype=np.int64) for host in np.unique(hosts).tolist()}
    for rank, halo in enumerate(found):
        held[int(hosts[rank])][halo] += 1
    out_degrees = np.bincount(indices, minlength=csr.rows)
    halos, edges = [], np.zeros(ranks, dtype=np.int64)
    lookup = np.empty(csr.rows, dtype=np.int64)
    for rank, halo in enumerate(found):
        members = grouped[starts[rank] : starts[rank + 1]]
        lookup[halo] = np.arange(len(halo))
        near = hosts == hosts[rank] if inside else np.ones(ranks, dtype=np.bool_)
        counts, scores, edges[rank] = _influence(indptr, indices, members, halo, owner, rank, near, lookup, out_degrees)
        order = np.lexsort((halo, scores * held[int(hosts[rank])][halo]))
        ends = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts[order])))
        halos.append(Halo(halo[order], ends))
    return halos, np.diff(starts), edges


@njit(cache=True)
def _influence(indptr, indices, members, halo, owner, rank, near, lookup, out_degrees):  # type: ignore[no-untyped-def]
    """Count the local edges from each vertex of ``halo`` [h], int64 [h], sum its influence, float64 [h], and count all
    local edges: those from owners in ``near`` bool [P]. ``lookup`` [V] is the place of each vertex of ``halo``."""
    counts = np.zeros(len(halo), dtype=np.int64)
    scores = np.zeros(len(halo), dtype=np.float64)
    edges = 0
    for row in range(len(members)):
        begin, end = indptr[members[row]], indptr[members[row] + 1]
        for edge in range(begin, end):
            source = indices[edge]
            if not near[owner[source]]:
                continue
            edges += 1
            if owner[source] != rank:
                counts[lookup[source]] += 1
                scores[lookup[source]] += 1.0 / np.sqrt(float(end - begin))
    for place in range(len(halo)):
        scores[place] /= np.sqrt(float(counts[place]))
        back, total = 0, 0.0
        for edge in range(indptr[halo[place]], indptr[halo[place] + 1]):
            source = indices[edge]
            if owner[source] == rank:
                back += 1
                total += 1.0 / np.sqrt(float(out_degrees[source]))
        if back:
            scores[place] += total / np.sqrt(float(back))
    return counts, scores, edges
