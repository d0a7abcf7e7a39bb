"""From seed vertices to blocks: one mini-batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simgnn.errors import GraphError
from simgnn.graph.bits import bit_position, lowest_bit, ones
from simgnn.graph.csr import CSR, IndexArray
from simgnn.sampling.draw.neighbour_choice import choose, count_choices

MOST_EDGES = 2**31 - 1
"""Of one block: its pointers are int32."""


@dataclass(frozen=True)
class Block:
    """The sampled edges of one hop, by destination: edges point towards the seeds.

    ``indptr`` int32 [destinations + 1]; ``sources`` int32 [edges], places in the batch's ``vertices``. Destination k is
    place k, so that the first rows of a block's sources are its destinations themselves.
    """

    indptr: NDArray[np.int32]
    sources: NDArray[np.int32]


@dataclass(frozen=True)
class Batch:
    """A mini-batch. ``vertices`` [m], the ids of its input rows: seeds in their order, then what each hop brought in,
    ascending. ``sizes`` int64 [hops + 1]: the first ``sizes[h]`` are the rows after hop h; ``blocks[h - 1]`` is hop h.

    Layer l of L uses block L - l.
    """

    vertices: IndexArray
    sizes: NDArray[np.int64]
    blocks: tuple[Block, ...]

    @property
    def seeds(self) -> IndexArray:
        """The vertices whose outputs the batch is for."""
        return self.vertices[: self.sizes[0]]

    def global_sources(self, hop: int) -> Any:
        """Ids of the sources of every edge of ``hop`` (from 1)."""
        return self.vertices[self.blocks[hop - 1].sources]


class Assembly:
    """Makes batches, one at a time, of the neighbours that their hops chose. Keeps (hops + 1) * V / 4 bytes.

    :meth:`begin`; for each hop fill :meth:`room` and mark what is in it in :attr:`marks`, then :meth:`extend`; at last
    :meth:`batch`. ``ids``: type of the graph's ids.
    """

    def __init__(self, vertices: int, hops: int, ids: Any) -> None:
        self.vertices = vertices
        self.ids = np.dtype(ids)
        self._marks = np.zeros((hops + 1, -(-vertices // 64), 2), np.uint64)
        self._frontier: Any = np.empty(0, self.ids)
        self._places = np.empty(0, np.int64)
        self._sizes: list[int] = []
        self._blocks: list[Block] = []

    def begin(self, seeds: NDArray[Any]) -> None:
        """A new batch of ``seeds`` [n]. Raises :class:`GraphError` for some that are no vertices or not different."""
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
        self._frontier, self._sizes, self._blocks = typed, [len(typed)], []

    @property
    def hop(self) -> int:
        """The hop that is next, from 1."""
        return len(self._blocks) + 1

    @property
    def frontier(self) -> Any:
        """All that the batch holds before that hop: what it expands [n]."""
        return self._frontier

    @property
    def marks(self) -> NDArray[np.uint64]:
        """Of that hop, uint64 [words, 2]: see :mod:`simgnn.sampling.draw.sampler`."""
        found: NDArray[np.uint64] = self._marks[self.hop]
        return found

    def room(self, edges: int) -> Any:
        """An array for the neighbours of the frontier. Raises :class:`GraphError` for 2**31 or more."""
        if edges > MOST_EDGES:
            raise GraphError(
                f"batching.fanouts: hop {self.hop} of a batch would draw {edges} edges, expected at most {MOST_EDGES}: "
                "lower batching.batch_size or the fan-outs"
            )
        return np.empty(edges, self.ids)

    def extend(self, bounds: NDArray[np.int64], chosen: Any) -> None:
        """End the hop: row k of the frontier has the neighbours ``chosen[bounds[k]:bounds[k + 1]]``."""
        hop = self.hop
        fresh = np.empty(settle(self._marks, hop, len(self._frontier)), self.ids)
        list_marked(self._marks, hop, fresh)
        sources = np.empty(len(chosen), np.int32)
        number(self._marks, hop, chosen, self._places, sources)
        self._blocks.append(Block(bounds.astype(np.int32), sources))
        self._frontier = np.concatenate((self._frontier, fresh))
        self._sizes.append(len(self._frontier))

    def batch(self) -> Batch:
        """What was begun, after its last hop; nothing of it is kept here."""
        made = Batch(self._frontier, np.array(self._sizes, np.int64), tuple(self._blocks))
        self._frontier, self._places, self._blocks = self._frontier[:0].copy(), self._places[:0].copy(), []
        return made


class Sampler:
    """Samples batches of one graph. Keeps (hops + 1) * V / 4 bytes to work with; one thread at a time.

    ``fanouts``: neighbours of each vertex at most, by hop from the seeds; -1 for all. A vertex that an earlier hop
    brought in is expanded again at each later hop.
    """

    def __init__(self, csr: CSR, fanouts: Sequence[int]) -> None:
        self.fanouts = tuple(fanouts)
        self._indptr = np.asarray(csr.indptr)  # Numba knows no memory-mapped arrays, NumPy sees them as plain ones
        self._indices = np.asarray(csr.indices)
        self._assembly = Assembly(csr.rows, len(self.fanouts), self._indices.dtype)

    def sample(self, seeds: NDArray[Any], batch_seed: int) -> Batch:
        """The batch of ``seeds``, different vertices [n], under a seed of ``simgnn.sampling.draw.seeds.batch_seed``.

        A pure function of the graph's rows, ``seeds``, ``batch_seed`` and fan-outs. Raises :class:`GraphError` for
        seeds that are no vertices or not different, and for a block of 2**31 edges or more.
        """
        assembly, seed = self._assembly, np.uint64(batch_seed)
        assembly.begin(seeds)
        for hop, fanout in enumerate(self.fanouts, start=1):
            frontier = assembly.frontier
            bounds = np.empty(len(frontier) + 1, np.int64)
            chosen = assembly.room(count_choices(self._indptr, frontier, fanout, bounds))
            choose(self._indptr, self._indices, frontier, seed, hop, bounds, chosen, assembly.marks)
            assembly.extend(bounds, chosen)
        return assembly.batch()


_ZERO, _ONE = np.uint64(0), np.uint64(1)


@njit(cache=True, nogil=True)
def mark(marks: Any, vertices: Any) -> None:
    """Set the bits of ``vertices`` in row 0."""
    for vertex in vertices:
        marks[0, vertex >> 6, 0] |= _ONE << np.uint64(vertex & 63)


@njit(cache=True, nogil=True)
def settle(marks: Any, hop: Any, start: Any) -> Any:
    """Keep in row ``hop`` only what no earlier row has, number it from ``start`` on, and return how many they are."""
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
    """The vertices of row ``hop``, ascending."""
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
    """Place in the batch (out) of the k-th seed by id: seeds alone keep an order of their own."""
    for place in range(len(seeds)):
        seed = seeds[place]
        bit = _ONE << np.uint64(seed & 63)
        row = marks[0, seed >> 6]
        places[np.int64(row[1]) + ones(row[0] & (bit - _ONE))] = place


@njit(cache=True, nogil=True)
def number(marks: Any, hop: Any, vertices: Any, places: Any, out: Any) -> None:
    """Place in the batch of each of ``vertices``, all of which rows 0..hop hold."""
    for k in range(len(vertices)):
        vertex = vertices[k]
        word = vertex >> 6
        bit = _ONE << np.uint64(vertex & 63)
        at = hop
        while not (marks[at, word, 0] & bit):
            at -= 1
        place = np.int64(marks[at, word, 1]) + ones(marks[at, word, 0] & (bit - _ONE))
        out[k] = places[place] if at == 0 else place


@njit(cache=True, nogil=True)
def put_chosen(rows: Any, starts: Any, found: Any, ids: Any, bounds: Any, chosen: Any, marks: Any) -> None:
    """Put the neighbours of some rows of a frontier among those of all: ``found[starts[k]:starts[k + 1]]``, by their
    ``ids``, go to ``chosen`` from ``bounds[rows[k]]`` on. ``marks`` uint64 [words, 2]: the bit of each is set."""
    for k in range(len(rows)):
        at = bounds[rows[k]]
        for place in range(starts[k], starts[k + 1]):
            vertex = ids[found[place]]
            chosen[at] = vertex
            at += 1
            marks[vertex >> 6, 0] |= _ONE << np.uint64(vertex & 63)
