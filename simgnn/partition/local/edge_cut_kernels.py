"""Numba kernels that cut a graph into local graphs."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simgnn.graph.csr import CSR
from simgnn.program.sizes import IntArray


@njit(cache=True)
def group_by_owner(owner, ranks):  # type: ignore[no-untyped-def]
    """Group vertices by owner, ascending in each group, int64 [V], and the first place of each, int64 [P + 1]."""
    starts = np.zeros(ranks + 1, dtype=np.int64)
    for vertex in range(len(owner)):
        starts[owner[vertex] + 1] += 1
    for rank in range(ranks):
        starts[rank + 1] += starts[rank]
    cursor = starts[:-1].copy()
    order = np.empty(len(owner), dtype=np.int64)
    for vertex in range(len(owner)):
        rank = owner[vertex]
        order[cursor[rank]] = vertex
        cursor[rank] += 1
    return order, starts


@njit(cache=True)
def induced_rows(indptr, indices, members, owner, rank, place, first):  # type: ignore[no-untyped-def]
    """Build the CSR of edges among ``members``, all vertices of ``rank``; vertex v has column ``place[v] - first``."""
    pointers = np.zeros(len(members) + 1, dtype=np.int64)
    for row in range(len(members)):
        kept = 0
        for edge in range(indptr[members[row]], indptr[members[row] + 1]):
            kept += owner[indices[edge]] == rank
        pointers[row + 1] = pointers[row] + kept
    sources = np.empty(pointers[-1], dtype=indices.dtype)
    kept = 0
    for row in range(len(members)):
        for edge in range(indptr[members[row]], indptr[members[row] + 1]):
            if owner[indices[edge]] == rank:
                sources[kept] = place[indices[edge]] - first
                kept += 1
    return pointers, sources


@njit(cache=True)
def halo_places(indptr, indices, members, owner, rank, place, stamp):  # type: ignore[no-untyped-def]
    """Find the sources of ``members`` that other ranks own: ``place`` of each, without repeats, unsorted int64 [h].

    ``stamp`` int32 [V] holds the last rank that found each vertex; it must not hold ``rank`` yet.
    """
    reach = 0
    for row in range(len(members)):
        reach += indptr[members[row] + 1] - indptr[members[row]]
    found = np.empty(min(reach, len(owner)), dtype=np.int64)
    count = 0
    for row in range(len(members)):
        for edge in range(indptr[members[row]], indptr[members[row] + 1]):
            source = indices[edge]
            if owner[source] != rank and stamp[source] != rank:
                stamp[source] = rank
                found[count] = place[source]
                count += 1
    return found[:count].copy()


@njit(cache=True)
def summed_nonzeros(indptr, indices, ids, feature_indptr, feature_indices, width):  # type: ignore[no-untyped-def]
    """Count distinct feature columns of each row's sources, summed over rows; then the same with the row included.

    ``ids`` [columns] are global ids; a local row is the column of the same number. Features [V, width] as CSR parts.
    """
    seen = np.full(width, -1, dtype=np.int64)
    neighbors, both = 0, 0
    for row in range(len(indptr) - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            source = ids[indices[edge]]
            for place in range(feature_indptr[source], feature_indptr[source + 1]):
                neighbors += seen[feature_indices[place]] != row
                seen[feature_indices[place]] = row
        for place in range(feature_indptr[ids[row]], feature_indptr[ids[row] + 1]):
            both += seen[feature_indices[place]] != row
            seen[feature_indices[place]] = row
    return neighbors, neighbors + both


@njit(cache=True)
def gathered_rows(indptr, indices, members, lookup, sources):  # type: ignore[no-untyped-def]
    """Fill ``sources`` [edges of members] with the local ids of all sources, in graph order. Returns indptr."""
    pointers = np.zeros(len(members) + 1, dtype=np.int64)
    end = 0
    for row in range(len(members)):
        for edge in range(indptr[members[row]], indptr[members[row] + 1]):
            sources[end] = lookup[indices[edge]]
            end += 1
        pointers[row + 1] = end
    return pointers


@njit(cache=True)
def relabelled_rows(indptr, indices, members, lookup, sources):  # type: ignore[no-untyped-def]
    """Fill ``sources`` like :func:`gathered_rows`, but ascending by local id in each row."""
    pointers = gathered_rows(indptr, indices, members, lookup, sources)
    for row in range(len(members)):
        begin, end = pointers[row], pointers[row + 1]
        if end - begin > 24:
            sources[begin:end].sort()
        else:
            for right in range(begin + 1, end):
                value = sources[right]
                left = right - 1
                while left >= begin and sources[left] > value:
                    sources[left + 1] = sources[left]
                    left -= 1
                sources[left + 1] = value
    return pointers


def halo_of_ranks(csr: CSR, owner: NDArray[np.int32], ranks: int) -> tuple[IntArray, IntArray]:
    """Return the halo rows of all ranks as (rank, vertex), int64 [h] each, sorted by both. ``owner`` int32 [V]."""
    indptr, indices, owner = np.asarray(csr.indptr), np.asarray(csr.indices), np.asarray(owner)
    grouped, starts = group_by_owner(owner, ranks)
    place, stamp = np.arange(csr.rows, dtype=np.int64), np.full(csr.rows, -1, dtype=np.int32)
    found = []
    for rank in range(ranks):
        members = grouped[starts[rank] : starts[rank + 1]]
        found.append(np.sort(halo_places(indptr, indices, members, owner, rank, place, stamp)))
    return np.repeat(np.arange(ranks), [len(halo) for halo in found]), np.concatenate(found)


def edges_between(csr: CSR, owner: NDArray[np.int32], hosts: IntArray) -> IntArray:
    """Count the in-edges of each rank's vertices from vertices of other hosts, int64 [P]. ``owner`` int32 [V];
    ``hosts`` int64 [P]: the host of each rank."""
    counts: IntArray = _edges_between(np.asarray(csr.indptr), np.asarray(csr.indices), np.asarray(owner), hosts)
    return counts


@njit(cache=True)
def _edges_between(indptr, indices, owner, hosts):  # type: ignore[no-untyped-def]
    found = np.zeros(len(hosts), dtype=np.int64)
    for vertex in range(len(owner)):
        rank = owner[vertex]
        for edge in range(indptr[vertex], indptr[vertex + 1]):
            found[rank] += hosts[owner[indices[edge]]] != hosts[rank]
    return found
