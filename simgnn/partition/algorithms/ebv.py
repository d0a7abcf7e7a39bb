"""EBV, plain and hierarchical: a greedy vertex-cut that weighs new replicas against balance.

Edge (u, v) goes to the rank i, on host h, with the smallest (score, balance, i):

    missing = [i not in R(u)] + [i not in R(v)]          far = [h not in hosts(u)] + [h not in hosts(v)]
    balance = alpha * edges_i * P / E_u + beta * replicas_i * P / V
    score   = missing + gamma * (far - missing) + balance

in float64 from integer counts, so the result is a pure function of (graph, hosts, options, seed).
Source: CDFGNN (arXiv 2408.00232), hierarchical score; gamma = 0 is EBV as published before it. The order of edges,
alpha and beta are plain EBV's, since CDFGNN is silent; the rule for masters is ours.

Edges are read in pieces and assigned in blocks, so a graph in memory-mapped files takes memory for its vertices (about
8 bytes for the degree and order, 4 for the master, 8 for each 64 ranks and each 64 hosts) and for a few blocks.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.graph.bits import words_for
from simgnn.partition.algorithms.ebv_kernels import assign_edges, assign_edges_one_word, place_isolated
from simgnn.partition.algorithms.edge_order import BLOCK_EDGES, EdgeOrder, blocks_in_order
from simgnn.partition.edges import UndirectedEdges, index_array
from simgnn.partition.local.masters import RULES, choose_masters

EdgePart = NDArray[np.unsignedinteger[Any]]
MAX_RANKS = 2**16


@dataclass(frozen=True)
class AssignedEdges:
    """``edge_part`` uint8 (uint16 above 256 ranks) [E_u]: rank of each edge of :class:`UndirectedEdges`;
    ``replicas`` uint64 [V, ceil(P / 64)]: ranks of each vertex; ``host`` int64 [P]: hosts renumbered 0..H-1."""

    edge_part: EdgePart
    replicas: NDArray[np.uint64]
    host: NDArray[np.int64]


def masters_of(found: AssignedEdges, master: str, seed: int) -> NDArray[np.int32]:
    """The rank of each vertex's master copy, int32 [V]; ``master``: see
    :func:`simgnn.partition.local.masters.choose_masters`."""
    hosts = int(found.host.max()) + 1
    return np.asarray(choose_masters(found.replicas, found.host, hosts, RULES.index(master), seed))


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
    """Give each edge a rank; ``hosts`` int64 [P]. ``block_edges`` bounds memory and changes nothing else.

    Above ``block_edges`` edges ``edge_part`` is memory-mapped to a nameless file in ``spill``, which goes with it.
    """
    ranks, vertices = len(hosts), edges.vertices
    host = hosts_from_zero(hosts)
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


def hosts_from_zero(hosts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Hosts of ranks renumbered 0..H-1, int64 [P]."""
    return np.unique(hosts, return_inverse=True)[1].astype(np.int64)


def edge_part_array(count: int, ranks: int, spill: Path | None, block_edges: int = BLOCK_EDGES) -> EdgePart:
    """Ranks of ``count`` edges, to be filled: in memory, above ``block_edges`` in a nameless file in ``spill``."""
    if ranks > MAX_RANKS:
        raise ConfigError(f"partition.kind: got a vertex-cut over {ranks} ranks; at most {MAX_RANKS} are supported")
    dtype = np.dtype("u1" if ranks <= 256 else "u2")
    if count <= block_edges:
        return np.empty(count, dtype)
    with tempfile.TemporaryFile(dir=spill) as file:
        # a full disk is an error here, not a signal in the middle of the work
        os.posix_fallocate(file.fileno(), 0, count * dtype.itemsize)
        return np.asarray(np.memmap(file, dtype, "r+", shape=(count,)))
