"""Numba kernels that choose the master replica of each vertex of a vertex-cut, and count mirrors."""

import numpy as np
from numba import njit

from simgnn.graph.bits import bit_of, members_of, set_size

RULES = ("host-majority", "balanced", "hash", "first")


@njit(cache=True)
def choose_masters(replicas, host, hosts, rule, seed):  # type: ignore[no-untyped-def]
    """Choose the master rank of each vertex, int32 [V], from the replica sets uint64 [V, words], by ascending id.

    ``rule`` is an index into ``RULES``. "host-majority" considers only replicas on the hosts that hold most replicas of
    the vertex, and picks the rank with the least load (ties: lowest id). "balanced" does so over all hosts. "hash"
    picks a replica by a seeded hash of the id; "first" picks the lowest rank. A master adds the number of its mirrors
    to the load of its rank. Source: our decision (CDFGNN specifies only "one of the replicas").
    """
    vertices = len(replicas)
    master = np.empty(vertices, dtype=np.int32)
    load = np.zeros(len(host), dtype=np.int64)
    on_host = np.zeros(hosts, dtype=np.int64)
    members = np.empty(len(host), dtype=np.int64)
    for vertex in range(vertices):
        size = members_of(replicas[vertex], members)
        if rule == 3 or size == 1:
            best = members[0]
        elif rule == 2:
            best = members[_hash(np.uint64(vertex), np.uint64(seed)) % np.uint64(size)]
        else:
            most = 0
            if rule == 0:
                for place in range(size):
                    on_host[host[members[place]]] += 1
                    most = max(most, on_host[host[members[place]]])
            best = -1
            for place in range(size):
                rank = members[place]
                if on_host[host[rank]] >= most and (best < 0 or load[rank] < load[best]):
                    best = rank
            for place in range(size):
                on_host[host[members[place]]] = 0
        master[vertex] = best
        load[best] += size - 1
    return master


@njit(cache=True)
def replica_sets(low, high, edge_part, owner, ranks):  # type: ignore[no-untyped-def]
    """Compute the replica sets uint64 [V, words] of a vertex-cut: ranks of edges and of the master."""
    sets = master_sets(owner, ranks)
    add_replicas(sets, low, high, edge_part)
    return sets


@njit(cache=True)
def master_sets(owner, ranks):  # type: ignore[no-untyped-def]
    """Build rank sets uint64 [V, words] that contain only the master of each vertex."""
    sets = np.zeros((len(owner), (ranks + 63) // 64), dtype=np.uint64)
    for vertex in range(len(owner)):
        sets[vertex, owner[vertex] >> 6] |= bit_of(owner[vertex])
    return sets


@njit(cache=True)
def add_replicas(sets, low, high, edge_part):  # type: ignore[no-untyped-def]
    """Add to ``sets`` [V, words] the ranks ``edge_part`` of the edges (``low``, ``high``), at both ends."""
    for edge in range(len(low)):
        rank = np.int64(edge_part[edge])
        bit = bit_of(rank)
        sets[low[edge], rank >> 6] |= bit
        sets[high[edge], rank >> 6] |= bit


@njit(cache=True)
def count_mirrors(replicas, owner, weights, ranks):  # type: ignore[no-untyped-def]
    """Count mirrors, and sum their weights, by [master rank, mirror rank], int64 [P, P] each; also return the masters
    with mirrors of each rank, int64 [P], and the largest number of replicas of a vertex."""
    mirrors = np.zeros((ranks, ranks), dtype=np.int64)
    weighted = np.zeros((ranks, ranks), dtype=np.int64)
    shared = np.zeros(ranks, dtype=np.int64)
    members = np.empty(ranks, dtype=np.int64)
    largest = 1
    for vertex in range(len(owner)):
        size = members_of(replicas[vertex], members)
        if size < 2:
            continue
        largest = max(largest, size)
        shared[owner[vertex]] += 1
        for rank in members[:size]:
            if rank != owner[vertex]:
                mirrors[owner[vertex], rank] += 1
                weighted[owner[vertex], rank] += weights[vertex]
    return mirrors, weighted, shared, largest


@njit(cache=True)
def mirror_keys(replicas, owner, pair, stride):  # type: ignore[no-untyped-def]
    """Return ``pair[master, mirror] * stride + (replicas of its vertex)`` for every mirror, int64 [mirrors]."""
    mirrors = 0
    for vertex in range(len(owner)):
        mirrors += set_size(replicas[vertex]) - 1
    keys = np.empty(mirrors, dtype=np.int64)
    members = np.empty(len(pair), dtype=np.int64)
    filled = 0
    for vertex in range(len(owner)):
        size = members_of(replicas[vertex], members)
        for rank in members[:size]:
            if rank != owner[vertex]:
                keys[filled] = pair[owner[vertex], rank] * stride + size
                filled += 1
    return keys


@njit(cache=True)
def _hash(value, seed):  # type: ignore[no-untyped-def]
    # splitmix64's finaliser over value and seed
    mixed = value * np.uint64(0x9E3779B97F4A7C15) + seed * np.uint64(0xD1B54A32D192ED03) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
