"""Locality of an index stream, and an order of vertices that improves it."""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph

from simgnn.graph.bits import ones
from simgnn.graph.build import is_symmetric
from simgnn.graph.csr import CSR

BINS = 32

_U1 = np.uint64(1)


@njit(cache=True, nogil=True)
def _histogram(indices: Any, columns: Any, window: Any, bins: Any) -> Any:
    """Count reads by the bin of their stack distance.

    ``word`` has one bit for each read, set while that is the latest read of its row; ``tree`` is a Fenwick tree over
    the set bits of its words. The distance of a read is the number of set bits from the row's previous read on. After
    ``window`` reads, the latest ones are renumbered in order, so tree and bits stay small: O(E log V) in all.
    """
    words = window >> 6
    word = np.zeros(words, np.uint64)
    tree = np.zeros(words + 1, np.int64)
    last = np.full(columns, -1, np.int64)
    reader = np.empty(window, np.int64)
    counts = np.zeros(bins, np.int64)
    now = 0
    rows = 0
    for k in range(len(indices)):
        if now == window:
            fresh = 0
            for moment in range(window):
                if (word[moment >> 6] >> np.uint64(moment & 63)) & _U1:
                    row = reader[moment]
                    reader[fresh] = row
                    last[row] = fresh
                    fresh += 1
            word[:] = 0
            tree[:] = 0
            for moment in range(fresh):
                word[moment >> 6] |= _U1 << np.uint64(moment & 63)
            for w in range(words):
                tree[w + 1] += ones(word[w])
                up = (w + 1) + ((w + 1) & -(w + 1))
                if up <= words:
                    tree[up] += tree[w + 1]
            now = fresh
        row = indices[k]
        before = last[row]
        if before < 0:
            rows += 1
        else:
            place = before >> 6
            bit = _U1 << np.uint64(before & 63)
            earlier = ones(word[place] & (bit - _U1))
            w = place
            while w > 0:
                earlier += tree[w]
                w -= w & -w
            distance = rows - earlier
            # smallest k with 2**k >= distance
            step, reach = 0, 1
            while reach < distance and step < bins - 1:
                reach <<= 1
                step += 1
            counts[step] += 1
            word[place] ^= bit
            w = place + 1
            while w <= words:
                tree[w] -= 1
                w += w & -w
        place = now >> 6
        word[place] |= _U1 << np.uint64(now & 63)
        w = place + 1
        while w <= words:
            tree[w] += 1
            w += w & -w
        reader[now] = row
        last[row] = now
        now += 1
    return counts


def reuse_profile(csr: CSR, bins: int = BINS) -> NDArray[np.float64]:
    """Cumulative share of edges whose source row was last read at most 2**k different rows ago, float64 [bins].

    The stream is ``csr.indices`` in the order in which an aggregation reads it. The distance of a read is the row's
    place in an LRU stack, counted from 1 (exact stack distances, Mattson et al., IBM Systems Journal 1970), so entry k
    is the hit rate of a fully associative LRU cache of 2**k rows. First reads of a row hit nowhere, so the last entry
    is at most 1. No edges: all zero.
    """
    if csr.edges == 0:
        return np.zeros(bins)
    window = -(-min(max(2 * csr.columns, 64), csr.edges + 64) // 64) * 64
    counts = _histogram(csr.indices, csr.columns, window, bins)
    return np.cumsum(counts) / float(csr.edges)


def reverse_cuthill_mckee(csr: CSR) -> NDArray[np.int64]:
    """Reverse Cuthill-McKee order of a square CSR: int64 [V], ``order[k]`` is the old id of the vertex at place k.
    Directed graphs are ordered as if each edge had its reverse. Isolated vertices keep a place. Cuthill and McKee, ACM
    National Conference 1969; the implementation is scipy's."""
    matrix = sparse.csr_matrix(
        (np.ones(csr.edges, np.int8), np.asarray(csr.indices), np.asarray(csr.indptr)), shape=(csr.rows, csr.columns)
    )
    return np.asarray(csgraph.reverse_cuthill_mckee(matrix, symmetric_mode=is_symmetric(csr)), dtype=np.int64)
