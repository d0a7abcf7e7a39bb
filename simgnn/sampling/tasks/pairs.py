"""Positives and negatives of seed vertices, for unsupervised training: a neighbour each, and non-neighbours.

Source: ByteGNN (Zheng et al., PVLDB 15(6), 2022, section 4.1); the draws are our decision, by hash like all others.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simgnn.graph.hashing import GOLDEN, splitmix
from simgnn.sampling.draw.sampler import below, choose_row
from simgnn.sampling.draw.seeds import hash64

REJECTIONS = 64
"""Candidates that are tried for a negative before the smallest non-neighbour is taken."""
NONE = -1
"""In place of the negative of a vertex that is adjacent to all others."""

_ZERO, _ONE = np.uint64(0), np.uint64(1)


def positive_seed(batch_seed: int) -> int:
    """Seed of the draws of a batch's positives."""
    return hash64("pos", batch_seed)


def negative_seed(batch_seed: int) -> int:
    """Seed of the draws of a batch's negatives."""
    return hash64("neg", batch_seed)


def branch_seeds(batch_seed: int, branches: int) -> tuple[int, ...]:
    """Seeds of the neighbour choices of each branch: of seeds, of positives, of negatives."""
    return (batch_seed, hash64("pos-br", batch_seed), hash64("neg-br", batch_seed))[:branches]


def positives(indptr: Any, indices: Any, oid: Any, lids: Any, batch_seed: int) -> NDArray[np.int64]:
    """Draw one neighbour for each of the rows ``lids`` [n], int64 [n] as ids of the whole graph: choose() at hop 0 with
    a fan-out of 1. A vertex without neighbours gets itself. ``oid``: see :class:`Structure`."""
    out = np.empty(len(lids), np.int64)
    _positives(indptr, indices, oid, lids, np.uint64(positive_seed(batch_seed)), out)
    return out


def negatives(
    indptr: Any, indices: Any, oid: Any, lids: Any, batch_seed: int, each: int, vertices: int
) -> NDArray[np.int64]:
    """Draw ``each`` non-neighbours for each of the rows ``lids`` [n], int64 [n, each] as ids of the whole graph of
    ``vertices`` (below 2**32), never the vertex itself; :data:`NONE` for a vertex that is adjacent to all others."""
    out = np.empty((len(lids), each), np.int64)
    _negatives(indptr, indices, oid, lids, np.uint64(negative_seed(batch_seed)), np.uint64(vertices), out)
    return out


@njit(cache=True, nogil=True)
def _positives(indptr: Any, indices: Any, oid: Any, lids: Any, seed: Any, out: Any) -> None:
    state = splitmix(seed, _ONE)
    for k in range(len(lids)):
        row = lids[k]
        vertex = np.int64(row) if oid is None else np.int64(oid[row])
        first, degree = indptr[row], indptr[row + 1] - indptr[row]
        if degree == 0:
            out[k] = vertex
        else:
            choose_row(indices, first, degree, vertex, state, GOLDEN, out, k, k + 1)
            if oid is not None:
                out[k] = oid[out[k]]


@njit(cache=True, nogil=True, inline="always")
def _source(indices: Any, oid: Any, place: Any) -> Any:
    return np.int64(indices[place]) if oid is None else np.int64(oid[indices[place]])


@njit(cache=True, nogil=True)
def _adjacent(indices: Any, oid: Any, first: Any, end: Any, vertex: Any) -> Any:
    """Whether ``vertex`` is in the ascending row from ``first`` to ``end``."""
    low, high = first, end
    while low < high:
        middle = (low + high) // 2
        if _source(indices, oid, middle) < vertex:
            low = middle + 1
        else:
            high = middle
    return low < end and _source(indices, oid, low) == vertex


@njit(cache=True, nogil=True)
def _smallest(indices: Any, oid: Any, first: Any, end: Any, vertex: Any, vertices: Any) -> Any:
    """The smallest vertex that is neither ``vertex`` nor in its row; NONE if there is none."""
    candidate = np.int64(0)
    place = first
    while candidate < vertices:
        while place < end and _source(indices, oid, place) < candidate:
            place += 1
        if candidate != vertex and not (place < end and _source(indices, oid, place) == candidate):
            return candidate
        candidate += 1
    return np.int64(NONE)


@njit(cache=True, nogil=True)
def _negatives(indptr: Any, indices: Any, oid: Any, lids: Any, seed: Any, vertices: Any, out: Any) -> None:
    state = splitmix(seed, _ONE)
    for k in range(len(lids)):
        row = lids[k]
        vertex = np.int64(row) if oid is None else np.int64(oid[row])
        first, end = indptr[row], indptr[row + 1]
        stream = splitmix(state ^ (np.uint64(vertex) + GOLDEN), _ZERO)
        for n in range(out.shape[1]):
            found = np.int64(NONE)
            for turn in range(REJECTIONS):
                word = np.uint64(n * REJECTIONS + turn) + GOLDEN
                candidate = np.int64(below(splitmix(stream ^ word, _ZERO), vertices))
                if candidate != vertex and not _adjacent(indices, oid, first, end, candidate):
                    found = candidate
                    break
            if found < 0:
                found = _smallest(indices, oid, first, end, vertex, np.int64(vertices))
            out[k, n] = found
