"""Replica graphs: each stored edge once, each vertex one master, equal lists of rows at both ends."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_graphs import dense, graph_of, graphs, random_graph

from simgnn.errors import ConfigError
from simgnn.graph.graph import Graph
from simgnn.partition.edges import undirected_edges
from simgnn.partition.local.masters import choose_masters, replica_sets
from simgnn.partition.local.vertex_cut import BY_HOSTS, LEVELS, ReplicaGraph, build_replica_graphs
from simgnn.partition.partition import Partition, partitioned
from simgnn.partition.partitioners.ebv import Ebv
from simgnn.partition.statistics.count import partition_stats
from simgnn.partition.statistics.partition_stats import connections
from simgnn.policy import Reorder


def any_vertex_cut(graph: Graph, ranks: int, seed: int) -> Partition:
    """Every edge on a rank drawn at random; masters are replicas, of vertices without edges any rank."""
    draw = np.random.default_rng(seed)
    low, high = undirected_edges(graph)
    part = draw.integers(0, ranks, len(low)).astype(np.uint8)
    owner = draw.integers(0, ranks, graph.vertices).astype(np.int32)
    ends = np.concatenate((low, high))
    owner[ends] = np.tile(part, 2)  # the last edge of a vertex decides
    return Partition("vertex-cut", ranks, owner, part)


def held(graph: Graph, partition: Partition) -> list[set[int]]:
    """Ranks that hold each vertex, by the definition."""
    low, high = undirected_edges(graph)
    sets = [{int(rank)} for rank in partition.owner]
    assert partition.edge_part is not None
    for one, other, rank in zip(low.tolist(), high.tolist(), partition.edge_part.tolist(), strict=True):
        sets[one].add(rank)
        sets[other].add(rank)
    return sets


def check_replica_graphs(graph: Graph, partition: Partition, replicas: list[ReplicaGraph]) -> None:
    """Compare with the definition, vertex by vertex."""
    sets, owner = held(graph, partition), partition.owner
    whole = np.zeros((graph.vertices, graph.vertices))
    for one in replicas:
        one.csr.check()
        expected = [vertex for vertex in range(graph.vertices) if one.rank in sets[vertex]]
        assert sorted(one.vertices.tolist()) == expected
        np.testing.assert_array_equal(one.degree, graph.csr.degrees()[one.vertices])
        sizes = np.array([len(sets[vertex]) for vertex in one.vertices.tolist()], dtype=np.int64)
        assert (owner[one.vertices[: one.masters]] == one.rank).all()
        assert (sizes[: one.internal] == 1).all()
        assert (sizes[one.internal :] > 1).all()
        mirrors = one.vertices[one.masters :]
        order = np.lexsort((mirrors, owner[mirrors]))
        np.testing.assert_array_equal(order, np.arange(len(mirrors)))
        assert set(one.mirrors) == set(owner[mirrors].tolist())
        for peer, part in one.mirrors.items():
            rows = replicas[peer].mirrored[one.rank]
            assert rows.dtype == np.int32
            assert (owner[one.vertices[part]] == peer).all()
            np.testing.assert_array_equal(replicas[peer].vertices[rows], one.vertices[part])
            assert (np.diff(one.vertices[part]) > 0).all()
        for peer in one.mirrored:
            assert one.rank in replicas[peer].mirrors
        whole[np.ix_(one.vertices, one.vertices)] += dense(one.csr)
    np.testing.assert_array_equal(whole, dense(graph.csr))
    assert sum(one.masters for one in replicas) == graph.vertices


@settings(max_examples=150, deadline=None)
@given(graphs(), st.integers(1, 7), st.integers(0, 5), st.sampled_from(["none", "rcm", "degree"]))
def test_any_graph_is_cut_exactly(graph: Graph, ranks: int, seed: int, reorder: Reorder) -> None:
    partition = any_vertex_cut(graph, ranks, seed)
    check_replica_graphs(graph, partition, list(build_replica_graphs(graph, partition, reorder)))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("ranks", [1, 3, 70])
def test_what_ebv_makes_is_cut_exactly(symmetric: bool, ranks: int) -> None:
    graph = random_graph(150, 700, symmetric=symmetric)
    partition = partitioned(Ebv(), graph, np.arange(ranks) // 4, seed=0)
    check_replica_graphs(graph, partition, list(build_replica_graphs(graph, partition)))


@settings(max_examples=100, deadline=None)
@given(graphs(), st.integers(2, 7), st.integers(1, 3), st.integers(0, 5))
def test_hosts_trade_one_row_a_vertex(graph: Graph, ranks: int, each: int, seed: int) -> None:
    partition, hosts = any_vertex_cut(graph, ranks, seed), np.arange(ranks) // each
    replicas = list(build_replica_graphs(graph, partition, "rcm", hosts))
    if len(np.unique(hosts)) == 1:
        assert all(not one.levels for one in replicas)
        return
    received: dict[str, list[tuple[int, int]]] = {name: [] for name in LEVELS}
    for one in replicas:
        for name, lists in one.levels.items():
            assert lists.arriving is not None
            for peer, rows in lists.arriving.items():
                sent = replicas[peer].levels[name].leaving[one.rank]
                found = one.vertices[rows]
                np.testing.assert_array_equal(replicas[peer].vertices[sent], found)
                assert (np.diff(found) > 0).all()
                assert lists.received[peer] == len(rows)
                assert (hosts[peer] == hosts[one.rank]) == (name == "mirrors/within")
                if name == "mirrors/across":
                    assert (partition.owner[found] == peer).all()
                received[name] += [(one.rank, vertex) for vertex in found.tolist()]
            assert all(one.rank in replicas[peer].levels[name].arriving for peer in lists.leaving)
    sets = held(graph, partition)
    mirrors = [(rank, v) for v, ranks_of in enumerate(sets) for rank in ranks_of - {int(partition.owner[v])}]
    assert sorted(received["mirrors/across"] + received["mirrors/within"]) == sorted(mirrors)
    hosts_of = [{int(hosts[rank]) for rank in ranks_of} for ranks_of in sets]
    assert len(received["mirrors/across"]) == sum(len(found) - 1 for found in hosts_of)
    # who brings a vertex inside a host has it from the master, or is the master
    arrived = set(received["mirrors/across"])
    for one in replicas:
        for rows in one.levels["mirrors/within"].leaving.values():
            for vertex in one.vertices[rows].tolist():
                assert partition.owner[vertex] == one.rank or (one.rank, vertex) in arrived
    stats = partition_stats(graph, partition, hosts)
    for name in LEVELS:
        assert stats.tables[name][:, 2].sum() == len(received[name])
    ends = Counter((int(partition.owner[v]), rank, len(hosts_of[v])) for rank, v in received["mirrors/across"])
    assert stats.tables[BY_HOSTS].tolist() == [[*key, rows] for key, rows in sorted(ends.items())]


def test_masters_lie_in_the_wanted_order() -> None:
    # a path: 0-1-2 on rank 0, 2-3-4 on rank 1
    path = graph_of(np.array([[0, 1], [1, 2], [2, 3], [3, 4]]), 5)
    partition = Partition("vertex-cut", 2, np.array([0, 0, 0, 1, 1], np.int32), np.array([0, 0, 1, 1], np.uint8))
    first, second = build_replica_graphs(path, partition, "none")
    assert first.vertices.tolist() == [0, 1, 2]
    assert (first.masters, first.internal, first.mirrors) == (3, 2, {})
    assert {peer: rows.tolist() for peer, rows in first.mirrored.items()} == {1: [2]}
    assert second.vertices.tolist() == [3, 4, 2]
    assert (second.masters, second.internal) == (2, 2)
    assert second.mirrors == {0: slice(2, 3)}
    by_degree, _ = build_replica_graphs(path, partition, "degree")
    assert by_degree.vertices.tolist() == [1, 0, 2]


@settings(max_examples=60, deadline=None)
@given(graphs(), st.integers(1, 6), st.integers(0, 3))
def test_statistics_are_those_of_the_replica_graphs(graph: Graph, ranks: int, seed: int) -> None:
    partition = any_vertex_cut(graph, ranks, seed)
    hosts = np.arange(ranks) // 2
    stats = partition_stats(graph, partition, hosts, "none")
    replicas = list(build_replica_graphs(graph, partition, "none"))
    matrix = stats.halo.matrix(ranks)
    for one in replicas:
        assert stats.rows[one.rank] == one.masters
        assert stats.edges[one.rank] == one.csr.edges
        assert stats.tables["shared_masters"][one.rank] == one.masters - one.internal
        for peer in range(ranks):
            assert matrix[one.rank, peer] == len(one.mirrored.get(peer, ()))
    histogram = stats.tables["mirrors/histogram"]
    by_pair = np.bincount(histogram[:, 0], histogram[:, 2], minlength=len(stats.halo.rows))
    np.testing.assert_array_equal(by_pair, stats.halo.rows)
    sizes = np.array([len(found) for found in held(graph, partition)])
    for count in range(2, ranks + 1):
        expected = (count - 1) * np.count_nonzero(sizes == count)
        assert histogram[histogram[:, 1] == count, 2].sum() == expected
    # F10: each copy beside its master is gathered once and scattered once
    inner, outer = connections(stats)
    assert inner.sum() + outer.sum() == 2 * (sum(len(one.vertices) for one in replicas) - graph.vertices)
    for direction in ("forward", "backward"):
        assert stats.tables[f"locality/{direction}"].shape[0] == ranks


def test_an_edge_cut_has_no_replica_graphs() -> None:
    graph = random_graph(20, 40)
    with pytest.raises(ConfigError, match=r"vertex-cut.*partition\.kind = 'ebv'"):
        next(build_replica_graphs(graph, Partition("edge-cut", 2, np.zeros(20, np.int32))))


def test_replica_sets_of_masters_hold_the_masters() -> None:
    graph = random_graph(60, 200)
    partition = partitioned(Ebv(gamma=0.0), graph, np.zeros(4, np.int64), seed=0)
    assert partition.edge_part is not None
    low, high = undirected_edges(graph)
    sets = replica_sets(low, high, partition.edge_part, partition.owner, 4)
    chosen = choose_masters(sets, np.zeros(4, np.int64), 1, 1, 0)
    for vertex, found in enumerate(held(graph, partition)):
        assert int(chosen[vertex]) in found
