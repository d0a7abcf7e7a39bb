"""Statistics are what a slow count finds; quality measures on hand-made cases and against their definitions."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_graphs import dense, graph_of, graphs, random_graph
from scipy import sparse

from simgnn.errors import ConfigError
from simgnn.graph.graph import Graph
from simgnn.partition.partition import Partition, partitioned
from simgnn.partition.partitioners.random import Random
from simgnn.partition.statistics.count import partition_stats
from simgnn.partition.statistics.partition_stats import connections, measure
from simgnn.policy import Assignment


@settings(max_examples=60, deadline=None)
@given(graphs(), st.integers(1, 6), st.integers(0, 3))
def test_edge_cut_numbers_are_counts(graph: Graph, ranks: int, seed: int) -> None:
    owner = np.random.default_rng(seed).integers(0, ranks, graph.vertices).astype(np.int32)
    hosts = np.arange(ranks) // 2
    stats = partition_stats(graph, Partition("edge-cut", ranks, owner), hosts, "degree")
    adjacency = dense(graph.csr)
    halo = np.zeros((ranks, ranks), dtype=np.int64)
    for rank in range(ranks):
        needed = adjacency[owner == rank].any(axis=0) & (owner != rank)
        halo[:, rank] = np.bincount(owner[needed], minlength=ranks)
    np.testing.assert_array_equal(stats.halo.matrix(ranks), halo)
    np.testing.assert_array_equal(stats.rows, np.bincount(owner, minlength=ranks))
    np.testing.assert_array_equal(stats.edges, [adjacency[owner == rank].sum() for rank in range(ranks)])
    for name in ("train", "validation", "test"):
        mask = getattr(graph, f"{name}_mask")
        np.testing.assert_array_equal(stats.tables[f"{name}_rows"], np.bincount(owner[mask], minlength=ranks))
    quality = measure(stats)
    assert quality.edge_cut == adjacency[owner[:, None] != owner[None, :]].sum()
    assert quality.copies == halo.sum()
    assert quality.replication_factor == pytest.approx(1 + halo.sum() / graph.vertices)
    inner, outer = connections(stats)
    near = hosts[:, None] == hosts[None, :]
    np.testing.assert_array_equal(inner, (halo * near).sum(axis=0) + (halo * near).sum(axis=1))
    np.testing.assert_array_equal(outer, (halo * ~near).sum(axis=0) + (halo * ~near).sum(axis=1))
    assert inner.sum() + outer.sum() == 2 * halo.sum()


def test_hand_made_case() -> None:
    # a path 0-1-2-3 cut in the middle, one rank a host
    path = graph_of(np.array([[0, 1], [1, 2], [2, 3]]), 4)
    stats = partition_stats(path, Partition("edge-cut", 2, np.array([0, 0, 0, 1], dtype=np.int32)), np.array([0, 1]))
    quality = measure(stats)
    assert (quality.edge_cut, quality.copies, quality.copies_max) == (2, 2, 1)
    assert quality.edge_cut_share == pytest.approx(2 / 6)
    assert quality.replication_factor == 1.5
    assert quality.vertex_imbalance == 1.5
    assert quality.edge_imbalance == pytest.approx(5 / 3)
    assert (quality.inner_max, quality.outer_max, quality.outer_mean) == (0, 2, 2.0)
    assert measure(replace(stats, tables={})).edge_cut is None


def test_sparse_features_are_counted() -> None:
    graph = random_graph(60, 200, symmetric=False)
    features = sparse.random_array((60, 30), density=0.1, format="csr", dtype=np.float32, rng=np.random.default_rng(1))
    graph = replace(graph, features=sparse.csr_array(features))
    owner = np.random.default_rng(0).integers(0, 3, 60).astype(np.int32)
    stats = partition_stats(graph, Partition("edge-cut", 3, owner), np.zeros(3, dtype=np.int64))
    adjacency, x = dense(graph.csr), np.asarray(features.todense()) != 0
    stored = x.sum(axis=1)
    np.testing.assert_array_equal(stats.tables["feature_nonzeros"], np.bincount(owner, stored, minlength=3))
    sums = {"neighbor": (adjacency @ x) != 0, "aggregated": ((adjacency + np.eye(60)) @ x) != 0}
    for name, places in sums.items():
        expected = np.bincount(owner, places.sum(axis=1), minlength=3)
        np.testing.assert_array_equal(stats.tables[f"{name}_feature_nonzeros"], expected)
    for rank in range(3):
        needed = adjacency[owner == rank].any(axis=0) & (owner != rank)
        expected = np.bincount(owner[needed], stored[needed], minlength=3)
        np.testing.assert_array_equal(stats.tables["halo_feature_nonzeros"][:, rank], expected)


def test_locality_belongs_to_the_order_of_rows() -> None:
    ring = graph_of(np.stack((np.arange(64), (np.arange(64) + 1) % 64), axis=1), 64)
    shuffled = np.random.default_rng(0).permutation(64)
    pairs = np.stack((shuffled, shuffled[(np.arange(64) + 1) % 64]), axis=1)
    whole = Partition("edge-cut", 1, np.zeros(64, dtype=np.int32))
    hosts = np.zeros(1, dtype=np.int64)
    plain = partition_stats(graph_of(pairs, 64), whole, hosts, "none").tables["locality/forward"][0]
    ordered = partition_stats(graph_of(pairs, 64), whole, hosts, "rcm").tables["locality/forward"][0]
    # half of the 128 reads are second reads; in a good order the row was read at most 8 rows ago
    assert ordered[3] > 0.45 > plain[3]
    assert plain[-1] == ordered[-1] == pytest.approx(0.5)
    assert (np.diff(partition_stats(ring, whole, hosts).tables["locality/backward"][0]) >= 0).all()


def test_missing_table_says_who_needs_it() -> None:
    stats = partition_stats(random_graph(10, 20), Partition("edge-cut", 1, np.zeros(10, dtype=np.int32)), np.zeros(1))
    with pytest.raises(ConfigError, match="no table 'chunks', which chunked loading needs"):
        stats.table("chunks", "chunked loading")


def test_digest_follows_content() -> None:
    graph = random_graph(40, 90)
    owner = np.zeros(40, dtype=np.int32)
    one = partition_stats(graph, Partition("edge-cut", 2, owner), np.zeros(2, dtype=np.int64))
    again = partition_stats(replace(graph, name="other"), Partition("edge-cut", 2, owner), np.zeros(2, dtype=np.int64))
    assert one.digest == again.digest
    others = [
        partition_stats(graph, Partition("edge-cut", 2, owner), np.array([0, 1])),
        partition_stats(graph, Partition("edge-cut", 2, owner), np.zeros(2, dtype=np.int64), "none"),
        partition_stats(graph, Partition("edge-cut", 2, owner + 1), np.zeros(2, dtype=np.int64)),
        partition_stats(random_graph(40, 91), Partition("edge-cut", 2, owner), np.zeros(2, dtype=np.int64)),
    ]
    assert len({one.digest, *(other.digest for other in others)}) == 5


def test_owners_out_of_range_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Random, "divide", lambda *_: Assignment(np.array([0, 2], dtype=np.int32)))
    with pytest.raises(ConfigError, match=r"Random\.divide returned owner: got 0\.\.2, expected ranks 0\.\.1"):
        partitioned(Random(), random_graph(2, 1), np.zeros(2, dtype=np.int64), 0)
