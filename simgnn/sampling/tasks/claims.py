"""Claims of vertices as bits in memory that several threads set at once: exactly one of them takes a vertex.

A set of claims is the column of bits that :mod:`simgnn.sampling.draw.sampler` describes, as a flat uint64 array: the
bit of vertex v is bit v % 64 of word ``stride * (v // 64)``.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_ONE = np.uint64(1)


@intrinsic
def atomic_or(typing_context: Any, words: Any, place: Any, bits: Any) -> Any:
    """Set ``bits`` in ``words[place]`` (flat, contiguous uint64) in one step, and return the word as it was before."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.atomic_rmw("or", builder.gep(array.data, [arguments[1]]), arguments[2], "monotonic")

    flat = types.Array(types.uint64, 1, "C")
    return types.uint64(flat, types.int64, types.uint64), generate


@njit(cache=True, nogil=True, inline="always")
def claim(words: Any, stride: Any, vertex: Any) -> Any:
    """Claim a vertex; return whether nobody had claimed it."""
    place = np.int64(stride) * (np.int64(vertex) >> 6)
    bit = _ONE << np.uint64(vertex & 63)
    if words[place] & bit:  # most vertices are met often: a plain load costs less than a locked write
        return False
    return (atomic_or(words, place, bit) & bit) == np.uint64(0)


@njit(cache=True, nogil=True)
def claim_all(words: Any, stride: Any, vertices: Any, taken: Any) -> Any:
    """Claim ``vertices``; write those that nobody had claimed to the start of ``taken``, and return their number."""
    found = 0
    for vertex in vertices:
        if claim(words, stride, vertex):
            taken[found] = vertex
            found += 1
    return found


@njit(cache=True, nogil=True)
def enter(words: Any, vertices: Any, degrees: Any, taken: Any, found: Any) -> Any:
    """Claim ``vertices`` for the next hop (a set of stride 2) and append those that nobody had claimed to ``taken``,
    which holds ``found`` so far. Return (vertices in ``taken``, sum of the degrees of those appended): ``degrees`` [V],
    or None where nobody asks."""
    work = np.int64(0)
    for vertex in vertices:
        if claim(words, 2, vertex):
            taken[found] = vertex
            found += 1
            if degrees is not None:
                work += degrees[vertex]
    return found, work
