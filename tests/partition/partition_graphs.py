"""Small graphs for the tests of partitions, and a slow reading of EBV's definition."""

from collections.abc import Iterable

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import sparse

from simgnn.graph.csr import CSR
from simgnn.graph.graph import Graph
from simgnn.partition.edges import undirected_edges
from simgnn.partition.local.edge_cut import LocalGraph
from simgnn.partition.partition import Partition


def graph_of(pairs: NDArray[np.int64], vertices: int, *, symmetric: bool = True, width: int = 0) -> Graph:
    """A graph of (source, destination) ``pairs`` [E, 2]; loops and duplicates are dropped; seeded labels and masks."""
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    if symmetric:
        pairs = np.concatenate((pairs, pairs[:, ::-1]))
    pairs = np.unique(pairs[:, ::-1], axis=0) if len(pairs) else pairs
    indptr = np.concatenate(([0], np.cumsum(np.bincount(pairs[:, 0], minlength=vertices)))).astype(np.int64)
    random = np.random.default_rng(7)
    third = random.integers(0, 4, vertices)
    return Graph(
        name="small",
        csr=CSR(indptr, pairs[:, 1].astype(np.int32), vertices).check(),
        features=random.standard_normal((vertices, width), dtype=np.float32) if width else None,
        labels=random.integers(0, 3, vertices),
        train_mask=third == 0,
        validation_mask=third == 1,
        test_mask=third == 2,
        classes=3,
        symmetric=symmetric,
    )


def random_graph(vertices: int, edges: int, seed: int = 0, *, symmetric: bool = True, width: int = 0) -> Graph:
    """Ends drawn with a power-law bias, so that some vertices are hubs and some are isolated."""
    random = np.random.default_rng(seed)
    ends = np.minimum((random.random((edges, 2)) ** 3 * vertices).astype(np.int64), vertices - 1)
    return graph_of(random.permutation(vertices)[ends], vertices, symmetric=symmetric, width=width)


def power_law_graph(vertices: int, edges: int, exponent: float, seed: int = 0) -> Graph:
    """Ends drawn with probability ~ place ** (-1 / (exponent - 1)); about ``edges`` undirected edges are left."""
    random = np.random.default_rng(seed)
    weight = np.arange(1, vertices + 1) ** (-1.0 / (exponent - 1.0))
    return graph_of(random.choice(vertices, size=(edges, 2), p=weight / weight.sum()), vertices)


def dense(csr: CSR) -> NDArray[np.float64]:
    """Adjacency as a dense matrix [rows, columns]."""
    matrix = sparse.csr_array((np.ones(csr.edges), csr.indices, csr.indptr), shape=(csr.rows, csr.columns))
    return np.asarray(matrix.todense())


@st.composite
def graphs(draw: st.DrawFn, max_vertices: int = 40) -> Graph:
    """Any small graph, symmetric or not, isolated vertices and no edges at all included."""
    vertices = draw(st.integers(1, max_vertices))
    ids = st.integers(0, vertices - 1)
    pairs = draw(st.lists(st.tuples(ids, ids), max_size=4 * vertices))
    return graph_of(np.array(pairs, dtype=np.int64).reshape(-1, 2), vertices, symmetric=draw(st.booleans()))


def check_local_graphs(graph: Graph, partition: Partition, locals_: list[LocalGraph]) -> None:
    """Compare local graphs with what the definition says, vertex by vertex."""
    csr, owner = graph.csr, partition.owner
    position = np.full(graph.vertices, -1)
    for one in locals_:
        assert (owner[one.owned] == one.rank).all()
        assert (position[one.owned] == -1).all()
        position[one.owned] = np.arange(len(one.owned))
    assert (position >= 0).all()
    assert sum(one.csr.edges for one in locals_) == graph.edges
    for one in locals_:
        one.csr.check()
        rows = [csr.indices[csr.indptr[v] : csr.indptr[v + 1]] for v in one.owned]
        sources = np.unique(np.concatenate([np.empty(0, dtype=np.int32), *rows]))
        remote = sources[owner[sources] != one.rank]
        expected = remote[np.lexsort((position[remote], owner[remote]))]
        np.testing.assert_array_equal(one.halo, expected)
        both = np.concatenate((one.owned, one.halo))
        np.testing.assert_array_equal(one.degree, csr.degrees()[both])
        for row, global_sources in enumerate(rows):
            local = one.csr.indices[one.csr.indptr[row] : one.csr.indptr[row + 1]]
            assert (np.diff(local) > 0).all()
            np.testing.assert_array_equal(np.sort(both[local]), global_sources)
        assert set(one.receive) == set(owner[one.halo].tolist())
        for peer, part in one.receive.items():
            sent = locals_[peer].send_rows[one.rank]
            assert sent.dtype == np.int32
            np.testing.assert_array_equal(locals_[peer].owned[sent], one.halo[part])
        for peer in one.send_rows:
            assert one.rank in locals_[peer].receive


def literal_order(graph: Graph) -> list[int]:
    """Places of the edges by (degree sum, lower end, higher end)."""
    low, high = (ends.tolist() for ends in undirected_edges(graph))
    degree = np.bincount(low + high, minlength=graph.vertices).tolist() if low else []
    return sorted(range(len(low)), key=lambda e: (degree[low[e]] + degree[high[e]], low[e], high[e]))


def literal_ebv(
    graph: Graph, hosts: list[int], gamma: float, alpha: float, beta: float, order: Iterable[int]
) -> tuple[list[int], list[set[int]]]:
    """Every rank is scored for every edge, with sets, as the definition reads; ``order``: places of the edges."""
    ranks, vertices = len(hosts), graph.vertices
    low, high = (ends.tolist() for ends in undirected_edges(graph))
    replicas: list[set[int]] = [set() for _ in range(vertices)]
    ecount, vcount, part = [0] * ranks, [0] * ranks, [-1] * len(low)
    for edge in order:
        ends = (low[edge], high[edge])
        near = [{hosts[rank] for rank in replicas[end]} for end in ends]
        best = None
        for rank in range(ranks):
            rr = sum(rank not in replicas[end] for end in ends)
            hh = sum(hosts[rank] not in held for held in near)
            bal = alpha * ecount[rank] * ranks / len(low) + beta * vcount[rank] * ranks / vertices
            candidate = ((rr + gamma * (hh - rr)) + bal, bal, rank)
            best = candidate if best is None else min(best, candidate)
        assert best is not None
        chosen = best[2]
        part[edge] = chosen
        ecount[chosen] += 1
        vcount[chosen] += sum(chosen not in replicas[end] for end in ends)
        for end in ends:
            replicas[end].add(chosen)
    for vertex in range(vertices):
        if not replicas[vertex]:
            rank = vcount.index(min(vcount))
            replicas[vertex].add(rank)
            vcount[rank] += 1
    return part, replicas


def as_sets(words: NDArray[np.uint64]) -> list[set[int]]:
    """Sets of ranks from their bit words [V, words]."""
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
    return [set(np.flatnonzero(row).tolist()) for row in bits]
