"""Assembles a mini-batch from seed vertices: blocks of sampled edges, and the bits that mark which vertices it holds.

The bits deduplicate vertices without a sort and without a table of all vertices. ``marks`` uint64 [hops + 1, words, 2]:
in column 0, bit v % 64 of word v // 64 of row h says that hop h added vertex v (row 0: the seeds); column 1 is the
position in the batch of the first vertex of that word. Positions of a hop's new vertices, ascending by id, are prefix
sums of the bits: 16 bytes for 64 vertices stay in the processor's cache, where a table of positions would not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simgnn.errors import GraphError
from simgnn.graph.bits import bit_position, lowest_bit, ones
from simgnn.graph.csr import CSR, IndexArray
from simgnn.graph.hashing import GOLDEN, splitmix

WORD = 64
"""Rows of at most this many neighbours are chosen with one word of bits."""

_ZERO, _ONE = np.uint64(0), np.uint64(1)
_LOW = np.uint64(0xFFFFFFFF)
_S32 = np.uint64(32)


@njit(cache=True, nogil=True, inline="always")
def below(bits: Any, bound: Any) -> Any:
    """Map 64 random bits to 0..bound-1: the high 64 bits of ``bits * bound``, for ``bound`` below 2**32."""
    return ((bits >> _S32) * bound + (((bits & _LOW) * bound) >> _S32)) >> _S32


@njit(cache=True, nogil=True)
def count_choices(indptr: Any, frontier: Any, fanout: Any, bounds: Any) -> Any:
    """Write prefix sums of the number of neighbours to choose for each vertex of ``frontier`` to ``bounds`` [rows + 1];
    return the total. ``fanout`` < 0: all."""
    total = np.int64(0)
    bounds[0] = 0
    for row in range(len(frontier)):
        vertex = frontier[row]
        degree = indptr[vertex + 1] - indptr[vertex]
        total += degree if fanout < 0 or degree < fanout else fanout
        bounds[row + 1] = total
    return total


@njit(cache=True, nogil=True, inline="always")
def choose_row(
    indices: Any, first: Any, degree: Any, vertex: Any, state: Any, turn: Any, chosen: Any, begin: Any, end: Any
) -> None:
    """Choose ``end - begin`` of the ``degree`` entries of ``indices`` from ``first`` on at random, and write them in
    their order to ``chosen[begin:end]``. The choice depends on ``vertex``, the row's id in the whole graph."""
    count = end - begin
    if count == degree:
        for k in range(count):
            chosen[begin + k] = indices[first + k]
    else:
        stream = splitmix(state ^ (np.uint64(vertex) + GOLDEN), _ZERO)
        if degree <= WORD:
            taken = _ZERO
            for k in range(count):
                top = np.uint64(degree - count + k)
                bit = _ONE << below(splitmix(stream ^ (turn + np.uint64(k)), _ZERO), top + _ONE)
                taken |= (_ONE << top) if taken & bit else bit
            for k in range(begin, end):
                bit = lowest_bit(taken)
                chosen[k] = indices[first + bit_position(bit)]
                taken ^= bit
        else:
            for k in range(count):
                last = np.int64(degree - count + k)
                drawn = np.int64(below(splitmix(stream ^ (turn + np.uint64(k)), _ZERO), np.uint64(last + 1)))
                _insert(chosen, begin, begin + k, drawn, last)
            for k in range(begin, end):
                chosen[k] = indices[first + chosen[k]]


@njit(cache=True, nogil=True)
def choose(indptr: Any, indices: Any, frontier: Any, seed: Any, hop: Any, bounds: Any, chosen: Any, marks: Any) -> None:
    """Write the chosen neighbours of each vertex of ``frontier``, in the graph's order, to
    ``chosen[bounds[row]:bounds[row + 1]]``, and set their bits in column 0 of ``marks`` uint64 [words, 2]."""
    state = splitmix(seed, _ONE)
    turn = (np.uint64(hop) << _S32) + GOLDEN
    for row in range(len(frontier)):
        vertex = frontier[row]
        first = indptr[vertex]
        begin, end = np.int64(bounds[row]), np.int64(bounds[row + 1])
        choose_row(indices, first, indptr[vertex + 1] - first, vertex, state, turn, chosen, begin, end)
        for k in range(begin, end):
            source = chosen[k]
            marks[source >> 6, 0] |= _ONE << np.uint64(source & 63)


@njit(cache=True, nogil=True)
def choose_in_part(
    indptr: Any, indices: Any, ids: Any, rows: Any, seed: Any, hop: Any, bounds: Any, chosen: Any
) -> None:
    """Choose like :func:`choose`, in a part of the graph with local ids: ``ids[row]`` is the row's id in the whole
    graph. A part with complete rows in graph order gives the same choices."""
    state = splitmix(seed, _ONE)
    turn = (np.uint64(hop) << _S32) + GOLDEN
    for k in range(len(rows)):
        row = rows[k]
        first = indptr[row]
        begin, end = np.int64(bounds[k]), np.int64(bounds[k + 1])
        choose_row(indices, first, indptr[row + 1] - first, ids[row], state, turn, chosen, begin, end)


@njit(cache=True, nogil=True, inline="always")
def _insert(positions: Any, begin: Any, end: Any, drawn: Any, last: Any) -> None:
    """Insert ``drawn`` into ascending ``positions[begin:end]``; if present, append ``last``, greater than all."""
    place = end
    while place > begin and positions[place - 1] > drawn:
        place -= 1
    if place > begin and positions[place - 1] == drawn:
        positions[end] = last
        return
    for k in range(end, place, -1):
        positions[k] = positions[k - 1]
    positions[place] = drawn


MOST_EDGES = 2**31 - 1
"""Most edges of one block, since its pointers are int32."""


@dataclass(frozen=True)
class Block:
    """The sampled edges of one hop, by destination: ``indptr`` int32 [destinations + 1]; ``sources`` int32 [edges],
    positions in the batch's ``vertices``. Destination k is position k, so a block's destinations are also the first of
    its source rows."""

    indptr: NDArray[np.int32]
    sources: NDArray[np.int32]


@dataclass(frozen=True)
class Batch:
    """A mini-batch. ``vertices`` [m], the ids of its input rows: seeds in their order, then the new ones of each hop,
    ascending. ``sizes`` int64 [hops + 1]: the first ``sizes[h]`` are the rows after hop h; ``blocks[h - 1]`` is hop h.
    Layer l of L uses ``blocks[L - l]``. ``pairs`` int32 [n, 1 + negatives]: in unsupervised training the first n rows
    are the seeds; the row of the positive of each, and of its negatives (-1: none). A vertex may then be several rows
    (:mod:`simgnn.sampling.draw.branches`). None: every vertex is one row, and the first ``sizes[0]`` are the seeds."""

    vertices: IndexArray
    sizes: NDArray[np.int64]
    blocks: tuple[Block, ...]
    pairs: NDArray[np.int32] | None = None

    @property
    def seeds(self) -> IndexArray:
        """The vertices for which the batch computes outputs."""
        return self.vertices[: self.sizes[0]]


class Assembly:
    """Builds batches, one at a time, from neighbours that the caller chooses: call :meth:`begin`; for each hop write
    them to the array of :meth:`room`, set their bits in :attr:`marks` and call :meth:`extend`; finally :meth:`batch`.
    ``ids``: dtype of vertex ids. Uses (hops + 1) * V / 4 bytes."""

    def __init__(self, vertices: int, hops: int, ids: Any) -> None:
        self.vertices = vertices
        self.ids = np.dtype(ids)
        self._marks = np.zeros((hops + 1, -(-vertices // 64), 2), np.uint64)
        self.frontier: Any = np.empty(0, self.ids)
        """The vertices that the next hop expands: all in the batch so far [n]."""
        self._places = np.empty(0, np.int64)
        self._sizes: list[int] = []
        self._blocks: list[Block] = []

    def begin(self, seeds: NDArray[Any]) -> None:
        """Begin a batch of ``seeds`` [n]. Raises :class:`GraphError` for invalid or repeated ids."""
        self._marks[:] = 0
        if len(seeds) and not 0 <= int(seeds.min()) <= int(seeds.max()) < self.vertices:
            raise GraphError(f"seeds: expected vertices 0..{self.vertices - 1}, got {seeds.min()}..{seeds.max()}")
        typed = seeds.astype(self.ids)
        mark(self._marks, typed)
        different = settle(self._marks, 0, 0)
        if different != len(typed):
            raise GraphError(f"seeds: got {len(typed)} of which {different} are different, expected no vertex twice")
        self._places = np.empty(len(typed), np.int64)
        rank_seeds(self._marks, typed, self._places)
        self.frontier, self._sizes, self._blocks = typed, [len(typed)], []

    @property
    def hop(self) -> int:
        """Number of the next hop, from 1."""
        return len(self._blocks) + 1

    @property
    def marks(self) -> NDArray[np.uint64]:
        """Bits of the next hop, uint64 [words, 2]; the docstring of the module describes them."""
        found: NDArray[np.uint64] = self._marks[self.hop]
        return found

    def room(self, edges: int) -> Any:
        """Allocate the array of chosen neighbours of a hop. Raises :class:`GraphError` for 2**31 edges or more."""
        self.check_edges(edges)
        return np.empty(edges, self.ids)

    def check_edges(self, edges: int) -> None:
        """Raise :class:`GraphError` if the next hop's block would have 2**31 edges or more."""
        if edges > MOST_EDGES:
            raise GraphError(
                f"batching.fanouts: hop {self.hop} of a batch would draw {edges} edges, expected at most {MOST_EDGES}: "
                "lower batching.batch_size or the fan-outs"
            )

    def extend(self, bounds: NDArray[np.int64], chosen: Any) -> None:
        """End the hop: the chosen neighbours of vertex k of the frontier are ``chosen[bounds[k]:bounds[k + 1]]``."""
        hop = self.hop
        fresh = self._settled(hop)
        sources = np.empty(len(chosen), np.int32)
        number(self._marks, hop, chosen, self._places, sources)
        self._grow(fresh, Block(bounds.astype(np.int32), sources))

    def _settled(self, hop: int) -> Any:
        """Number the vertices that a hop added, and return them, ascending."""
        fresh = np.empty(settle(self._marks, hop, len(self.frontier)), self.ids)
        list_marked(self._marks, hop, fresh)
        return fresh

    def _grow(self, fresh: Any, block: Block) -> None:
        """Append a hop's new vertices and its block to the batch."""
        self._blocks.append(block)
        self.frontier = np.concatenate((self.frontier, fresh))
        self._sizes.append(len(self.frontier))

    def batch(self) -> Batch:
        """Return the finished batch and drop all references to it."""
        made = Batch(self.frontier, np.array(self._sizes, np.int64), tuple(self._blocks))
        self.frontier, self._places, self._blocks = self.frontier[:0].copy(), self._places[:0].copy(), []
        return made


class Sampler:
    """Samples batches of one graph, for one thread at a time. ``fanouts``: maximum number of neighbours of a vertex, by
    hop from the seeds; -1 for all. Each hop expands all vertices so far. Uses (hops + 1) * V / 4 bytes."""

    def __init__(self, csr: CSR, fanouts: Sequence[int]) -> None:
        self.fanouts = tuple(fanouts)
        self._indptr = np.asarray(csr.indptr)  # Numba knows no memory-mapped arrays, NumPy sees them as plain ones
        self._indices = np.asarray(csr.indices)
        self._assembly = Assembly(csr.rows, len(self.fanouts), self._indices.dtype)

    def sample(self, seeds: NDArray[Any], batch_seed: int) -> Batch:
        """Sample the batch of distinct ``seeds`` [n]: a pure function of the graph's rows and the arguments.
        ``batch_seed``: see :func:`simgnn.sampling.draw.seeds.batch_seed`. Raises :class:`GraphError` for invalid or
        repeated seeds, and for a block of 2**31 edges or more."""
        assembly, seed = self._assembly, np.uint64(batch_seed)
        assembly.begin(seeds)
        for hop, fanout in enumerate(self.fanouts, start=1):
            frontier = assembly.frontier
            bounds = np.empty(len(frontier) + 1, np.int64)
            chosen = assembly.room(count_choices(self._indptr, frontier, fanout, bounds))
            choose(self._indptr, self._indices, frontier, seed, hop, bounds, chosen, assembly.marks)
            assembly.extend(bounds, chosen)
        return assembly.batch()


@njit(cache=True, nogil=True)
def mark(marks: Any, vertices: Any) -> None:
    """Set the bits of ``vertices`` in row 0 of ``marks``."""
    for vertex in vertices:
        marks[0, vertex >> 6, 0] |= _ONE << np.uint64(vertex & 63)


@njit(cache=True, nogil=True)
def settle(marks: Any, hop: Any, start: Any) -> Any:
    """Remove vertices of earlier hops from row ``hop``, number the rest from ``start``, and return how many remain."""
    total = np.int64(start)
    for word in range(marks.shape[1]):
        fresh = marks[hop, word, 0]
        if fresh != _ZERO:
            for earlier in range(hop):
                fresh &= ~marks[earlier, word, 0]
            marks[hop, word, 0] = fresh
        marks[hop, word, 1] = np.uint64(total)
        total += ones(fresh)
    return total - start


@njit(cache=True, nogil=True)
def list_marked(marks: Any, hop: Any, out: Any) -> None:
    """Write the vertices of row ``hop`` to ``out``, ascending."""
    at = 0
    for word in range(marks.shape[1]):
        left = marks[hop, word, 0]
        while left != _ZERO:
            bit = lowest_bit(left)
            out[at] = word * 64 + bit_position(bit)
            at += 1
            left ^= bit


@njit(cache=True, nogil=True)
def rank_seeds(marks: Any, seeds: Any, places: Any) -> None:
    """Write to ``places[k]`` the position in the batch of the seed with the k-th lowest id; seeds keep their order."""
    for place in range(len(seeds)):
        seed = seeds[place]
        bit = _ONE << np.uint64(seed & 63)
        row = marks[0, seed >> 6]
        places[np.int64(row[1]) + ones(row[0] & (bit - _ONE))] = place


@njit(cache=True, nogil=True, inline="always")
def position(marks: Any, hop: Any, vertex: Any, places: Any) -> Any:
    """The position in the batch of ``vertex``, which one of the rows 0..hop must contain."""
    word = vertex >> 6
    bit = _ONE << np.uint64(vertex & 63)
    at = hop
    while not (marks[at, word, 0] & bit):
        at -= 1
    place = np.int64(marks[at, word, 1]) + ones(marks[at, word, 0] & (bit - _ONE))
    return places[place] if at == 0 else place


@njit(cache=True, nogil=True)
def number(marks: Any, hop: Any, vertices: Any, places: Any, out: Any) -> None:
    """Write to ``out`` the :func:`position` in the batch of each of ``vertices``."""
    for k in range(len(vertices)):
        out[k] = position(marks, hop, vertices[k], places)


@njit(cache=True, nogil=True)
def put_chosen(rows: Any, starts: Any, found: Any, ids: Any, bounds: Any, chosen: Any, marks: Any) -> None:
    """Copy the neighbours ``found[starts[k]:starts[k + 1]]`` of ``rows[k]``, as ids of the whole graph by ``ids``, to
    ``chosen`` from ``bounds[rows[k]]`` on, and set their bits in ``marks`` uint64 [words, 2]."""
    for k in range(len(rows)):
        at = bounds[rows[k]]
        for place in range(starts[k], starts[k + 1]):
            vertex = ids[found[place]]
            chosen[at] = vertex
            at += 1
            marks[vertex >> 6, 0] |= _ONE << np.uint64(vertex & 63)
