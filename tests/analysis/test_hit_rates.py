"""Hit rates: those of caches that evict equal a plain reading of the trace, and none beats the most shared rows."""

from collections import OrderedDict
from itertools import pairwise

import numpy as np
import pytest

from simgnn.analysis.hit_rates import HitRates, capacities, evicting_hits, hit_rates
from simgnn.emit.halo_cache.membership import HaloRows
from simgnn.policies.freshness.refresh_interval import RefreshInterval
from tests.executor.runs import small_graph
from tests.policies.test_refresh_interval import halo_rows


def plain_hits(halo: HaloRows, share: float, layers: int, lru: bool) -> float:
    """The trace of the specification, with one ordered dictionary a cache (capgnn.md, 13.4)."""
    devices, memories = capacities(halo, share)
    near: list[OrderedDict[int, None]] = [OrderedDict() for _ in devices]
    far: list[OrderedDict[int, None]] = [OrderedDict() for _ in memories]

    def look(cache: OrderedDict[int, None], vertex: int) -> bool:
        if vertex in cache and lru:
            cache.move_to_end(vertex)
        return vertex in cache

    def fill(cache: OrderedDict[int, None], vertex: int, most: int) -> None:
        if most:
            if len(cache) == most:
                cache.popitem(last=False)
            cache[vertex] = None

    hits = 0
    for epoch in range(2):
        for _ in range(layers):
            for rank, host in enumerate(halo.hosts.tolist()):
                for vertex in np.sort(halo.vertex[halo.holder == rank]).tolist():
                    found = look(near[rank], vertex)
                    if not found:
                        found = look(far[host], vertex)
                        if not found:
                            fill(far[host], vertex, int(memories[host]))
                        fill(near[rank], vertex, int(devices[rank]))
                    hits += found and epoch == 1
    return hits / (layers * len(halo.vertex))


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("kind", ["fifo", "lru"])
def test_evicting_caches_hit_as_a_plain_reading_of_the_trace_does(kind: str, hosts: int) -> None:
    halo = halo_rows(small_graph(200), 4, hosts)
    for share in (0.0, 0.07, 0.3, 0.8, 1.0):
        devices, memories = capacities(halo, share)
        found = evicting_hits(halo, devices, memories, 2, "lru" if kind == "lru" else "fifo")
        assert found == plain_hits(halo, share, 2, kind == "lru")


def total(rates: HitRates) -> float:
    return rates.device + rates.host


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_the_most_shared_rows_hit_at_least_as_often_as_any_others(ranks: int) -> None:
    for seed in range(5):
        halo = halo_rows(small_graph(150 + 90 * seed, seed=seed), ranks, seed=seed)
        high, low = (hit_rates(RefreshInterval(order=order), halo, 3) for order in ("high", "low"))
        for one, other in zip(high, low, strict=True):
            assert total(one) >= max(total(other), one.fifo, one.lru) - 1e-12
        assert all(total(one) <= total(other) for one, other in pairwise(high))
        assert total(high[-1]) == high[-1].device == 1


def test_ranks_that_would_hit_too_rarely_do_not_hit() -> None:
    halo = halo_rows(small_graph(300), 2)
    plain, bypassing = (hit_rates(RefreshInterval(bypass_below=least), halo, 2) for least in (0.0, 0.3))
    for one, other in zip(plain, bypassing, strict=True):
        # between two ranks all rows are alike, so that both hit about as often
        assert total(other) == (total(one) if one.share >= 0.5 else 0)
        assert (other.fifo, other.lru) == (one.fifo, one.lru)
