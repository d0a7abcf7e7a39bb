"""Reference vertex-cuts with which EBV is compared.

- ``random-edges``: rank = hash(lower end, higher end, seed) mod P.
- ``dbh``: rank = hash(end of lower degree, seed) mod P, of equal degrees the lower id: hubs are divided, leaves not.
  Source: Xie et al., degree-based hashing, NIPS 2014.
- ``hdrf``: one edge after another goes to the rank with the largest g(u) + g(v) + balance (most - edges_i) / (1 + most
  - least), g(u) = 1 + 1 - d_u / (d_u + d_v) where the rank has a replica of u, else 0. Ties go to the rank with
  the fewest edges, then the lowest. Source: Petroni et al., CIKM 2015, with exact degrees instead of those seen so far.

Edges are read in pieces, like in :mod:`simgnn.partition.algorithms.ebv`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simgnn.graph.bits import bit_of, bit_position, lowest_bit, members_of, words_for
from simgnn.graph.csr import IndexArray
from simgnn.graph.hashing import splitmix, stream_key
from simgnn.partition.algorithms.ebv import AssignedEdges, EdgePart, edge_part_array, place_isolated
from simgnn.partition.edges import BLOCK_EDGES, EdgeOrder, UndirectedEdges, blocks_in_order
from simgnn.partition.local.masters import add_replicas

Ints = NDArray[np.int64]
Dealt = Callable[[IndexArray, IndexArray], Ints]
"""Function from the ends of edges (lower, higher), [n] each, to their ranks; independent of other edges."""


def random_edges(edges: UndirectedEdges, hosts: Ints, *, seed: int, spill: Path | None = None) -> AssignedEdges:
    """Assign edges to ranks by ``random-edges``; ``hosts`` int64 [P], ``spill`` as for :func:`ebv_edges`."""
    key, ranks = stream_key(seed, "partition/random-edges"), len(hosts)
    return _dealt(edges, hosts, lambda low, high: _by_both(low, high, key, ranks), spill)


def dbh_edges(edges: UndirectedEdges, hosts: Ints, *, seed: int, spill: Path | None = None) -> AssignedEdges:
    """Assign edges to ranks by ``dbh`` (degree-based hashing)."""
    key, ranks, degrees = stream_key(seed, "partition/dbh"), len(hosts), edges.csr.degrees()
    return _dealt(edges, hosts, lambda low, high: _by_lower_degree(low, high, degrees, key, ranks), spill)


def hdrf_edges(
    edges: UndirectedEdges,
    hosts: Ints,
    *,
    balance: float,
    edge_order: EdgeOrder,
    seed: int,
    spill: Path | None = None,
    block_edges: int = BLOCK_EDGES,
) -> AssignedEdges:
    """Assign edges to ranks by ``hdrf``, in ``edge_order``; ``block_edges`` only bounds memory."""
    edge_part = edge_part_array(edges.count, len(hosts), spill, block_edges)
    replicas = np.zeros((edges.vertices, words_for(len(hosts))), dtype=np.uint64)
    degrees, held = edges.csr.degrees(), np.zeros(len(hosts), dtype=np.int64)
    for block in blocks_in_order(edges, degrees, edge_order, seed, spill, block_edges):
        _assign(block.first, block.second, block.places, degrees, float(balance), replicas, edge_part, held)
    return _completed(edges, hosts, edge_part, replicas)


def _dealt(edges: UndirectedEdges, hosts: Ints, rank_of: Dealt, spill: Path | None) -> AssignedEdges:
    edge_part = edge_part_array(edges.count, len(hosts), spill)
    replicas = np.zeros((edges.vertices, words_for(len(hosts))), dtype=np.uint64)
    for first, (low, high, dealt) in edges.scan(lambda low, high: (low, high, rank_of(low, high))):
        edge_part[first : first + len(dealt)] = dealt
        add_replicas(replicas, low, high, dealt)
    return _completed(edges, hosts, edge_part, replicas)


def _completed(edges: UndirectedEdges, hosts: Ints, edge_part: EdgePart, replicas: NDArray[np.uint64]) -> AssignedEdges:
    place_isolated(edges.csr.degrees(), _copies(replicas, len(hosts)), replicas)
    return AssignedEdges(edge_part, replicas, np.unique(hosts, return_inverse=True)[1].astype(np.int64))


@njit(cache=True, nogil=True)
def _by_both(low: Any, high: Any, key: Any, ranks: Any) -> Any:
    found = np.empty(len(low), dtype=np.int64)
    for edge in range(len(low)):
        found[edge] = splitmix(splitmix(key, np.uint64(low[edge])), np.uint64(high[edge])) % np.uint64(ranks)
    return found


@njit(cache=True, nogil=True)
def _by_lower_degree(low: Any, high: Any, degrees: Any, key: Any, ranks: Any) -> Any:
    found = np.empty(len(low), dtype=np.int64)
    for edge in range(len(low)):
        end = high[edge] if degrees[high[edge]] < degrees[low[edge]] else low[edge]
        found[edge] = splitmix(key, np.uint64(end)) % np.uint64(ranks)
    return found


@njit(cache=True, nogil=True)
def _assign(
    first: Any, second: Any, places: Any, degrees: Any, balance: Any, replicas: Any, edge_part: Any, held: Any
) -> None:  # fmt: skip
    """Assign one block of edges by HDRF; updates ``replicas`` [V, words] and ``held`` int64 [P], the edges of each
    rank. Of ranks without a replica of either end only the one with the fewest edges is scored: no other can win."""
    most, least = held.max(), np.argmin(held)
    for turn in range(len(first)):
        u, v = first[turn], second[turn]
        both = np.float64(degrees[u] + degrees[v])
        of_first, of_second = 1 + (1 - degrees[u] / both), 1 + (1 - degrees[v] / both)
        spread = np.float64(1 + most - held[least])
        best, best_score = -1, -np.inf
        for word in range(replicas.shape[1]):
            of_u, of_v = replicas[u, word], replicas[v, word]
            left = of_u | of_v
            if least >> 6 == word:
                left |= bit_of(least)
            while left != 0:
                bit = lowest_bit(left)
                left ^= bit
                rank = word * 64 + bit_position(bit)
                score = 0.0
                if (of_u & bit) != 0:
                    score += of_first
                if (of_v & bit) != 0:
                    score += of_second
                score += balance * (most - held[rank]) / spread
                # ranks come ascending, so the lowest stays
                if score > best_score or (score == best_score and held[rank] < held[best]):
                    best, best_score = rank, score
        edge_part[places[turn]] = best
        for end in (u, v):
            replicas[end, best >> 6] |= bit_of(best)
        held[best] += 1
        most = max(most, held[best])
        if best == least:
            least = np.argmin(held)


@njit(cache=True)
def _copies(replicas: Any, ranks: Any) -> Any:
    copies = np.zeros(ranks, dtype=np.int64)
    members = np.empty(ranks, dtype=np.int64)
    for vertex in range(len(replicas)):
        for rank in members[: members_of(replicas[vertex], members)]:
            copies[rank] += 1
    return copies
