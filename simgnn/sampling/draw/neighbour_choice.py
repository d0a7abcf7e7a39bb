"""Neighbour choice: uniform without replacement, a pure function of (batch seed, vertex, hop). Numba, without the GIL.

Draw k of a row is the counter-based number mix(mix(mix(seed + phi) ^ (vertex + phi)) ^ ((hop << 32 | k) + phi)), phi
the golden ratio in 64 bits. Floyd's algorithm (Bentley and Floyd, CACM 30(9), 1987) makes a subset of the draws: every
subset of F of the d positions is equally likely.
"""

from typing import Any

import numpy as np
from numba import njit

from simgnn.graph.bits import bit_position, lowest_bit
from simgnn.graph.hashing import GOLDEN, splitmix

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


@njit(cache=True, nogil=True, inline="always")
def _choose_row(
    indices: Any, first: Any, degree: Any, vertex: Any, state: Any, turn: Any, chosen: Any, begin: Any, end: Any
) -> None:
    """Write ``end - begin`` of the ``degree`` entries of ``indices`` from ``first`` on to ``chosen[begin:end]``, in
    their order; ``vertex``, the row's id in the whole graph, is what the draws depend on."""
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
        begin, end = np.int64(bounds[row]), np.int64(bounds[row + 1])
        _choose_row(indices, first, indptr[vertex + 1] - first, vertex, state, turn, chosen, begin, end)
        for k in range(begin, end):
            source = chosen[k]
            marks[source >> 6, 0] |= _ONE << np.uint64(source & 63)


@njit(cache=True, nogil=True)
def choose_in_part(
    indptr: Any, indices: Any, ids: Any, rows: Any, seed: Any, hop: Any, bounds: Any, chosen: Any
) -> None:
    """As :func:`choose`, of a part of the graph in numbers of its own: ``rows`` and what is ``chosen`` are such
    numbers, ``ids[row]`` is the vertex in the whole graph. A part that has whole rows in the graph's order chooses what
    the graph would."""
    state = splitmix(seed, _ONE)
    turn = (np.uint64(hop) << _S32) + GOLDEN
    for k in range(len(rows)):
        row = rows[k]
        first = indptr[row]
        begin, end = np.int64(bounds[k]), np.int64(bounds[k + 1])
        _choose_row(indices, first, indptr[row + 1] - first, ids[row], state, turn, chosen, begin, end)


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
