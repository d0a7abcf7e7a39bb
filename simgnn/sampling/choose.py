"""Neighbour choice: uniform without replacement, a pure function of (batch seed, vertex, hop). Numba, without the GIL.

Draw k of a row is the counter-based number mix(mix(mix(seed + phi) ^ (vertex + phi)) ^ ((hop << 32 | k) + phi)), phi
the golden ratio in 64 bits. Floyd's algorithm (Bentley and Floyd, CACM 30(9), 1987) makes a subset of the draws: every
subset of F of the d positions is equally likely.
"""

from typing import Any

import numpy as np
from numba import njit

from simgnn.graph.hashing import GOLDEN, splitmix
from simgnn.partition.bits import bit_position, lowest_bit

WORD = 64
"""Rows of at most this many neighbours are chosen with one word of bits."""

_ZERO, _ONE = np.uint64(0), np.uint64(1)
_LOW = np.uint64(0xFFFFFFFF)
_S32 = np.uint64(32)


@njit(cache=True, nogil=True, inline="always")
def _below(bits: Any, bound: Any) -> Any:
    """High 64 bits of ``bits * bound`` for ``bound`` below 2**32: a number of 0..bound-1."""
    return ((bits >> _S32) * bound + (((bits & _LOW) * bound) >> _S32)) >> _S32


@njit(cache=True, nogil=True)
def count_choices(indptr: Any, frontier: Any, fanout: Any, bounds: Any) -> Any:
    """Prefix sums of the choices of each row into ``bounds`` [rows + 1]; their total. ``fanout`` < 0: all."""
    total = np.int64(0)
    bounds[0] = 0
    for row in range(len(frontier)):
        vertex = frontier[row]
        degree = indptr[vertex + 1] - indptr[vertex]
        total += degree if fanout < 0 or degree < fanout else fanout
        bounds[row + 1] = total
    return total


@njit(cache=True, nogil=True)
def choose(indptr: Any, indices: Any, frontier: Any, seed: Any, hop: Any, bounds: Any, chosen: Any, marks: Any) -> None:
    """Write the chosen neighbours of each vertex of ``frontier`` to ``chosen[bounds[row]:bounds[row + 1]]``.

    They keep the order of the graph's row. ``marks`` uint64 [words, 2]: the bit of each is set in column 0.
    ``seed`` uint64 is the batch's; ``hop`` counts from 1.
    """
    state = splitmix(seed, _ONE)
    turn = (np.uint64(hop) << _S32) + GOLDEN
    for row in range(len(frontier)):
        vertex = frontier[row]
        first = indptr[vertex]
        degree = indptr[vertex + 1] - first
        begin, end = np.int64(bounds[row]), np.int64(bounds[row + 1])
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
                    bit = _ONE << _below(splitmix(stream ^ (turn + np.uint64(k)), _ZERO), top + _ONE)
                    taken |= (_ONE << top) if taken & bit else bit
                for k in range(begin, end):
                    bit = lowest_bit(taken)
                    chosen[k] = indices[first + bit_position(bit)]
                    taken ^= bit
            else:
                for k in range(count):
                    last = np.int64(degree - count + k)
                    drawn = np.int64(_below(splitmix(stream ^ (turn + np.uint64(k)), _ZERO), np.uint64(last + 1)))
                    _insert(chosen, begin, begin + k, drawn, last)
                for k in range(begin, end):
                    chosen[k] = indices[first + chosen[k]]
        for k in range(begin, end):
            source = chosen[k]
            marks[source >> 6, 0] |= _ONE << np.uint64(source & 63)


@njit(cache=True, nogil=True, inline="always")
def _insert(positions: Any, begin: Any, end: Any, drawn: Any, last: Any) -> None:
    """Insert ``drawn`` into ascending ``positions[begin:end]``; where it is there, ``last``, which exceeds them all."""
    place = end
    while place > begin and positions[place - 1] > drawn:
        place -= 1
    if place > begin and positions[place - 1] == drawn:
        positions[end] = last
        return
    for k in range(end, place, -1):
        positions[k] = positions[k - 1]
    positions[place] = drawn
