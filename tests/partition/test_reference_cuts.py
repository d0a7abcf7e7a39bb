"""Vertex-cuts to measure EBV against: their definitions, read slowly, and what every vertex-cut must hold."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_graphs import as_sets, graph_of, graphs, power_law_graph, random_graph

from simgnn.graph.graph import Graph
from simgnn.partition.algorithms.ebv import AssignedEdges, ebv_edges
from simgnn.partition.algorithms.reference_cuts import dbh_edges, hdrf_edges, random_edges
from simgnn.partition.edges import UndirectedEdges, undirected_edges
from simgnn.partition.local.masters import replica_sets
from simgnn.partition.partition import partitioned
from simgnn.partition.partitioners.dbh import Dbh
from simgnn.partition.partitioners.ebv import Ebv
from simgnn.partition.partitioners.hdrf import Hdrf
from simgnn.partition.partitioners.random_edges import RandomEdges
from simgnn.partition.statistics.count import partition_stats
from simgnn.partition.statistics.partition_stats import measure
from simgnn.policy import Partitioner

CUTS: list[Partitioner] = [RandomEdges(), Dbh(), Hdrf(), Hdrf(edge_order="random")]


def one_host(ranks: int) -> np.ndarray:
    return np.zeros(ranks, dtype=np.int64)


def hdrf(graph: Graph, ranks: int, balance: float = 1.1) -> AssignedEdges:
    return hdrf_edges(UndirectedEdges.of(graph), one_host(ranks), balance=balance, edge_order="input", seed=0)


def literal_hdrf(graph: Graph, ranks: int, balance: float) -> list[int]:
    """Every rank is scored for every edge, with sets, as the definition reads."""
    low, high = (ends.tolist() for ends in undirected_edges(graph))
    degree = np.bincount(low + high, minlength=graph.vertices).tolist() if low else []
    held, part = [0] * ranks, []
    replicas: list[set[int]] = [set() for _ in range(graph.vertices)]
    for u, v in zip(low, high, strict=True):
        most, least = max(held), min(held)

        def score(rank: int, u: int = u, v: int = v, most: int = most, least: int = least) -> float:
            found = 0.0
            for end in (u, v):
                if rank in replicas[end]:
                    found += 1 + (1 - degree[end] / (degree[u] + degree[v]))
            return found + balance * (most - held[rank]) / (1 + most - least)

        best = min(range(ranks), key=lambda rank: (-score(rank), held[rank], rank))
        part.append(best)
        held[best] += 1
        replicas[u].add(best)
        replicas[v].add(best)
    return part


@pytest.mark.parametrize("ranks", [1, 5, 64, 65, 130])
@pytest.mark.parametrize("balance", [0.0, 1.1])
def test_hdrf_equals_its_definition_edge_for_edge(ranks: int, balance: float) -> None:
    graph = random_graph(120, 500, seed=ranks)
    assert hdrf(graph, ranks, balance).edge_part.tolist() == literal_hdrf(graph, ranks, balance)


@settings(max_examples=30, deadline=None)
@given(graphs(), st.integers(1, 70), st.sampled_from([0.0, 0.5, 1.1]))
def test_hdrf_equals_its_definition_on_any_graph(graph: Graph, ranks: int, balance: float) -> None:
    assert hdrf(graph, ranks, balance).edge_part.tolist() == literal_hdrf(graph, ranks, balance)


def test_an_edge_goes_where_its_end_of_lower_degree_goes() -> None:
    """All edges of which a vertex is that end lie on one rank; of equal degrees the lower id counts."""
    graph = power_law_graph(800, 6_000, exponent=2.25)
    low, high = undirected_edges(graph)
    degree = graph.csr.degrees()
    end = np.where(degree[high] < degree[low], high, low)
    found = dbh_edges(UndirectedEdges.of(graph), one_host(7), seed=3).edge_part.astype(np.int64)
    rank_of = np.full(graph.vertices, -1)
    rank_of[end] = found
    np.testing.assert_array_equal(rank_of[end], found)
    used = np.bincount(rank_of[rank_of >= 0], minlength=7)
    assert used.min() > 0.6 * used.mean(), "the hash spreads vertices over ranks"


@pytest.mark.parametrize("ranks", [2, 8, 65])
def test_random_edges_replicate_as_expected(ranks: int) -> None:
    """A vertex of degree d is on P (1 - (1 - 1/P)^d) ranks; an isolated one is on one."""
    graph = power_law_graph(20_000, 130_000, exponent=2.25)
    degree = graph.csr.degrees()
    expected = np.where(degree > 0, ranks * (1 - (1 - 1 / ranks) ** degree), 1).mean()
    found = random_edges(UndirectedEdges.of(graph), one_host(ranks), seed=1)
    assert np.bitwise_count(found.replicas).sum() / graph.vertices == pytest.approx(expected, rel=0.02)


def test_the_rank_of_a_random_edge_depends_on_its_ends_alone() -> None:
    whole = random_graph(300, 2_000)
    low, high = undirected_edges(whole)
    kept = np.arange(len(low)) % 3 == 0
    fewer = graph_of(np.stack((low[kept], high[kept]), axis=1).astype(np.int64), 300)
    parts = [random_edges(UndirectedEdges.of(graph), one_host(9), seed=5).edge_part for graph in (whole, fewer)]
    np.testing.assert_array_equal(parts[0][kept], parts[1])
    other = random_edges(UndirectedEdges.of(whole), one_host(9), seed=6).edge_part
    assert 0.7 < np.mean(parts[0] != other) < 1


@pytest.mark.parametrize("policy", CUTS, ids=repr)
@pytest.mark.parametrize("ranks", [1, 3, 65, pytest.param(300, marks=pytest.mark.slow)])
def test_every_edge_has_one_rank_and_every_vertex_its_replicas(policy: Partitioner, ranks: int) -> None:
    graph = graph_of(np.random.default_rng(2).integers(0, 350, (900, 2)), 400)  # fifty vertices are isolated
    hosts = np.arange(ranks) // 4
    partition = partitioned(policy, graph, hosts, seed=1)
    low, high = undirected_edges(graph)
    assert partition.edge_part is not None
    assert partition.edge_part.dtype == (np.uint8 if ranks <= 256 else np.uint16)
    assert len(partition.edge_part) == len(low)
    held = as_sets(replica_sets(low, high, partition.edge_part, partition.owner, ranks))
    for vertex, owner in enumerate(partition.owner.tolist()):
        found = set(partition.edge_part[(low == vertex) | (high == vertex)].tolist())
        assert owner in (found or {owner})
        assert held[vertex] == (found or {owner})
    quality = measure(partition_stats(graph, partition, hosts))
    assert quality.replication_factor == pytest.approx(sum(map(len, held)) / graph.vertices)


@pytest.mark.parametrize("policy", CUTS, ids=repr)
def test_star_isolated_vertices_and_no_edges(policy: Partitioner) -> None:
    star = graph_of(np.stack((np.zeros(60, dtype=np.int64), np.arange(1, 61)), axis=1), 61)
    stats = partition_stats(star, partitioned(policy, star, one_host(4), seed=0), one_host(4))
    assert int(stats.halo.rows.sum()) == np.count_nonzero(stats.edges) - 1, "the hub wherever it has an edge"
    bare = partitioned(policy, graph_of(np.empty((0, 2), dtype=np.int64), 9), one_host(3), seed=0)
    assert bare.rows().tolist() == [3, 3, 3]


def test_pieces_and_blocks_change_nothing(tmp_path: Path) -> None:
    graph = random_graph(300, 2_000)
    whole = UndirectedEdges.of(graph)
    pieces = UndirectedEdges(whole.csr, 64)
    for cut in (random_edges, dbh_edges):
        assert np.array_equal(cut(whole, one_host(5), seed=2).edge_part, cut(pieces, one_host(5), seed=2).edge_part)
    blocks = [
        hdrf_edges(edges, one_host(5), balance=1.1, edge_order="degree-sum", seed=0, spill=tmp_path, block_edges=size)
        for edges, size in ((whole, 1 << 22), (pieces, 100))
    ]
    assert np.array_equal(blocks[0].edge_part, blocks[1].edge_part)
    assert np.array_equal(blocks[0].replicas, blocks[1].replicas)


def test_names_of_vertices_hardly_matter_and_more_thought_replicates_less() -> None:
    """On a power-law graph: random >= dbh >= EBV by degree sum; HDRF lies below random too. A trend."""
    graph = power_law_graph(20_000, 130_000, exponent=2.25)
    renamed = np.random.default_rng(4).permutation(graph.vertices)
    ends = renamed[np.stack(undirected_edges(graph), axis=1)]
    other = graph_of(ends, graph.vertices)
    factors = []
    for one in (graph, other):
        edges = UndirectedEdges.of(one)
        found = {
            "random": random_edges(edges, one_host(8), seed=0),
            "dbh": dbh_edges(edges, one_host(8), seed=0),
            "hdrf": hdrf_edges(edges, one_host(8), balance=1.1, edge_order="random", seed=0),
            "ebv": ebv_edges(edges, one_host(8)),
        }
        factors.append({name: float(np.bitwise_count(cut.replicas).sum() / 20_000) for name, cut in found.items()})
        assert np.bincount(found["hdrf"].edge_part, minlength=8).max() <= 1.05 * edges.count / 8
    for name in ("random", "dbh", "ebv"):
        assert factors[0][name] == pytest.approx(factors[1][name], rel=0.03)
    assert factors[0]["random"] > factors[0]["dbh"] > factors[0]["ebv"]
    assert factors[0]["random"] > factors[0]["hdrf"]


def test_every_cut_is_another_one() -> None:
    graph = random_graph(200, 900)
    parts = [partitioned(policy, graph, one_host(4), seed=0) for policy in (*CUTS, Ebv())]
    assert {part.kind for part in parts} == {"vertex-cut"}
    assert len({part.digest for part in parts}) == len(parts)
