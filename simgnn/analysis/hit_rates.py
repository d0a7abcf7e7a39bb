"""Hit rates of caches of halo rows: of the rows that a policy chooses, and of caches that evict rows, on one trace."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numba import njit

from simgnn.emit.halo_cache.cached_rows import CachesHalo
from simgnn.emit.halo_cache.membership import HaloRows
from simgnn.program.sizes import IntArray

SHARES = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Capacities for which hit rates are shown, as shares of halo rows."""
Evicting = Literal["fifo", "lru"]


@dataclass(frozen=True)
class HitRates:
    """Shares of all halo rows of all ranks that a layer reads from caches in an epoch between two refreshes. ``share``:
    the capacity of each device, of the halo rows of its rank, and of the memory of each host, of the distinct ones of
    its ranks. ``device``, ``host``: of the rows that the policy chooses, by where they lie; ``fifo``, ``lru``: of both
    levels together if rows that are missed replace those that came, or were used, the longest time ago."""

    share: float
    device: float
    host: float
    fifo: float
    lru: float


def hit_rates(policy: CachesHalo, halo: HaloRows, layers: int, shares: Sequence[float] = SHARES) -> list[HitRates]:
    """Compute the hit rates of each capacity. ``layers``: how often an epoch reads all halo rows."""
    found = []
    for share in shares:
        devices, memories = capacities(halo, share)
        cached, shared = policy.chosen(halo, devices, memories)
        evicting = [evicting_hits(halo, devices, memories, layers, kind) for kind in ("fifo", "lru")]
        rows = max(1, len(halo.vertex))
        found.append(HitRates(share, int(cached.sum()) / rows, int((shared & ~cached).sum()) / rows, *evicting))
    return found


def capacities(halo: HaloRows, share: float) -> tuple[IntArray, IntArray]:
    """Return a share of the halo rows of each rank, int64 [P], and of the distinct ones of each host, int64 [hosts]."""
    each = halo.once_a_host(np.ones(len(halo.vertex), np.bool_))
    rows = np.bincount(halo.holder, minlength=len(halo.hosts))
    vertices = np.bincount(halo.host[each], minlength=int(halo.hosts.max()) + 1)
    device, host = (np.floor(share * count).astype(np.int64) for count in (rows, vertices))
    return device, host


def evicting_hits(halo: HaloRows, devices: IntArray, memories: IntArray, layers: int, kind: Evicting) -> float:
    """Return the share of look-ups that hit in the last of two epochs, with caches of ``devices`` [P] rows on ranks and
    ``memories`` [hosts] on hosts that evict rows.

    The trace: in each epoch and layer, ranks ascending, each looks up its halo rows by ascending vertex, one at a time:
    on its device, then in the memory of its host, from which a hit is copied to the device; a miss fills both."""
    if not len(halo.vertex):
        return 0.0
    trace = np.lexsort((halo.vertex, halo.holder))
    hits = _look_up(trace, halo.holder, halo.host, halo.on_host, devices, memories, layers, 2, kind == "lru")
    return float(hits) / (layers * len(trace))


@njit(cache=True)
def _remove(row: Any, cache: Any, after: Any, before: Any, ends: Any) -> None:
    """Take a row out of the list of a cache. ``after``, ``before``: neighbours of rows in their lists, -1 at the ends;
    ``ends`` [caches, 2]: first and last row of each."""
    if before[row] >= 0:
        after[before[row]] = after[row]
    else:
        ends[cache, 0] = after[row]
    if after[row] >= 0:
        before[after[row]] = before[row]
    else:
        ends[cache, 1] = before[row]


@njit(cache=True)
def _append(row: Any, cache: Any, after: Any, before: Any, ends: Any) -> None:
    """Put a row at the end of the list of a cache."""
    before[row], after[row] = ends[cache, 1], -1
    if ends[cache, 1] >= 0:
        after[ends[cache, 1]] = row
    else:
        ends[cache, 0] = row
    ends[cache, 1] = row


@njit(cache=True)
def _insert(row: Any, cache: Any, most: Any, held: Any, sizes: Any, after: Any, before: Any, ends: Any) -> None:
    """Put a row into a cache, which evicts its first row where it is full."""
    if most[cache] == 0:
        return
    if sizes[cache] == most[cache]:
        first = ends[cache, 0]
        _remove(first, cache, after, before, ends)
        held[first] = False
    else:
        sizes[cache] += 1
    held[row] = True
    _append(row, cache, after, before, ends)


@njit(cache=True)
def _look_up(
    trace: Any, holder: Any, host: Any, on_host: Any, devices: Any, memories: Any, layers: Any, epochs: Any, lru: Any
) -> Any:
    """Count the hits of the last epoch."""
    near, far = np.zeros(len(trace), np.bool_), np.zeros(len(trace), np.bool_)
    near_after, near_before = np.full(len(trace), -1), np.full(len(trace), -1)
    far_after, far_before = np.full(len(trace), -1), np.full(len(trace), -1)
    near_ends, far_ends = np.full((len(devices), 2), -1), np.full((len(memories), 2), -1)
    near_sizes, far_sizes = np.zeros(len(devices), np.int64), np.zeros(len(memories), np.int64)
    hits = 0
    for epoch in range(epochs):
        for _ in range(layers):
            for row in trace:
                rank, memory, vertex = holder[row], host[row], on_host[row]
                if near[row]:
                    hits += epoch == epochs - 1
                    if lru:
                        _remove(row, rank, near_after, near_before, near_ends)
                        _append(row, rank, near_after, near_before, near_ends)
                    continue
                if far[vertex]:
                    hits += epoch == epochs - 1
                    if lru:
                        _remove(vertex, memory, far_after, far_before, far_ends)
                        _append(vertex, memory, far_after, far_before, far_ends)
                else:
                    _insert(vertex, memory, memories, far, far_sizes, far_after, far_before, far_ends)
                _insert(row, rank, devices, near, near_sizes, near_after, near_before, near_ends)
    return hits
