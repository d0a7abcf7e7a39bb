"""EBV, plain and hierarchical: a greedy vertex-cut that weighs new replicas against balance.

Edge (u, v) goes to the rank i, on host h, with the smallest (score, balance, i):

    missing = [i not in R(u)] + [i not in R(v)]          far = [h not in hosts(u)] + [h not in hosts(v)]
    balance = alpha * edges_i * P / E_u + beta * replicas_i * P / V
    score   = missing + gamma * (far - missing) + balance

R(u) is the set of ranks with a replica of u, hosts(u) that of their hosts, E_u the number of undirected edges; [...] is
1 if true, else 0. Scores are float64 from integer counts, so the result is a pure function of (graph, hosts, options,
seed). Source: CDFGNN (arXiv 2408.00232), hierarchical score; gamma = 0 is EBV as published before. The order of edges,
alpha and beta are those of plain EBV, since CDFGNN does not specify them; the rule for masters is our own.

Only the members of R(u) and R(v) and the least loaded rank of each host are scored: any other rank loses to the least
loaded one of its host. The order (score, balance, rank) makes this exact for 0 <= gamma < 1.

Edges are read in pieces and assigned in blocks, so a graph in memory-mapped files takes memory for its vertices (about
8 bytes for the degree and order, 4 for the master, 8 for each 64 ranks and each 64 hosts) and for a few blocks.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.graph.bits import bit_of, bit_position, lowest_bit, words_for
from simgnn.partition.edges import BLOCK_EDGES, EdgeOrder, UndirectedEdges, blocks_in_order, index_array

EdgePart = NDArray[np.unsignedinteger[Any]]
MAX_RANKS = 2**16


@dataclass(frozen=True)
class AssignedEdges:
    """The result of assigning edges. ``edge_part`` uint8 (uint16 above 256 ranks) [E_u]: rank of each edge of
    :class:`UndirectedEdges`; ``replicas`` uint64 [V, ceil(P / 64)]: the set of ranks of each vertex; ``host`` int64
    [P]: host of each rank, renumbered 0..H-1."""

    edge_part: EdgePart
    replicas: NDArray[np.uint64]
    host: NDArray[np.int64]


def ebv_edges(
    edges: UndirectedEdges,
    hosts: NDArray[np.int64],
    *,
    gamma: float = 0.0,
    alpha: float = 1.0,
    beta: float = 1.0,
    edge_order: EdgeOrder = "degree-sum",
    seed: int = 0,
    spill: Path | None = None,
    block_edges: int = BLOCK_EDGES,
) -> AssignedEdges:
    """Assign each edge to a rank by EBV; ``hosts`` int64 [P]. ``block_edges`` bounds memory and does not change the
    result. Above ``block_edges`` edges ``edge_part`` is memory-mapped to a temporary file in the folder ``spill``."""
    ranks, vertices = len(hosts), edges.vertices
    host = np.unique(hosts, return_inverse=True)[1].astype(np.int64)
    by_host = np.argsort(host, kind="stable").astype(np.int64)
    host_starts = np.concatenate(([0], np.cumsum(np.bincount(host)))).astype(np.int64)
    degrees = index_array(vertices, vertices)
    degrees[:] = edges.csr.degrees()
    edge_part = edge_part_array(edges.count, ranks, spill, block_edges)
    held, copies = np.zeros(ranks, dtype=np.int64), np.zeros(ranks, dtype=np.int64)
    weights = (float(gamma), float(alpha), float(beta))
    words = words_for(ranks)
    if words == 1:
        assign, state = assign_edges_one_word, np.zeros(vertices, dtype=np.uint64)
    else:
        assign, state = assign_edges, np.zeros((vertices, words + words_for(len(host_starts) - 1)), dtype=np.uint64)
    for block in blocks_in_order(edges, degrees, edge_order, seed, spill, block_edges):
        ends = (block.first, block.second, block.places)
        assign(*ends, edges.count, host, by_host, host_starts, weights, state, edge_part, held, copies)
    replicas = state.reshape(vertices, 1) if words == 1 else np.ascontiguousarray(state[:, :words])
    place_isolated(degrees, copies, replicas)
    return AssignedEdges(edge_part, replicas, host)


def edge_part_array(count: int, ranks: int, spill: Path | None, block_edges: int = BLOCK_EDGES) -> EdgePart:
    """Allocate the ranks of ``count`` edges, above ``block_edges`` memory-mapped to a file in the folder ``spill``."""
    if ranks > MAX_RANKS:
        raise ConfigError(f"partition.kind: got a vertex-cut over {ranks} ranks; expected at most {MAX_RANKS}")
    dtype = np.dtype("u1" if ranks <= 256 else "u2")
    if count <= block_edges:
        return np.empty(count, dtype)
    with tempfile.TemporaryFile(dir=spill) as file:
        # a full disk is an error here, not a signal in the middle of the work
        os.posix_fallocate(file.fileno(), 0, count * dtype.itemsize)
        return np.asarray(np.memmap(file, dtype, "r+", shape=(count,)))


AHEAD = 64


@njit(cache=True, nogil=True)
def least_loaded(members, balance):  # type: ignore[no-untyped-def]
    """Return the member with the smallest balance term; on ties the first of ``members`` (ascending)."""
    best = members[0]
    for member in members[1:]:
        if balance[member] < balance[best]:
            best = member
    return best


@njit(cache=True, nogil=True)
def least_of_hosts(by_host, host_starts, balance):  # type: ignore[no-untyped-def]
    """Return the least loaded rank of each host, int64 [H]."""
    least = by_host[host_starts[:-1]]
    for one in range(len(least)):
        least[one] = least_loaded(by_host[host_starts[one] : host_starts[one + 1]], balance)
    return least


@njit(cache=True, nogil=True)
def assign_edges(  # type: ignore[no-untyped-def]
    first, second, places, edges, host, by_host, host_starts, weights, state, edge_part, held, copies
):
    """Assign every edge to the rank of the smallest (score, balance, rank), for any P.

    ``first``, ``second`` [n]: ends in the order of assignment; ``places`` [n]: index of each edge in ``edge_part``
    [E_u]; ``edges`` = E_u. ``host`` int64 [P], hosts numbered 0..H-1; ``by_host`` int64 [P]: ranks grouped by host;
    ``host_starts`` [H + 1]. ``weights``: (gamma, alpha, beta). Successive calls share ``state`` uint64 [V, words of P +
    words of H], the sets of ranks and of hosts, and ``held``, ``copies`` int64 [P], edges and replicas of each rank;
    all are zero before the first call.
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
    """Assign edges like :func:`assign_edges`, for P <= 64, where the rank set of a vertex is one word; ``state`` uint64
    [V]. Ranks that hold both ends are scored first, since others rarely win. The return value is meaningless."""
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
    """Give each vertex without edges, by ascending id, a replica on the rank with the fewest (ties: lowest). Updates
    ``replicas`` uint64 [V, words] and ``copies`` int64 [P]."""
    for vertex in range(len(degrees)):
        if degrees[vertex] == 0:
            rank = np.argmin(copies)
            replicas[vertex, rank >> 6] |= bit_of(rank)
            copies[rank] += 1
