"""Which vertices a batch holds, as bits: deduplication without a sort and without a table of all vertices.

``marks`` uint64 [hops + 1, words, 2]. Column 0: bit v % 64 of word v // 64 of row h says that hop h brought in vertex v
(row 0: the seeds). Column 1: place in the batch of the first vertex of that word. So the places of a hop's new
vertices, ascending by id, are prefix sums, and 16 bytes for 64 vertices stay in the cache where a table of places would
not.
"""

from typing import Any

import numpy as np
from numba import njit

from simgnn.graph.bits import bit_position, lowest_bit, ones

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
