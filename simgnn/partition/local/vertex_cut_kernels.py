"""Numba kernels that cut a graph into the replica graphs of a vertex-cut."""

import numpy as np
from numba import njit

from simgnn.graph.bits import members_of


@njit(cache=True)
def held_vertices(replicas, ranks):  # type: ignore[no-untyped-def]
    """Group vertices by the ranks that hold them, ascending in each group, int64 [all replicas]; also return the first
    place of each group, int64 [P + 1]. ``replicas`` uint64 [V, words]."""
    starts = np.zeros(ranks + 1, dtype=np.int64)
    members = np.empty(ranks, dtype=np.int64)
    for vertex in range(len(replicas)):
        for rank in members[: members_of(replicas[vertex], members)]:
            starts[rank + 1] += 1
    for rank in range(ranks):
        starts[rank + 1] += starts[rank]
    cursor = starts[:-1].copy()
    held = np.empty(starts[-1], dtype=np.int64)
    for vertex in range(len(replicas)):
        for rank in members[: members_of(replicas[vertex], members)]:
            held[cursor[rank]] = vertex
            cursor[rank] += 1
    return held, starts


@njit(cache=True)
def group_arcs(indptr, indices, starts, high, edge_part, ranks, targets, sources):  # type: ignore[no-untyped-def]
    """Fill ``targets`` and ``sources`` [E] with the stored edges grouped by the rank of their undirected edge, each
    group in the order of the CSR. Returns the first place of each group, int64 [P + 1].

    Undirected edges are sorted by (lower, higher end): those of lower end u are ``high[starts[u]:starts[u + 1]]``.
    """
    part = np.empty(len(indices), dtype=np.int32)
    bounds = np.zeros(ranks + 1, dtype=np.int64)
    for row in range(len(indptr) - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            lower, higher = min(row, indices[edge]), max(row, indices[edge])
            first, last = starts[lower], starts[lower + 1]
            while first < last:
                middle = (first + last) // 2
                if high[middle] < higher:
                    first = middle + 1
                else:
                    last = middle
            part[edge] = edge_part[first]
            bounds[part[edge] + 1] += 1
    for rank in range(ranks):
        bounds[rank + 1] += bounds[rank]
    cursor = bounds[:-1].copy()
    for row in range(len(indptr) - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            place = cursor[part[edge]]
            targets[place], sources[place] = row, indices[edge]
            cursor[part[edge]] += 1
    return bounds


@njit(cache=True)
def local_rows(targets, sources, lookup, rows, into):  # type: ignore[no-untyped-def]
    """Fill ``into`` [arcs] with ascending local ids of the sources of each row. Returns indptr [rows + 1]."""
    pointers = np.zeros(rows + 1, dtype=np.int64)
    for arc in range(len(targets)):
        pointers[lookup[targets[arc]] + 1] += 1
    for row in range(rows):
        pointers[row + 1] += pointers[row]
    cursor = pointers[:-1].copy()
    for arc in range(len(targets)):
        row = lookup[targets[arc]]
        into[cursor[row]] = lookup[sources[arc]]
        cursor[row] += 1
    for row in range(rows):
        into[pointers[row] : pointers[row + 1]].sort()
    return pointers


@njit(cache=True)
def parents(replicas, owner, host, rank, mirrors, members):  # type: ignore[no-untyped-def]
    """For each of the ``mirrors`` of ``rank``, the rank that it exchanges rows with when hosts sum first, int32 [k].

    One replica of a vertex on a host represents that host: the master if it is there, else the replica at index (id
    modulo the number of replicas there), so that load spreads over ranks. A representing mirror exchanges rows with the
    master, another mirror with the representing one. ``members`` [P] is scratch memory.
    """
    found = np.empty(len(mirrors), dtype=np.int32)
    for place in range(len(mirrors)):
        vertex = mirrors[place]
        master = owner[vertex]
        if host[master] == host[rank]:
            found[place] = master
            continue
        count = 0
        for other in members[: members_of(replicas[vertex], members)]:
            if host[other] == host[rank]:
                members[count] = other
                count += 1
        standing = members[vertex % count]
        found[place] = master if standing == rank else standing
    return found
