"""The undirected edges of a graph: the view that METIS and vertex-cut partitioners need, whole or read in pieces."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy import sparse

from simgnn.errors import GraphError
from simgnn.graph.build import symmetrise_csr
from simgnn.graph.csr import CSR, IndexArray
from simgnn.graph.graph import Graph
from simgnn.graph.store import release_pages
from simgnn.graph.thread_pool import in_order

T = TypeVar("T")
PIECE_ARCS = 1 << 21  # stored edges read at once, 8 or 16 MiB of sources; a row is never divided


@dataclass(frozen=True)
class UndirectedEdges:
    """Each edge of a graph once, by (lower end, higher end) ascending; an edge's place is its position in this list.

    ``csr``: both directions of every edge, no self loops, no duplicates. It may be memory-mapped: pages that were read
    are given back, so that a scan of any graph keeps a few pieces of ``piece_arcs`` stored edges in memory.
    """

    csr: CSR
    piece_arcs: int = PIECE_ARCS

    @classmethod
    def of(cls, graph: Graph) -> "UndirectedEdges":
        """The edges of ``graph``; a directed one is symmetrised in memory first."""
        return cls(symmetric_csr(graph))

    @property
    def vertices(self) -> int:
        return self.csr.rows

    @property
    def count(self) -> int:
        """Number of edges E_u."""
        return self.csr.edges // 2

    def scan(self, work: Callable[[IndexArray, IndexArray], T]) -> Iterator[tuple[int, T]]:
        """``work(low, high)`` on consecutive pieces of the list, worked out on a few threads and yielded in order, each
        with the place of its first edge. Raises :class:`GraphError` where the CSR is not symmetric."""
        cuts = self._cuts()

        def one(piece: int) -> tuple[int, T]:
            low, high = self._read(int(cuts[piece]), int(cuts[piece + 1]))
            return len(low), work(low, high)

        first = 0
        for length, found in in_order(one, len(cuts) - 1):
            if first + length > self.count:
                break
            yield first, found
            first += length
        else:
            if first == self.count:
                return
        raise GraphError(
            "the graph is marked as holding both directions of every edge and no self loops, but it does not: write it "
            "again"
        )

    def _cuts(self) -> NDArray[np.int64]:
        """Rows at which pieces begin, and V."""
        wanted = np.arange(0, self.csr.edges, self.piece_arcs)
        starts = np.searchsorted(self.csr.indptr, wanted, side="right") - 1
        return np.unique(np.append(starts, self.vertices)).astype(np.int64)

    def _read(self, begin: int, end: int) -> tuple[IndexArray, IndexArray]:
        bounds = np.array(self.csr.indptr[begin : end + 1])
        sources = np.array(self.csr.indices[bounds[0] : bounds[-1]])
        release_pages(self.csr.indices)
        low, high = np.empty_like(sources), np.empty_like(sources)
        kept = int(_upper_ends(begin, bounds, sources, self.vertices, low, high))
        if kept < 0:
            raise GraphError(f"a source is not below {self.vertices}, the number of vertices: write the graph again")
        return low[:kept], high[:kept]


def ends_of(low: IndexArray, high: IndexArray) -> tuple[IndexArray, IndexArray]:
    """The ends themselves: ``work`` of a scan that only reads."""
    return low, high


def symmetric_csr(graph: Graph) -> CSR:
    """The edges of ``graph`` in both directions, without duplicates; its own CSR when that is symmetric already."""
    if graph.symmetric:
        return graph.csr
    return symmetrise_csr(graph.csr)


def undirected_edges(graph: Graph) -> tuple[IndexArray, IndexArray]:
    """The whole list of :class:`UndirectedEdges`: lower ends and higher ends, [E_u] each."""
    edges = UndirectedEdges.of(graph)
    lows, highs = index_array(edges.count, graph.vertices), index_array(edges.count, graph.vertices)
    for first, (low, high) in edges.scan(ends_of):
        lows[first : first + len(low)], highs[first : first + len(low)] = low, high
    return lows, highs


def arcs_of_edges(graph: Graph) -> NDArray[np.int8]:
    """How many stored edges (1 or 2) each of :class:`UndirectedEdges` stands for, int8 [E_u]."""
    if graph.symmetric:
        return np.full(graph.edges // 2, 2, dtype=np.int8)
    csr, vertices = graph.csr, graph.vertices
    forward = sparse.csr_array((np.ones(csr.edges, np.int8), csr.indices, csr.indptr), shape=(vertices, vertices))
    both = sparse.csr_array(forward + forward.T)
    both.sort_indices()
    rows = np.repeat(np.arange(graph.vertices), np.diff(both.indptr))
    return np.asarray(both.data[both.indices > rows], dtype=np.int8)


def index_array(length: int, below: int) -> IndexArray:
    """An uninitialised array for ids below ``below``: int32, or int64 when they do not fit."""
    if below <= 2**31:
        return np.empty(length, dtype=np.int32)
    return np.empty(length, dtype=np.int64)


@njit(cache=True, nogil=True)
def _upper_ends(first_row: Any, bounds: Any, sources: Any, vertices: Any, low: Any, high: Any) -> Any:
    """Fill ``low``, ``high`` with the edges whose source is above their row; how many, or -1 for an id out of range."""
    kept = 0
    place = 0
    for row in range(len(bounds) - 1):
        for _ in range(bounds[row], bounds[row + 1]):
            source = sources[place]
            place += 1
            if source > first_row + row:
                if source >= vertices:
                    return -1
                low[kept], high[kept] = first_row + row, source
                kept += 1
    return kept
