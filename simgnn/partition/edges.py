"""The undirected edges of a graph, read in pieces, and the order in which EBV and HDRF assign them to ranks.

A stable counting sort on the degree sum gives every edge a turn (its position in the order) while the list is read.
Each edge is then written to the block that covers its turn; each block is a temporary file, or in memory if small.
Memory grows with the numbers of vertices and blocks, not of edges.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any, Literal, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy import sparse

from simgnn.errors import GraphError
from simgnn.graph.build import symmetrise_csr
from simgnn.graph.csr import CSR, IndexArray
from simgnn.graph.graph import Graph
from simgnn.graph.hashing import permutation_slice, stream_key
from simgnn.graph.store import release_pages
from simgnn.graph.thread_pool import in_order

T = TypeVar("T")
PIECE_ARCS = 1 << 21  # stored edges read at once, 8 or 16 MiB of sources; a row is never divided


@dataclass(frozen=True)
class UndirectedEdges:
    """The list of undirected edges: each edge once, sorted by (lower end, higher end); the place of an edge is its
    position in this list. ``csr``: both directions of every edge, no self loops, no duplicates. It may be
    memory-mapped: a scan loads a few pieces of ``piece_arcs`` stored edges."""

    csr: CSR
    piece_arcs: int = PIECE_ARCS

    @classmethod
    def of(cls, graph: Graph) -> "UndirectedEdges":
        """List the edges of ``graph``; a directed graph is symmetrised in memory first."""
        return cls(symmetric_csr(graph))

    @property
    def vertices(self) -> int:
        return self.csr.rows

    @property
    def count(self) -> int:
        """Number of undirected edges E_u."""
        return self.csr.edges // 2

    def scan(self, work: Callable[[IndexArray, IndexArray], T]) -> Iterator[tuple[int, T]]:
        """Call ``work(low, high)`` for consecutive pieces of the list on a few threads. Yields, in order, the place of
        the first edge of each piece and the result. Raises :class:`GraphError` when the CSR is not symmetric."""
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
            "the graph is marked as symmetric, but does not hold every edge in both directions, or holds self loops: "
            "write the graph again"
        )

    def _cuts(self) -> NDArray[np.int64]:
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
    """Return both ends unchanged: the ``work`` of a scan that only reads edges."""
    return low, high


def symmetric_csr(graph: Graph) -> CSR:
    """Return the edges of ``graph`` in both directions, without duplicates or weights."""
    csr = graph.csr.unweighted()
    return csr if graph.symmetric else symmetrise_csr(csr)


def undirected_edges(graph: Graph) -> tuple[IndexArray, IndexArray]:
    """Return the whole list of :class:`UndirectedEdges`: lower ends and higher ends, [E_u] each."""
    edges = UndirectedEdges.of(graph)
    lows, highs = index_array(edges.count, graph.vertices), index_array(edges.count, graph.vertices)
    for first, (low, high) in edges.scan(ends_of):
        lows[first : first + len(low)], highs[first : first + len(low)] = low, high
    return lows, highs


def arcs_of_edges(graph: Graph) -> NDArray[np.int8]:
    """Count the stored (directed) edges of each undirected edge, 1 or 2, int8 [E_u]."""
    if graph.symmetric:
        return np.full(graph.edges // 2, 2, dtype=np.int8)
    csr, vertices = graph.csr, graph.vertices
    forward = sparse.csr_array((np.ones(csr.edges, np.int8), csr.indices, csr.indptr), shape=(vertices, vertices))
    both = sparse.csr_array(forward + forward.T)
    both.sort_indices()
    rows = np.repeat(np.arange(graph.vertices), np.diff(both.indptr))
    return np.asarray(both.data[both.indices > rows], dtype=np.int8)


def index_array(length: int, below: int) -> IndexArray:
    """Allocate an uninitialised array for ids below ``below``: int32 where such ids fit, otherwise int64."""
    if below <= 2**31:
        return np.empty(length, dtype=np.int32)
    return np.empty(length, dtype=np.int64)


@njit(cache=True, nogil=True)
def _upper_ends(first_row: Any, bounds: Any, sources: Any, vertices: Any, low: Any, high: Any) -> Any:
    """Write edges whose source exceeds their row to ``low``, ``high``. Returns their number; -1 for an invalid id."""
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


EdgeOrder = Literal["degree-sum", "input", "random"]
BLOCK_EDGES = 1 << 22  # 112 MiB while a block is read
MOST_BLOCKS = 512  # open files
MEMORY_BYTES = 1 << 26  # of rows that no file is made for


@dataclass(frozen=True)
class Block:
    """Consecutive edges in the order of assignment. ``first``, ``second`` [n]: ends of each edge; ``places`` [n]:
    places of the edges in :class:`UndirectedEdges`."""

    first: IndexArray
    second: IndexArray
    places: IndexArray


def blocks_in_order(
    edges: UndirectedEdges,
    degrees: IndexArray,
    edge_order: EdgeOrder,
    seed: int,
    spill: Path | None = None,
    block_edges: int = BLOCK_EDGES,
) -> Iterator[Block]:
    """Yield all edges by ascending degree sum ("degree-sum"; ties by place), by place ("input") or shuffled ("random").

    ``degrees`` [V]: degrees over these edges; ``seed`` seeds the shuffle. More than ``block_edges`` edges go through
    files in the folder ``spill`` (default: the temporary folder): 16 bytes an edge, 32 from 2**31 vertices or edges.
    """
    if edge_order == "input":
        for first, (low, high) in edges.scan(ends_of):
            places = index_array(len(low), edges.count)
            places[:] = np.arange(first, first + len(low))
            yield Block(low, high, places)
        return
    if edges.count == 0:
        return
    bits = (max(block_edges, -(-edges.count // MOST_BLOCKS)) - 1).bit_length()
    blocks = ((edges.count - 1) >> bits) + 1
    row, end = (index_array(0, below).dtype for below in (max(edges.vertices, edges.count), edges.vertices))
    kept, folder = max(1, MEMORY_BYTES // blocks), None if spill is None else str(spill)
    with ExitStack() as stack:
        # rows of a block: turn within it, ends, place; a small graph stays in memory
        files = [stack.enter_context(SpooledTemporaryFile(kept, dir=folder)) for _ in range(blocks)]
        for first, (low, high, turns) in _turns(edges, degrees, edge_order, seed):
            starts, rows = np.zeros(blocks + 1, dtype=np.int64), np.empty((len(turns), 4), dtype=row)
            _shelve(first, low, high, turns, bits, starts, rows)
            for block in np.flatnonzero(np.diff(starts)):
                files[block].write(rows[starts[block] : starts[block + 1]].data)

        def read(number: int) -> Block:
            rows = np.empty((min(1 << bits, edges.count - (number << bits)), 4), dtype=row)
            with files[number] as file:
                file.seek(0)
                got = file.readinto(rows.data.cast("B"))
            assert got == rows.nbytes
            found, places = np.empty((2, len(rows)), dtype=end), np.empty(len(rows), dtype=row)
            _settle(rows, found[0], found[1], places)
            return Block(found[0], found[1], places)

        # two readers: one block is on its way while another is assigned
        yield from in_order(read, blocks, threads=2)


Turns = Iterator[tuple[int, tuple[IndexArray, IndexArray, NDArray[np.int64]]]]


def _turns(edges: UndirectedEdges, degrees: IndexArray, edge_order: EdgeOrder, seed: int) -> Turns:
    """Yield pieces of edges: place of the first edge, then of each edge both ends and turn (position in the order)."""
    if edge_order == "random":
        key = stream_key(seed, "partition/edges")
        for first, (low, high) in edges.scan(ends_of):
            yield first, (low, high, permutation_slice(first, len(low), edges.count, key))
        return
    cursor = np.zeros(2 * int(degrees.max()) + 2, dtype=np.int64)
    for _, sums in edges.scan(lambda low, high: _degree_sums(low, high, degrees)):
        _count(sums, cursor)
    np.cumsum(cursor, out=cursor)
    for first, (low, high, sums) in edges.scan(lambda low, high: (low, high, _degree_sums(low, high, degrees))):
        _take_turns(sums, cursor)
        yield first, (low, high, sums)


@njit(cache=True, nogil=True)
def _degree_sums(low: Any, high: Any, degrees: Any) -> Any:
    sums = np.empty(len(low), dtype=np.int64)
    for edge in range(len(low)):
        sums[edge] = np.int64(degrees[low[edge]]) + np.int64(degrees[high[edge]])
    return sums


@njit(cache=True, nogil=True)
def _count(sums: Any, cursor: Any) -> None:
    """Count edges of degree sum s at ``cursor[s + 1]``; prefix sums then give the first turn of each sum."""
    for value in sums:
        cursor[value + 1] += 1


@njit(cache=True, nogil=True)
def _take_turns(sums: Any, cursor: Any) -> None:
    """Replace the degree sum of each edge by its turn: the next free one of that sum, from ``cursor``."""
    for edge in range(len(sums)):
        value = sums[edge]
        sums[edge] = cursor[value]
        cursor[value] += 1


@njit(cache=True, nogil=True)
def _shelve(first: Any, low: Any, high: Any, turns: Any, bits: Any, starts: Any, rows: Any) -> None:
    """Write edges to ``rows``, grouped by block; ``starts``, at first zero, receives the first row of each block."""
    for edge in range(len(turns)):
        starts[(turns[edge] >> bits) + 1] += 1
    for block in range(len(starts) - 1):
        starts[block + 1] += starts[block]
    place = starts[:-1].copy()
    within = (np.int64(1) << bits) - 1
    for edge in range(len(turns)):
        block = turns[edge] >> bits
        row = place[block]
        place[block] += 1
        rows[row, 0], rows[row, 1] = turns[edge] & within, low[edge]
        rows[row, 2], rows[row, 3] = high[edge], first + edge


@njit(cache=True, nogil=True)
def _settle(rows: Any, first: Any, second: Any, places: Any) -> None:
    for row in range(len(rows)):
        turn = rows[row, 0]
        first[turn], second[turn], places[turn] = rows[row, 1], rows[row, 2], rows[row, 3]
