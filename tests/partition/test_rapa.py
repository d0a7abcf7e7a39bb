"""RAPA drops halo rows until costs are even: its invariants on many random instances, its scores, its memory."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from partition_graphs import check_local_graphs, power_law_graph, random_graph

from simgnn.errors import ConfigError, ShortMemoryError
from simgnn.graph.graph import Graph
from simgnn.hardware.price.device_times import DeviceTimes, device_times
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import load_profile
from simgnn.partition.algorithms.rapa import Costs, Halo, Pruning, Ratios, halos_by_influence, prune
from simgnn.partition.device_fit import SHARES, LayerWidths, PartMemory
from simgnn.partition.local.edge_cut import build_local_graphs
from simgnn.partition.partition import Partition, partitioned
from simgnn.partition.partitioners.metis import Metis
from simgnn.partition.partitioners.random import Random
from simgnn.partition.partitioners.rapa import Rapa
from simgnn.partition.statistics.count import partition_stats
from simgnn.program.sizes import IntArray

INSTANCES = 500
MODERATE = 1e-9


def device(factor: float = 1.0, memory: int = 1 << 40, **times: float) -> DeviceTimes:
    """A GPU that is ``factor`` times slower than one with the paper's times of an RTX 3090, unless ``times`` say."""
    base = {"matmul_s": 0.1383, "spmm_s": 0.1063, "h2d_s": 0.1197, "d2h_s": 0.1213, "copy_s": 0.0014}
    scaled = {name: factor * seconds for name, seconds in base.items()}
    return DeviceTimes(kind="gpu", memory_bytes=memory, **{**scaled, **times})


@dataclass(frozen=True)
class Instance:
    """Costs and halos of P ranks, and the number of removed rows from which on each rank's memory suffices."""

    ratios: Ratios
    alpha: float
    rows: IntArray
    edges: IntArray
    halos: list[Halo]
    fits_from: IntArray
    eps: float

    @classmethod
    def drawn(cls, seed: int) -> "Instance":
        """Seeded costs and halos of 1 to 8 ranks, and memory that binds on some of them; always enough without a
        halo."""
        draw = np.random.default_rng(seed)
        ranks = int(draw.integers(1, 9))
        equal = draw.random() < 0.2
        factors = np.ones(ranks) if equal else draw.choice([1.0, 1.5, 2.5, 7.0], ranks)
        alpha = float(draw.choice([0.0, 0.35, 0.5, 1.0]))
        rows = draw.integers(20, 400, ranks)
        inner = draw.integers(0, 2000, ranks)
        halos = []
        for _ in range(ranks):
            count = int(draw.integers(0, 60))
            hubs = draw.random() < 0.3
            edges = draw.zipf(1.5, count).clip(max=800) if hubs else draw.integers(1, 12, count)
            ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(edges)))
            halos.append(Halo(np.arange(count, dtype=np.int64), ends))
        tight = draw.random(ranks) < 0.3
        fits_from = [draw.integers(0, halo.rows + 1) if t else 0 for t, halo in zip(tight, halos, strict=True)]
        eps = float(draw.choice([1e-4, 0.01, 0.1]))
        of_halos = np.array([halo.edges for halo in halos])
        ratios = Ratios.of([device(factor) for factor in factors])
        return cls(ratios, alpha, rows, inner + of_halos, halos, np.array(fits_from), eps)

    @property
    def ranks(self) -> int:
        return len(self.halos)

    @cached_property
    def costs(self) -> Costs:
        halo_edges = np.array([halo.edges for halo in self.halos], dtype=np.int64)
        return Costs.of(self.ratios, self.alpha, self.rows, self.edges, halo_edges)

    def fits(self, rank: int, count: int) -> bool:
        return bool(count >= self.fits_from[rank])

    def pruned(self, max_passes: int = 100) -> Pruning:
        return prune(self.costs, [halo.removed_edges for halo in self.halos], self.fits, self.eps, max_passes)

    def left(self, found: Pruning) -> "Instance":
        """What is left, in the same order of rows."""
        removed = np.array(found.removed)
        lost = np.array([halo.removed_edges[q] for q, halo in zip(removed, self.halos, strict=True)])
        halos = [
            Halo(halo.vertices[q:], halo.removed_edges[q:] - gone)
            for q, gone, halo in zip(removed, lost, self.halos, strict=True)
        ]
        fits_from = (self.fits_from - removed).clip(min=0)
        return replace(self, edges=self.edges - lost, halos=halos, fits_from=fits_from)

    def check(self, found: Pruning) -> None:
        """Each step and the end are as the specification says (capgnn.md, 13.6)."""
        before, removed = self.costs.before, [0] * self.ranks
        for step in found.steps:
            halo = self.halos[step.rank]
            assert step.costs.max() <= before.max() * (1 + MODERATE), "the largest cost never rises"
            assert step.costs[step.rank] < before[step.rank]
            assert step.forced == (not self.fits(step.rank, removed[step.rank]))
            if not step.forced:
                assert step.costs.std() < before.std(), "a step that nothing forced widened the spread"
            exact = self.costs.before[step.rank] - halo.removed_edges[step.removed] * self.costs.edge[step.rank]
            assert step.costs[step.rank] == exact
            before, removed[step.rank] = step.costs, step.removed
        assert tuple(removed) == found.removed
        for rank, (count, halo) in enumerate(zip(found.removed, self.halos, strict=True)):
            assert 0 <= count <= halo.rows
            assert self.fits(rank, count), "memory is never above budget"
        if self.costs.before.std() < self.eps * self.costs.before.mean() and not self.fits_from.any():
            assert not found.steps, "nothing is removed where costs are even"
        if found.status == "balanced":
            assert found.costs.std() < self.eps * found.costs.mean() or not found.costs.std()
            assert self.left(found).pruned().removed == (0,) * self.ranks, "balanced, yet it goes on"
        if found.status == "no_progress":
            heavy = np.flatnonzero(found.costs > found.costs.mean())
            stuck = [rank for rank in heavy.tolist() if found.removed[rank] < self.halos[rank].rows]
            assert not [rank for rank in stuck if _could_go_on(self, found, rank)]


def test_invariants_hold_on_random_instances() -> None:
    statuses, forced, free = Counter[str](), 0, 0
    for seed in range(INSTANCES):
        instance = Instance.drawn(seed)
        found = instance.pruned()
        statuses[found.status] += 1
        instance.check(found)
        forced += sum(step.forced for step in found.steps)
        free += sum(not step.forced for step in found.steps)
    assert set(statuses) == {"balanced", "no_progress"}
    assert min(statuses.values()) > 50
    assert forced > 50 < free


@pytest.mark.parametrize("cut", ["metis", "random"])
@pytest.mark.parametrize("ranks", range(2, 9))
def test_invariants_hold_on_groups_of_the_paper_s_server(ranks: int, cut: str) -> None:
    """Prefixes of [R9, R9, A40, A40, R6, R6, G6, G6] (capgnn.md, 16), parts of a graph with hubs and of one without."""
    devices = device_times(Machine.place(load_profile("mixed-pcie3-8"), [0] * ranks))
    hosts, least = np.zeros(ranks, np.int64), 0
    for graph in (power_law_graph(1500, 12_000, 2.2), random_graph(1500, 12_000, 3)):
        for alpha, eps in ((0.5, 0.01), (0.35, 0.001), (1.0, 0.05)):
            policy = rapa(*devices, base=cut, assign="identity", alpha=alpha, eps_rel=eps)
            owner = partitioned(policy.starts_from(hosts), graph, hosts, 0).owner
            halos, rows, edges = halos_by_influence(graph.csr, owner, hosts)
            instance = Instance(Ratios.of(devices), alpha, rows, edges, halos, np.zeros(ranks, np.int64), eps)
            found = instance.pruned()
            instance.check(found)
            dropped = divided(graph, policy).dropped
            assert dropped is not None
            assert np.bincount(dropped.rank, minlength=ranks).tolist() == list(found.removed), "the partition is this"
            assert dropped.status == found.status
            least = max(least, len(found.steps))
            # memory for three quarters of the halo rows of the first rank
            fits_from = np.array([(halos[0].rows + 3) // 4, *[0] * (ranks - 1)])
            tight = replace(instance, fits_from=fits_from)
            found = tight.pruned()
            tight.check(found)
            assert found.removed[0] >= fits_from[0] > 0
    assert least > 0, "some costs were uneven"


def _could_go_on(instance: Instance, found: Pruning, rank: int) -> bool:
    """Whether the next row of a rank above the mean would bring it closer to the mean of the others."""
    others = (found.costs.sum() - found.costs[rank]) / (instance.ranks - 1)
    ends = instance.halos[rank].removed_edges
    closer = [
        abs(instance.costs.before[rank] - ends[q] * instance.costs.edge[rank] - others)
        for q in range(found.removed[rank] + 1, instance.halos[rank].rows + 1)
    ]
    return bool(closer and closer[0] < abs(found.costs[rank] - others) * (1 - MODERATE))


def test_the_largest_cost_falls_where_a_row_can_go_and_nothing_stops_it() -> None:
    fell = 0
    for seed in range(INSTANCES // 2):
        instance = Instance.drawn(seed)
        found = instance.pruned()
        worst = int(np.argmax(instance.costs.before))
        if any(step.rank == worst for step in found.steps):
            fell += 1
            assert found.costs.max() < instance.costs.before.max()
    assert fell > 50


def test_passes_are_limited() -> None:
    seed = next(seed for seed in range(INSTANCES) if len(Instance.drawn(seed).pruned().steps) > 8)
    found = Instance.drawn(seed).pruned(max_passes=1)
    assert found.status == "max_passes"
    whole = Instance.drawn(seed).pruned()
    assert 0 < len(found.steps) <= Instance.drawn(seed).ranks < len(whole.steps)
    firsts = [(step.rank, step.removed) for step in whole.steps[: len(found.steps)]]
    assert [(step.rank, step.removed) for step in found.steps] == firsts


def test_even_costs_lose_nothing() -> None:
    ends = [np.arange(11, dtype=np.int64)] * 4
    ratios = Ratios.of([device()] * 4)
    same = np.full(4, 50)
    costs = Costs.of(ratios, 0.5, same, same, np.full(4, 10))
    found = prune(costs, ends, lambda rank, count: True, 0.01, 100)
    assert (found.removed, found.status) == ((0, 0, 0, 0), "balanced")
    nothing = Costs.of(ratios, 1.0, same, 0 * same, 0 * same)
    assert prune(nothing, [np.zeros(1, np.int64)] * 4, lambda rank, count: True, 0.01, 100).status == "balanced"


def test_a_slower_device_costs_more_and_loses_rows() -> None:
    """The times of a profile are times: the direction of decision D4."""
    numbers = (np.full(2, 100), np.full(2, 1000), np.full(2, 400))
    for name in ("matmul_s", "spmm_s", "h2d_s", "d2h_s", "copy_s"):
        slow = device(**{name: 9.0 * getattr(device(), name)})
        costs = Costs.of(Ratios.of([device(), slow]), 0.5, *numbers)
        assert costs.before[1] > costs.before[0], name
        found = prune(costs, [np.arange(401, dtype=np.int64)] * 2, lambda rank, count: True, 0.01, 100)
        assert found.removed[0] == 0 < found.removed[1], name


def test_the_cost_of_one_rank_has_no_communication() -> None:
    ratios = Ratios.of([device(3.0)])
    assert (ratios.spmm[0], ratios.matmul[0], ratios.communication[0]) == (1.0, 1.0, 1.0)
    costs = Costs.of(ratios, 0.35, np.array([7]), np.array([20]), np.array([0]))
    assert costs.before[0] == pytest.approx(0.35 * 20 + 0.65 * 7)


def test_the_paper_s_costs() -> None:
    """Equations 13 and 14 by hand, for an RTX 3090 and a GTX 1660 Ti with the paper's times."""
    fast, slow = device(), device(matmul_s=0.9938, spmm_s=0.3409, h2d_s=0.1238, d2h_s=0.1244, copy_s=0.0057)
    costs = Costs.of(Ratios.of([fast, slow]), 0.5, np.array([10, 10]), np.array([30, 30]), np.array([12, 12]))
    across = (0.1197 / 0.1238 + 0.1213 / 0.1244) / 2 + 0.0014 / 0.0057 / 2
    computing = 0.5 * 30 * 0.1063 / 0.3409 + 0.5 * 10 * 0.1383 / 0.9938
    assert costs.before[0] == pytest.approx(computing + 12 * across)
    assert costs.before[1] == pytest.approx(0.5 * 30 + 0.5 * 10 + 12 * (1 + 0.5))
    assert costs.floor[1] == pytest.approx(0.5 * 18 + 0.5 * 10)
    assert costs.order == (1, 0)


def literal_scores(graph: Graph, owner: NDArray[Any], ranks: int) -> list[dict[int, tuple[float, int]]]:
    """Equation 16 as it reads: influence and local edges of each halo vertex of each rank."""
    csr = graph.csr
    sources = [set(csr.indices[csr.indptr[v] : csr.indptr[v + 1]].tolist()) for v in range(graph.vertices)]
    into, out = [len(each) for each in sources], np.bincount(csr.indices, minlength=graph.vertices)
    halos: list[set[int]] = [
        {u for v in range(graph.vertices) if owner[v] == rank for u in sources[v] if owner[u] != rank}
        for rank in range(ranks)
    ]
    found = []
    for rank, halo in enumerate(halos):
        scores = {}
        for v in halo:
            points_to = [j for j in range(graph.vertices) if owner[j] == rank and v in sources[j]]
            pointed_by = [j for j in sources[v] if owner[j] == rank]
            score = sum(1 / np.sqrt(into[j] * len(points_to)) for j in points_to)
            score += sum(1 / np.sqrt(out[j] * len(pointed_by)) for j in pointed_by)
            scores[v] = (score * sum(v in other for other in halos), len(points_to))
        found.append(scores)
    return found


@pytest.mark.parametrize("symmetric", [True, False])
def test_scores_are_those_of_the_definition(symmetric: bool) -> None:
    graph = random_graph(60, 240, 5, symmetric=symmetric)
    owner = np.random.default_rng(3).integers(0, 3, 60).astype(np.int32)
    halos, rows, edges = halos_by_influence(graph.csr, owner, np.zeros(3, np.int64))
    np.testing.assert_array_equal(rows, np.bincount(owner, minlength=3))
    np.testing.assert_array_equal(edges, np.bincount(owner, graph.csr.degrees(), minlength=3))
    for halo, expected in zip(halos, literal_scores(graph, owner, 3), strict=True):
        assert set(halo.vertices.tolist()) == expected.keys()
        np.testing.assert_array_equal(np.diff(halo.removed_edges), [expected[v][1] for v in halo.vertices.tolist()])
        scores = [expected[v][0] for v in halo.vertices.tolist()]
        assert all(one <= other * (1 + MODERATE) for one, other in pairwise(scores))


def rapa(*devices: DeviceTimes, **options: Any) -> Rapa:
    return Rapa(devices=devices, **options)


def divided(graph: Graph, policy: Rapa, seed: int = 0, hosts: NDArray[np.int64] | None = None) -> Partition:
    places = np.zeros(len(policy.devices or ()), np.int64) if hosts is None else hosts
    return partitioned(policy, graph, places, seed)


def test_inner_edges_never_change_and_only_dropped_ones_vanish() -> None:
    graph = random_graph(200, 900, 2)
    policy = rapa(device(), device(), device(8.0), device(8.0), base="random", assign="identity")
    partition = divided(graph, policy)
    assert partition.dropped is not None
    assert len(partition.dropped.rank)
    owner, csr = partition.owner, graph.csr
    np.testing.assert_array_equal(owner, partitioned(Random(), graph, np.zeros(4, np.int64), 0).owner)
    gone = set(zip(partition.dropped.rank.tolist(), partition.dropped.vertex.tolist(), strict=True))
    kept = {
        (int(u), v)
        for v in range(graph.vertices)
        for u in csr.indices[csr.indptr[v] : csr.indptr[v + 1]]
        if (int(owner[v]), int(u)) not in gone
    }
    found, locals_ = set(), list(build_local_graphs(csr, partition))
    for local in locals_:
        local.csr.check()
        both = np.concatenate((local.owned, local.halo))
        targets = np.repeat(local.owned, local.csr.degrees())
        found |= set(zip(both[local.csr.indices].tolist(), targets.tolist(), strict=True))
        assert not {(local.rank, int(v)) for v in local.halo} & gone
        assert set(local.csr.indices[local.csr.indices >= len(local.owned)].tolist()) == set(
            range(len(local.owned), len(both))
        )
        np.testing.assert_array_equal(local.degree, csr.degrees()[both])
        np.testing.assert_array_equal(local.kept_degree, local.csr.degrees())
        for peer, part in local.receive.items():
            np.testing.assert_array_equal(locals_[peer].owned[locals_[peer].send_rows[local.rank]], local.halo[part])
    assert found == kept
    assert all(
        owner[u] != owner[v]
        for u, v in {(u, v) for v in range(200) for u in csr.indices[csr.indptr[v] : csr.indptr[v + 1]]} - kept
    )
    stats = partition_stats(graph, partition, np.zeros(4, np.int64))
    assert int(stats.edges.sum() + stats.tables["dropped_edges"].sum()) == graph.edges
    assert int(stats.tables["dropped_halo_rows"].sum()) == len(gone)
    np.testing.assert_array_equal(stats.halo_rows(), [len(local.halo) for local in locals_])


def test_without_a_reason_nothing_is_dropped_and_the_partition_is_that_of_its_base() -> None:
    graph = random_graph(150, 500, 1)
    hosts = np.zeros(3, np.int64)
    base = partitioned(Metis(balance=("vertices",)), graph, hosts, 0)
    kept = divided(graph, rapa(device(), device(), device(), eps_rel=1.0, assign="identity"))
    assert kept.dropped is not None
    assert len(kept.dropped.rank) == 0
    assert kept.digest == base.digest
    locals_ = list(build_local_graphs(graph.csr, kept))
    check_local_graphs(graph, kept, locals_)
    assert all(local.kept_degree is None for local in locals_)


def test_who_gets_which_part() -> None:
    graph = random_graph(300, 1500, 4)
    devices = (device(3.0), device(1.0), device(2.0))
    hosts = np.zeros(3, np.int64)
    base = partitioned(Random(), graph, hosts, 0).owner
    edges = np.bincount(base, graph.csr.degrees(), minlength=3).astype(np.int64)
    given_seeds = {tuple(rapa(*devices).placed(edges, hosts, seed).tolist()) for seed in range(20)}
    assert given_seeds == {(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)}
    assert rapa(*devices, seed=5).placed(edges, hosts, 0).tolist() == rapa(*devices).placed(edges, hosts, 5).tolist()
    assert rapa(*devices, assign="identity").placed(edges, hosts, 3).tolist() == [0, 1, 2]
    placed = rapa(*devices, assign="sorted").placed(np.array([5, 9, 7]), hosts, 0)
    assert placed.tolist() == [0, 1, 2]  # the fastest rank 1 gets part 1, rank 2 part 2, rank 0 part 0
    assert rapa(*devices, assign="sorted").placed(np.array([9, 5, 7]), hosts, 0).tolist() == [1, 0, 2]
    two = np.array([0, 0, 1, 1])
    for seed in range(8):
        part_of = rapa(*devices, device()).placed(np.ones(4, np.int64), two, seed)
        assert sorted(part_of[:2].tolist()) == [0, 1]
        assert sorted(part_of[2:].tolist()) == [2, 3]


def test_hosts_are_balanced_each_by_itself() -> None:
    graph = random_graph(240, 1500, 6)
    hosts = np.array([0, 0, 1, 1])
    slow_host = rapa(device(), device(), device(9.0), device(9.0), base="random", assign="identity", eps_rel=0.2)
    partition = divided(graph, slow_host, hosts=hosts)
    assert partition.dropped is not None
    assert not len(partition.dropped.rank), "equal devices of a host are even, however slow they are"


def table(most: float, edge_bytes: float = 0.0, fixed: float = 0.0, least: float = 0.0) -> PartMemory:
    """Memory that falls linearly from ``most`` with all halo rows to ``least`` with none."""
    return PartMemory(
        at_shares=tuple(least + share * (most - least) for share in SHARES), edge_bytes=edge_bytes, fixed_bytes=fixed
    )


def test_memory_is_repaired_on_a_rank_of_low_cost() -> None:
    graph = random_graph(200, 900, 2)
    budget = 3000
    policy = rapa(
        device(memory=budget), device(3.0), base="random", assign="identity", eps_rel=1.0, reserve_bytes=500,
        memory=(table(4000, 1.0, 100, 500), table(1 << 30)),
    )  # fmt: skip
    partition = divided(graph, policy)
    assert partition.dropped is not None
    assert 0 in partition.dropped.rank
    stats = partition_stats(graph, partition, np.zeros(2, np.int64))
    rows, edges = (int(stats.tables[name][0]) for name in ("dropped_halo_rows", "dropped_edges"))
    all_rows = rows + int(stats.halo_rows()[0])
    memory = (policy.memory or ())[0]
    assert memory.without(rows, edges, all_rows) + 500 <= budget
    halos, _, _ = halos_by_influence(graph.csr, partition.owner, np.zeros(2, np.int64))
    fewer = int(halos[0].removed_edges[rows - 1])
    assert memory.without(rows - 1, fewer, all_rows) + 500 > budget, "no row too many"


def test_what_cannot_fit_is_refused_for_every_rank_with_what_would_fit() -> None:
    graph = random_graph(200, 900, 2)
    small = (table(9000, 0, 1000, 8000),) * 2
    policy = rapa(
        device(memory=5000), device(memory=2000), base="random", assign="identity", reserve_bytes=500, memory=small
    )
    with pytest.raises(ShortMemoryError) as refused:
        divided(graph, policy)
    assert refused.value.exit_status == 3
    one, other = refused.value.problems
    # P (X - F) / (Y - F) = 2 * (8500 - 1500) / (5000 - 1500) = 4
    assert "rank 0 needs 8,500 B without halos, budget 5,000 B" in one
    assert "P >= 4" in one
    assert "rank 1 needs 8,500 B" in other
    assert "P >= 28" in other
    bare = rapa(device(memory=1400), device(), base="random", assign="identity", reserve_bytes=500, memory=small)
    with pytest.raises(ShortMemoryError, match=r"rank 0 .* a device with 8,500 B"):
        divided(graph, bare)


def test_one_rank_only_checks_memory() -> None:
    graph = random_graph(50, 100)
    partition = divided(graph, rapa(device()))
    assert partition.dropped is not None
    assert (len(partition.dropped.rank), partition.dropped.status) == (0, "balanced")
    tight = rapa(device(memory=100), memory=(table(2000, 0, 10, 2000),), reserve_bytes=0)
    with pytest.raises(ShortMemoryError, match="rank 0 needs 2,000 B"):
        divided(graph, tight)


def test_costs_that_stay_uneven_are_told_or_refused() -> None:
    graph = random_graph(200, 900, 2)
    devices = device(), device(50.0)
    partition = divided(graph, rapa(*devices, base="random", assign="identity"))
    assert partition.dropped is not None
    assert partition.dropped.status == "no_progress"
    (note,) = partition.dropped.notes
    assert "rank 1" in note
    with pytest.raises(ConfigError, match=r"partition\.strict"):
        divided(graph, rapa(*devices, base="random", assign="identity", strict=True))


def test_alpha_by_the_work_of_the_layers() -> None:
    layers = [LayerWidths(16, 64, 16), LayerWidths(8, 16, 8)]
    found = Rapa(alpha="auto").fitted([device(), device(2.0)], layers)
    slow = device(2.0)
    edge, vertex = 2 * 24 / slow.spmm_flops, 2 * (64 * 16 + 16 * 8) / slow.matmul_flops
    assert found.alpha == pytest.approx(edge / (edge + vertex))
    assert found.devices == (device(), device(2.0))
    assert Rapa(alpha=0.35).fitted([device()], layers).alpha == 0.35


def test_what_is_missing_is_named() -> None:
    graph = random_graph(40, 90)
    hosts = np.zeros(2, np.int64)
    with pytest.raises(ConfigError, match=r"partition\.devices: missing"):
        partitioned(Rapa(), graph, hosts, 0)
    with pytest.raises(ConfigError, match=r"partition\.devices: got 3, expected 2"):
        partitioned(rapa(device(), device(), device()), graph, hosts, 0)
    with pytest.raises(ConfigError, match=r"partition\.alpha"):
        partitioned(rapa(device(), device(), alpha="auto"), graph, hosts, 0)


BAD: list[Callable[[], Any]] = [
    lambda: Rapa(alpha=1.5),
    lambda: Rapa(alpha="some"),
    lambda: Rapa(eps_rel=0),
    lambda: Rapa(max_passes=0),
    lambda: Rapa(reserve_bytes=-1),
    lambda: Rapa(base="ebv"),
    lambda: Rapa(assign="largest"),
    lambda: Rapa(seed=-1),
    lambda: Rapa(devices=[{"kind": "gpu", "matmul_s": 1.0}]),
    lambda: device(spmm_s=0.0),
]


@pytest.mark.parametrize("make", BAD)
def test_bad_options_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        make()
