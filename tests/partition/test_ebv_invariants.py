"""What every vertex-cut by EBV keeps, on any graph, and what hierarchical EBV is for: fewer connections of hosts."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_graphs import as_sets, dense, graph_of, graphs

from simgnn.graph.generators.generate import generate
from simgnn.graph.generators.recipes import RMat
from simgnn.graph.graph import Graph
from simgnn.graph.load import load_graph
from simgnn.partition.edges import undirected_edges
from simgnn.partition.local.masters import master_sets, replica_sets
from simgnn.partition.partition import Partition, partitioned
from simgnn.partition.partitioners.ebv import Ebv
from simgnn.partition.statistics.count import partition_stats
from simgnn.partition.statistics.partition_stats import Quality, connections, measure

POLICIES = st.builds(
    Ebv,
    gamma=st.sampled_from([0.0, 0.1, 0.9]),
    alpha=st.sampled_from([0.0, 1.0, 3.0]),
    beta=st.sampled_from([0.0, 1.0]),
    edge_order=st.sampled_from(["degree-sum", "input", "random"]),
    master=st.sampled_from(["host-majority", "balanced", "hash", "first"]),
)


@st.composite
def cuts(draw: st.DrawFn) -> tuple[Graph, np.ndarray, Partition]:
    """A graph, the hosts of its ranks and its partition; more ranks than edges, and isolated vertices, included."""
    graph = draw(graphs())
    ranks = draw(st.integers(1, graph.vertices))
    hosts = np.array(draw(st.lists(st.integers(0, 3), min_size=ranks, max_size=ranks)))
    return graph, hosts, partitioned(draw(POLICIES), graph, hosts, draw(st.integers(0, 2)))


@settings(max_examples=100, deadline=None)
@given(cuts())
def test_every_edge_is_on_one_rank_and_every_master_is_a_replica(cut: tuple[Graph, np.ndarray, Partition]) -> None:
    graph, hosts, partition = cut
    low, high = undirected_edges(graph)
    assert partition.edge_part is not None
    assert len(partition.edge_part) == len(low)
    by_rank = np.bincount(partition.edge_part, minlength=len(hosts))
    assert by_rank.sum() == len(low)
    assert len(by_rank) == len(hosts)
    held = as_sets(replica_sets(low, high, partition.edge_part, partition.owner, len(hosts)))
    for vertex, owner in enumerate(partition.owner.tolist()):
        ranks = set(partition.edge_part[(low == vertex) | (high == vertex)].tolist())
        assert owner in (ranks or range(len(hosts)))
        assert held[vertex] == (ranks or {owner})  # an isolated vertex lives on its master's rank alone


@settings(max_examples=100, deadline=None)
@given(cuts())
def test_measures_are_their_formulas(cut: tuple[Graph, np.ndarray, Partition]) -> None:
    graph, hosts, partition = cut
    ranks = len(hosts)
    low, high = undirected_edges(graph)
    assert partition.edge_part is not None
    sets = as_sets(replica_sets(low, high, partition.edge_part, partition.owner, ranks))
    mirrors: Counter[tuple[int, int]] = Counter()
    for vertex, held in enumerate(sets):
        master = int(partition.owner[vertex])
        mirrors.update((rank, master) for rank in held - {master})
    stats = partition_stats(graph, partition, hosts)
    quality = measure(stats)
    rows = np.array([sum(rank in held for held in sets) for rank in range(ranks)])
    assert quality.replication_factor == pytest.approx(rows.sum() / graph.vertices)
    assert quality.vertex_imbalance == pytest.approx(rows.max() * ranks / rows.sum())
    arcs = stats.edges if len(low) else np.ones(ranks)
    assert quality.edge_imbalance == pytest.approx(arcs.max() * ranks / arcs.sum())
    if graph.symmetric:
        np.testing.assert_array_equal(stats.edges, 2 * np.bincount(partition.edge_part, minlength=ranks))
    inner, outer = connections(stats)
    for near, found in ((True, inner), (False, outer)):
        for i in range(ranks):
            peers = [j for j in range(ranks) if j != i and (hosts[j] == hosts[i]) == near]
            assert found[i] == sum(mirrors[i, j] + mirrors[j, i] for j in peers)
    assert (quality.inner_sum, quality.outer_sum) == (inner.sum(), outer.sum())
    assert quality.inner_sum + quality.outer_sum == 2 * (rows.sum() - graph.vertices)
    assert min(quality.replication_factor, quality.vertex_imbalance, quality.edge_imbalance) >= 1
    if ranks == 1:
        assert (quality.replication_factor, quality.copies) == (1, 0)


@settings(max_examples=60, deadline=None)
@given(cuts())
def test_parts_of_the_adjacency_add_up_to_the_normalised_whole(cut: tuple[Graph, np.ndarray, Partition]) -> None:
    """Global degrees, self loops at masters: the arcs that ranks hold sum to what one process would multiply by."""
    graph, hosts, partition = cut
    low, high = undirected_edges(graph)
    adjacency = dense(graph.csr)
    scale = 1 / np.sqrt(adjacency.sum(axis=1) + 1.0)
    whole = (adjacency + np.eye(graph.vertices)) * scale[:, None] * scale
    total = np.zeros_like(whole)
    assert partition.edge_part is not None
    for rank in range(len(hosts)):
        mine = partition.edge_part == rank
        part = np.diag((partition.owner == rank).astype(np.float64))
        for target, source in ((low[mine], high[mine]), (high[mine], low[mine])):
            part[target, source] += adjacency[target, source]
        total += part * scale[:, None] * scale
    assert np.abs(total - whole).max() < 1e-6


def test_isolated_vertices_fill_the_emptiest_ranks() -> None:
    graph = graph_of(np.array([[0, 1], [0, 2], [1, 2]]), 12)
    partition = partitioned(Ebv(), graph, np.zeros(3, dtype=np.int64), seed=0)
    low, high = undirected_edges(graph)
    assert partition.edge_part is not None
    held = replica_sets(low, high, partition.edge_part, partition.owner, 3)
    assert (held[3:] == master_sets(partition.owner, 3)[3:]).all()
    rows = np.bincount([rank for ranks in as_sets(held) for rank in ranks], minlength=3)
    assert rows.max() - rows.min() <= 1


def between_hosts(graph: Graph, gamma: float) -> Quality:
    """Quality on two hosts with four ranks each."""
    hosts = np.arange(8) // 4
    return measure(partition_stats(graph, partitioned(Ebv(gamma=gamma), graph, hosts, seed=0), hosts))


def check_fewer(graph: Graph, fewer: float, imbalance: float = 1.01) -> None:
    plain, hierarchical = (between_hosts(graph, gamma) for gamma in (0.0, 0.1))
    assert hierarchical.outer_sum <= (1 - fewer) * plain.outer_sum
    assert max(plain.edge_imbalance, hierarchical.edge_imbalance) <= imbalance


def test_fewer_connections_of_hosts_on_a_generated_graph() -> None:
    check_fewer(generate(RMat(2**16, 750_000, classes=0, feature_width=0)), 0.15, 1.02)  # small: hubs weigh more


@pytest.mark.slow
def test_fewer_connections_of_hosts_on_three_million_edges() -> None:
    check_fewer(generate(RMat(2**18, 3_000_000, classes=0, feature_width=0)), 0.15)


@pytest.mark.realdata
def test_fewer_connections_of_hosts_on_arxiv(data_dir: Path) -> None:
    check_fewer(load_graph(str(data_dir / "ogbn_arxiv.npz")), 0.12)


@pytest.mark.slow
def test_fewer_connections_of_hosts_on_ten_million_edges() -> None:
    check_fewer(generate(RMat(2**20, 11_000_000, classes=0, feature_width=0)), 0.15)
