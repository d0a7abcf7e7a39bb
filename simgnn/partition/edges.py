"""The undirected edges of a graph: the view that METIS and vertex-cut partitioners need."""

from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from simgnn.graph.csr import CSR, IndexArray
from simgnn.graph.graph import Graph


def symmetric_csr(graph: Graph) -> CSR:
    """The edges of ``graph`` in both directions, without duplicates; its own CSR when that is symmetric already."""
    if graph.symmetric:
        return graph.csr
    both = _both_directions(graph)
    indices = index_array(both.nnz, graph.vertices)
    indices[:] = both.indices
    return CSR(both.indptr.astype(np.int64), indices, graph.vertices)


def undirected_edges(graph: Graph) -> tuple[IndexArray, IndexArray]:
    """Each edge once, without self loops: its lower end and its higher end, sorted by (lower, higher); [E_u] each."""
    csr = symmetric_csr(graph)
    low = _rows_of(csr)
    once = csr.indices > low
    return low[once], csr.indices[once]


def arcs_of_edges(graph: Graph) -> NDArray[np.int8]:
    """How many stored edges (1 or 2) each of :func:`undirected_edges` stands for, int8 [E_u]."""
    csr = symmetric_csr(graph)
    once = csr.indices > _rows_of(csr)
    if graph.symmetric:
        return np.full(np.count_nonzero(once), 2, dtype=np.int8)
    return np.asarray(_both_directions(graph).data[once], dtype=np.int8)


def _both_directions(graph: Graph) -> sparse.csr_array:
    csr, vertices = graph.csr, graph.vertices
    # one byte an edge: both directions together count to 2 at most
    forward = sparse.csr_array((np.ones(csr.edges, np.int8), csr.indices, csr.indptr), shape=(vertices, vertices))
    both = sparse.csr_array(forward + forward.T)
    both.sort_indices()
    return both


def index_array(length: int, below: int) -> IndexArray:
    """An uninitialised array for ids below ``below``: int32, or int64 when they do not fit."""
    if below <= 2**31:
        return np.empty(length, dtype=np.int32)
    return np.empty(length, dtype=np.int64)


def _rows_of(csr: CSR) -> IndexArray:
    ids = index_array(csr.rows, csr.rows)
    ids[:] = np.arange(csr.rows)
    return cast(IndexArray, np.repeat(ids, csr.degrees()))
