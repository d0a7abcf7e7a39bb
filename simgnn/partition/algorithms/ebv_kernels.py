"""Numba kernels of EBV: the greedy assignment, and isolated vertices.

Both assignments score the members of R(u) and R(v) and one rank a host: any other rank is beaten by the least loaded
rank of its host. The order (score, balance, rank) makes this exact for 0 <= gamma < 1; candidates come ascending.
"""

import numpy as np
from numba import njit

from simgnn.graph.bits import bit_of, bit_position, lowest_bit

AHEAD = 64


@njit(cache=True, nogil=True)
def least_loaded(members, balance):  # type: ignore[no-untyped-def]
    """The member with the least balance term; the first of ``members`` (ascending) on ties."""
    best = members[0]
    for member in members[1:]:
        if balance[member] < balance[best]:
            best = member
    return best


@njit(cache=True, nogil=True)
def least_of_hosts(by_host, host_starts, balance):  # type: ignore[no-untyped-def]
    """The least loaded rank of each host, int64 [H]."""
    least = by_host[host_starts[:-1]]
    for one in range(len(least)):
        least[one] = least_loaded(by_host[host_starts[one] : host_starts[one + 1]], balance)
    return least


@njit(cache=True, nogil=True)
def assign_edges(  # type: ignore[no-untyped-def]
    first, second, places, edges, host, by_host, host_starts, weights, state, edge_part, held, copies
):
    """Give every edge to the rank of the smallest (score, balance, rank), for any P; see
    :mod:`~simgnn.partition.algorithms.ebv`.

    ``first``, ``second`` [n]: ends in the order of assignment; ``places`` [n] their places in ``edge_part`` [E_u], of
    ``edges`` = E_u. ``host`` int64 [P], hosts numbered 0..H-1; ``by_host`` int64 [P]: ranks grouped by host;
    ``host_starts`` [H + 1]. ``weights``: (gamma, alpha, beta).

    What one call leaves, the next one goes on with, all zero at first: ``state`` uint64 [V, words of P + words of H],
    the sets of ranks and of hosts; ``held``, ``copies`` int64 [P], edges and replicas of each rank.
    """
    gamma, alpha, beta = weights
    ranks, vertices = len(host), len(state)
    rank_words = (ranks + 63) // 64
    balance = alpha * held * ranks / edges + beta * copies * ranks / vertices
    least = least_of_hosts(by_host, host_starts, balance)
    leading = np.zeros(rank_words, dtype=np.uint64)
    for rank in least:
        leading[rank >> 6] |= bit_of(rank)
    slots = np.empty(ranks, dtype=np.int64)
    marks = np.empty(ranks, dtype=np.uint64)
    for rank in range(ranks):
        slots[rank], marks[rank] = rank_words + (host[rank] >> 6), bit_of(host[rank])
    for turn in range(len(first)):
        u, v = first[turn], second[turn]
        best, best_score, best_balance = -1, np.inf, np.inf
        for word in range(rank_words):
            of_u, of_v = state[u, word], state[v, word]
            left = of_u | of_v | leading[word]
            while left != 0:
                bit = lowest_bit(left)
                left ^= bit
                rank = word * 64 + bit_position(bit)
                slot, mark = slots[rank], marks[rank]
                missing = np.int64((of_u & bit) == 0) + np.int64((of_v & bit) == 0)
                far = np.int64((state[u, slot] & mark) == 0) + np.int64((state[v, slot] & mark) == 0)
                score = (missing + gamma * (far - missing)) + balance[rank]
                if score < best_score or (score == best_score and balance[rank] < best_balance):
                    best, best_score, best_balance = rank, score, balance[rank]
        edge_part[places[turn]] = best
        word, bit = best >> 6, bit_of(best)
        copies[best] += np.int64((state[u, word] & bit) == 0) + np.int64((state[v, word] & bit) == 0)
        for end in (u, v):
            state[end, word] |= bit
            state[end, slots[best]] |= marks[best]
        held[best] += 1
        balance[best] = alpha * held[best] * ranks / edges + beta * copies[best] * ranks / vertices
        one = host[best]
        if least[one] == best:
            least[one] = least_loaded(by_host[host_starts[one] : host_starts[one + 1]], balance)
            leading[word] ^= bit
            leading[least[one] >> 6] |= bit_of(least[one])


@njit(cache=True, nogil=True)
def assign_edges_one_word(  # type: ignore[no-untyped-def]
    first, second, places, edges, host, by_host, host_starts, weights, state, edge_part, held, copies
):
    """:func:`assign_edges` for P <= 64: a vertex's set is one word, of which its hosts follow; ``state`` uint64 [V].

    Where ranks hold both ends already, they are scored first: mostly nobody else can win then. What is returned means
    nothing.
    """
    gamma, alpha, beta = weights
    ranks, vertices = len(host), len(state)
    balance = alpha * held * ranks / edges + beta * copies * ranks / vertices
    least = least_of_hosts(by_host, host_starts, balance)
    leading = np.uint64(0)
    for rank in least:
        leading |= bit_of(rank)
    near = np.zeros(ranks, dtype=np.uint64)
    for rank in range(ranks):
        for other in range(ranks):
            if host[other] == host[rank]:
                near[rank] |= bit_of(other)
    # a rank that lacks an end scores no less than this plus the least balance of all; rounding keeps that order
    dearer = 1 + gamma * (0 - 1)
    lowest = balance[least_loaded(least, balance)]
    touched = np.uint64(0)
    for turn in range(len(first)):
        if turn % AHEAD == 0:
            # sets of large graphs lie in slow memory: read several at once, before the choices that wait for each other
            for ahead in range(turn, min(turn + AHEAD, len(first))):
                touched ^= state[first[ahead]] ^ state[second[ahead]]
        u, v = first[turn], second[turn]
        of_u, of_v = state[u], state[v]
        best, best_score, best_balance = -1, np.inf, np.inf
        shared = of_u & of_v
        left = shared
        while left != 0:
            bit = lowest_bit(left)
            left ^= bit
            rank = bit_position(bit)
            if balance[rank] < best_balance:
                best, best_score, best_balance = rank, balance[rank], balance[rank]
        if not best_score < dearer + lowest:
            left = (of_u | of_v | leading) & ~shared
            while left != 0:
                bit = lowest_bit(left)
                left ^= bit
                rank = bit_position(bit)
                missing = np.int64((of_u & bit) == 0) + np.int64((of_v & bit) == 0)
                far = np.int64((of_u & near[rank]) == 0) + np.int64((of_v & near[rank]) == 0)
                score = (missing + gamma * (far - missing)) + balance[rank]
                if score < best_score or (
                    score == best_score
                    and (balance[rank] < best_balance or (balance[rank] == best_balance and rank < best))
                ):
                    best, best_score, best_balance = rank, score, balance[rank]
        edge_part[places[turn]] = best
        bit = bit_of(best)
        copies[best] += np.int64((of_u & bit) == 0) + np.int64((of_v & bit) == 0)
        state[u] = of_u | bit
        state[v] = of_v | bit
        held[best] += 1
        balance[best] = alpha * held[best] * ranks / edges + beta * copies[best] * ranks / vertices
        one = host[best]
        if least[one] == best:
            least[one] = least_loaded(by_host[host_starts[one] : host_starts[one + 1]], balance)
            leading = (leading ^ bit) | bit_of(least[one])
            lowest = balance[least_loaded(least, balance)]
    return touched  # so that the compiler keeps the reads


@njit(cache=True)
def place_isolated(degrees, copies, replicas):  # type: ignore[no-untyped-def]
    """Give each vertex without edges one replica on the rank with the fewest replicas (ties: lowest), ascending id.

    ``replicas`` uint64 [V, words] is completed, ``copies`` int64 [P] updated.
    """
    for vertex in range(len(degrees)):
        if degrees[vertex] == 0:
            rank = np.argmin(copies)
            replicas[vertex, rank >> 6] |= bit_of(rank)
            copies[rank] += 1
