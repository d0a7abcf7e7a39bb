"""EBV in blocks and from memory-mapped files: the same partition, in memory that does not grow with the edges."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_graphs import as_sets, graphs, literal_ebv, literal_order, random_graph

from simgnn.errors import GraphError
from simgnn.graph.csr import CSR
from simgnn.graph.generators.generate import generate_to_disk
from simgnn.graph.generators.recipes import RMat
from simgnn.graph.graph import Graph
from simgnn.graph.store import open_graph, save_graph
from simgnn.partition import edges as edge_order
from simgnn.partition.algorithms.ebv import ebv_edges
from simgnn.partition.edges import UndirectedEdges, blocks_in_order, ends_of, undirected_edges
from simgnn.partition.partition import partitioned
from simgnn.partition.partitioners.ebv import Ebv

ORDERS = ["degree-sum", "input", "random"]


def in_turn(edges: UndirectedEdges, order: str, seed: int = 0, block_edges: int = 1000) -> list[tuple[int, int, int]]:
    """Place and ends of every edge in the order of assignment."""
    blocks = blocks_in_order(edges, edges.csr.degrees(), order, seed, None, block_edges)
    columns = ((block.places.tolist(), block.first.tolist(), block.second.tolist()) for block in blocks)
    return [turn for three in columns for turn in zip(*three, strict=True)]


@settings(max_examples=80, deadline=None)
@given(graphs(), st.sampled_from(ORDERS), st.integers(1, 9), st.integers(1, 9), st.integers(0, 3))
def test_blocks_hold_every_edge_in_order(graph: Graph, order: str, block: int, piece: int, seed: int) -> None:
    edges = UndirectedEdges(UndirectedEdges.of(graph).csr, piece)
    low, high = (ends.tolist() for ends in undirected_edges(graph))
    found = in_turn(edges, order, seed, block)
    places = [place for place, _, _ in found]
    assert [(u, v) for _, u, v in found] == [(low[place], high[place]) for place in places]
    if order == "degree-sum":
        assert places == literal_order(graph)
    elif order == "input":
        assert places == list(range(edges.count))
    else:
        assert sorted(places) == list(range(edges.count))
    assert found == in_turn(UndirectedEdges.of(graph), order, seed)


@settings(max_examples=80, deadline=None)
@given(
    graphs(), st.sampled_from(ORDERS), st.integers(1, 9), st.integers(1, 9), st.sampled_from([3, 64, 70]), st.booleans()
)
def test_blocks_and_pieces_change_nothing(
    graph: Graph, order: str, block: int, piece: int, ranks: int, together: bool
) -> None:
    hosts = np.zeros(ranks, dtype=np.int64) if together else np.arange(ranks) // 4
    whole = UndirectedEdges.of(graph)
    expected = ebv_edges(whole, hosts, gamma=0.1, edge_order=order)
    found = ebv_edges(UndirectedEdges(whole.csr, piece), hosts, gamma=0.1, edge_order=order, block_edges=block)
    np.testing.assert_array_equal(found.edge_part, expected.edge_part)
    np.testing.assert_array_equal(found.replicas, expected.replicas)


def test_a_random_order_equals_the_definition() -> None:
    graph = random_graph(150, 600)
    edges = UndirectedEdges.of(graph)
    places = [place for place, _, _ in in_turn(edges, "random", seed=4)]
    assert sum(abs(place - turn) for turn, place in enumerate(places)) > edges.count**2 / 4  # a third is expected
    assert places != [place for place, _, _ in in_turn(edges, "random", seed=5)]
    expected, replicas = literal_ebv(graph, [0, 0, 1, 1, 1], 0.1, 1.0, 1.0, places)
    found = ebv_edges(edges, np.array([0, 0, 1, 1, 1]), gamma=0.1, edge_order="random", seed=4)
    assert found.edge_part.tolist() == expected
    assert as_sets(found.replicas) == replicas


@pytest.mark.parametrize("order", ORDERS)
def test_a_graph_on_disk_gives_the_same_and_leaves_nothing(
    order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_order, "MEMORY_BYTES", 0)
    graph = random_graph(400, 3000, width=3)
    save_graph(graph, tmp_path / "graph")
    there = open_graph(tmp_path / "graph")
    assert isinstance(there.csr.indices, np.memmap)
    spill = tmp_path / "spill"
    spill.mkdir()
    hosts = np.arange(6) // 3
    edges = UndirectedEdges(there.csr, 500)
    found = ebv_edges(edges, hosts, gamma=0.1, edge_order=order, seed=2, spill=spill, block_edges=256)
    expected = partitioned(Ebv(edge_order=order), graph, hosts, seed=2)
    np.testing.assert_array_equal(found.edge_part, expected.edge_part)
    assert partitioned(Ebv(edge_order=order), there, hosts, 2, spill).digest == expected.digest
    assert list(spill.iterdir()) == []


def test_a_folder_that_is_not_what_it_says_is_refused(tmp_path: Path) -> None:
    graph = random_graph(60, 200)
    csr = graph.csr
    below = csr.indices < np.repeat(np.arange(60), csr.degrees())
    one_way = CSR(np.concatenate(([0], np.cumsum(below)))[csr.indptr], csr.indices[below], 60).check()
    backward = CSR(one_way.indptr[-1] - one_way.indptr[::-1], 59 - one_way.indices[::-1], 60).check()
    beyond = csr.indices.copy()
    beyond[csr.indptr[1:][csr.degrees() > 0] - 1] = 60
    unfit = CSR(csr.indptr, beyond, 60)
    for wrong, told in ((one_way, "both directions"), (backward, "both directions"), (unfit, "not below 60")):
        for block_edges in (8, 1000):
            with pytest.raises(GraphError, match=told):
                ebv_edges(UndirectedEdges(wrong), np.zeros(3, dtype=np.int64), block_edges=block_edges)


def test_the_list_of_edges() -> None:
    graph = random_graph(50, 300)
    edges = UndirectedEdges(graph.csr, 7)
    dense = np.zeros((50, 50), dtype=bool)
    dense[np.repeat(np.arange(50), graph.csr.degrees()), graph.csr.indices] = True
    low, high = np.nonzero(np.triu(dense))
    starts = []
    for first, (lower, higher) in edges.scan(ends_of):
        np.testing.assert_array_equal(lower, low[first : first + len(lower)])
        np.testing.assert_array_equal(higher, high[first : first + len(lower)])
        starts.append(first)
    assert len(starts) > 10
    for array, expected in zip(undirected_edges(graph), (low, high), strict=True):
        np.testing.assert_array_equal(array, expected)


def test_memory_does_not_grow_with_the_edges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_order, "MEMORY_BYTES", 1 << 20)
    graph = generate_to_disk(RMat(2**14, 1_000_000, classes=0, feature_width=0), tmp_path / "graph")
    hosts = np.arange(8) // 4
    edges = UndirectedEdges(graph.csr, 1 << 14)

    def peak(block_edges: int) -> int:
        tracemalloc.start()
        ebv_edges(edges, hosts, gamma=0.1, block_edges=block_edges, spill=tmp_path)
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    peak(1 << 14)  # compiles
    assert edges.count > 600_000
    assert peak(1 << 14) < 8 * edges.count  # ends and places alone take 12 bytes an edge
    assert peak(1 << 20) > 12 * edges.count
