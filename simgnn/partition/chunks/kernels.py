"""Numba kernels over position masks: for each vertex a set of batch positions, as bit words uint64 [V, words].

Position j of a rank is bit j % 64 of word j // 64. Vertices are in the order of :class:`IdMaps`, by gid.
"""

import numpy as np
from numba import njit

from simgnn.graph.bits import bit_of, bit_position, lowest_bit, members_of, ones

_ZERO, _ONE, _LAST = np.uint64(0), np.uint64(1), np.uint64(63)


@njit(cache=True, nogil=True)
def mark_neighbors(indptr, indices, members, gid_of, bounds, positions, first, with_self, masks):  # type: ignore[no-untyped-def]
    """Add position ``positions[k]`` to the mask of every source of chunk k, and, ``with_self``, of its own rows.

    ``members`` int64 [n]: vertices of the rank by gid, from gid ``first`` on; chunk k has the members ``bounds[k]`` to
    ``bounds[k + 1]``. ``gid_of`` int64 [V]. ``masks`` [V, words] is changed in place.
    """
    for chunk in range(len(bounds) - 1):
        word, bit = positions[chunk] >> 6, bit_of(positions[chunk])
        for row in range(bounds[chunk], bounds[chunk + 1]):
            if with_self:
                masks[first + row, word] |= bit
            for edge in range(indptr[members[row]], indptr[members[row] + 1]):
                masks[gid_of[indices[edge]], word] |= bit


@njit(cache=True, nogil=True)
def add_moved(masks, positions, total):  # type: ignore[no-untyped-def]
    """Add to the set of each vertex in ``total`` [V, words] the ``positions[j]`` of all j in ``masks`` [V, words]."""
    members = np.empty(64 * masks.shape[1], dtype=np.int64)
    for vertex in range(len(masks)):
        for place in members[: members_of(masks[vertex], members)]:
            total[vertex, positions[place] >> 6] |= bit_of(positions[place])


@njit(cache=True, nogil=True)
def common_rows(left, right, counts):  # type: ignore[no-untyped-def]
    """Add to ``counts[j, k]`` the number of vertices that have j in ``left`` and k in ``right``, both [V, words]: the
    product of two sparse incidence matrices. Work: the sum over vertices of the product of both sizes."""
    lefts = np.empty(64 * left.shape[1], dtype=np.int64)
    rights = np.empty(64 * right.shape[1], dtype=np.int64)
    for vertex in range(len(left)):
        many = members_of(left[vertex], lefts)
        if many == 0:
            continue
        others = members_of(right[vertex], rights)
        for one in range(many):
            row = counts[lefts[one]]
            for other in range(others):
                row[rights[other]] += 1


@njit(cache=True, nogil=True)
def count_rows(masks, begin, end):  # type: ignore[no-untyped-def]
    """Count (vertex, position) pairs, int64 [2, 2]: row 0 of all vertices, row 1 of those outside ``begin`` to ``end``;
    column 0 all pairs, column 1 those whose position before is not in the set, too."""
    counts = np.zeros((2, 2), dtype=np.int64)
    for vertex in range(len(masks)):
        every, fresh, carried = 0, 0, _ZERO
        for word in masks[vertex]:
            every += ones(word)
            fresh += ones(word & ~((word << _ONE) | carried))
            carried = word >> _LAST
        counts[0, 0] += every
        counts[0, 1] += fresh
        if vertex < begin or vertex >= end:
            counts[1, 0] += every
            counts[1, 1] += fresh
    return counts


@njit(cache=True, nogil=True)
def count_members(masks, positions):  # type: ignore[no-untyped-def]
    """Count the vertices that have each position, int64 [positions]."""
    counts = np.zeros(positions, dtype=np.int64)
    members = np.empty(64 * masks.shape[1], dtype=np.int64)
    for vertex in range(len(masks)):
        for place in members[: members_of(masks[vertex], members)]:
            counts[place] += 1
    return counts


@njit(cache=True, nogil=True)
def list_members(masks, starts, ids):  # type: ignore[no-untyped-def]
    """Fill ``ids[starts[j]:starts[j + 1]]`` with the vertices that have position j, ascending."""
    cursor = starts[:-1].copy()
    for vertex in range(len(masks)):
        for place in range(masks.shape[1]):
            left = masks[vertex, place]
            while left != _ZERO:
                bit = lowest_bit(left)
                left ^= bit
                position = place * 64 + bit_position(bit)
                ids[cursor[position]] = vertex
                cursor[position] += 1


@njit(cache=True, nogil=True)
def place_rows(before, here, masks, position, vertex_of, slot_of, free, top, slots):  # type: ignore[no-untyped-def]
    """Give each row of a batch its slot: a row of the batch before keeps its own, others get, in ascending order, the
    lowest free ones. Returns the number of slots in use so far.

    ``before``, ``here``: gids held in the batch before and in this one, ascending; ``masks`` [V, words]: the positions
    in which the rank holds each gid. ``slot_of`` int32 [V] by ``vertex_of`` a gid, and ``free`` bool [slots], are
    carried from batch to batch; ``slots`` int32 [here] is filled. Source: HongTu, merged buffers, as an interval
    colouring: all rows that leave do so before any row comes, so that a heap of free slots yields them in order.
    """
    word, bit = position >> 6, bit_of(position)
    for gid in before:
        if not masks[gid, word] & bit:
            free[slot_of[vertex_of[gid]]] = True
    earlier, lowest = position - 1, 0
    for place in range(len(here)):
        gid = here[place]
        vertex = vertex_of[gid]
        if position == 0 or not masks[gid, earlier >> 6] & bit_of(earlier):
            while lowest < top and not free[lowest]:
                lowest += 1
            if lowest < top:
                free[lowest] = False
                slot_of[vertex] = lowest
            else:
                slot_of[vertex] = top
                top += 1
        slots[place] = slot_of[vertex]
    return top
