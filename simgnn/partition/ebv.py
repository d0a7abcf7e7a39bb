"""EBV, plain and hierarchical: a greedy vertex-cut that weighs new replicas against balance.

Edge (u, v) goes to the rank i, on host h, with the smallest (score, balance, i):

    missing = [i not in R(u)] + [i not in R(v)]          far = [h not in hosts(u)] + [h not in hosts(v)]
    balance = alpha * edges_i * P / E_u + beta * replicas_i * P / V
    score   = missing + gamma * (far - missing) + balance

in float64 from integer counts, so the result is a pure function of (graph, hosts, options, seed).
Source: CDFGNN (arXiv 2408.00232), hierarchical score; gamma = 0 is EBV as published before it. The order of edges,
alpha and beta are plain EBV's, since CDFGNN is silent; the rule for masters is ours.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.graph.csr import IndexArray
from simgnn.graph.graph import Graph
from simgnn.partition.bits import words_for
from simgnn.partition.ebv_kernels import assign_edges, assign_edges_one_word, place_isolated, sort_by_degree_sum
from simgnn.partition.edges import index_array, undirected_edges
from simgnn.partition.masters import RULES, choose_masters
from simgnn.partition.partition import Partition

EdgeOrder = Literal["degree-sum", "input", "random"]
EdgePart = NDArray[np.uint8] | NDArray[np.uint16]
MAX_RANKS = 2**16


def ebv_partition(
    graph: Graph,
    hosts: NDArray[np.int64],
    *,
    gamma: float,
    alpha: float,
    beta: float,
    edge_order: EdgeOrder,
    master: str,
    seed: int,
) -> Partition:
    """Vertex-cut of ``graph`` over P = len(hosts) ranks, ``hosts`` [P] their hosts; options as in the module's text.

    ``edge_order``: "degree-sum" (ascending, ties by lower then higher end), "input" (lower, higher end) or "random"
    (seeded). ``master``: see :func:`simgnn.partition.masters.choose_masters`.
    """
    low, high = undirected_edges(graph)
    edge_part, replicas, host = ebv_edges(
        low, high, graph.vertices, hosts, gamma=gamma, alpha=alpha, beta=beta, edge_order=edge_order, seed=seed
    )
    owner = choose_masters(replicas, host, int(host.max()) + 1, RULES.index(master), seed)
    return Partition("vertex-cut", len(hosts), owner, edge_part)


def ebv_edges(
    low: IndexArray,
    high: IndexArray,
    vertices: int,
    hosts: NDArray[np.int64],
    *,
    gamma: float = 0.0,
    alpha: float = 1.0,
    beta: float = 1.0,
    edge_order: EdgeOrder = "degree-sum",
    seed: int = 0,
) -> tuple[EdgePart, NDArray[np.uint64], NDArray[np.int64]]:
    """Ranks of the undirected edges (low, high) [E_u], sorted by (low, high), no loops, no duplicates.

    Returns ``edge_part`` uint8 (uint16 above 256 ranks) [E_u], replica sets uint64 [V, ceil(P / 64)] and the host of
    each rank renumbered 0..H-1, int64 [P].
    """
    ranks = len(hosts)
    if ranks > MAX_RANKS:
        raise ConfigError(f"partition.kind = 'ebv': {ranks} ranks; at most {MAX_RANKS} are supported")
    host = np.unique(hosts, return_inverse=True)[1].astype(np.int64)
    by_host = np.argsort(host, kind="stable").astype(np.int64)
    host_starts = np.concatenate(([0], np.cumsum(np.bincount(host)))).astype(np.int64)
    degrees = np.bincount(low, minlength=vertices) + np.bincount(high, minlength=vertices)
    order, first, second = ordered_edges(low, high, degrees, edge_order, seed)
    edge_part: EdgePart = np.empty(len(low), np.uint8) if ranks <= 256 else np.empty(len(low), np.uint16)
    copies = np.zeros(ranks, dtype=np.int64)
    weights = (float(gamma), float(alpha), float(beta))
    words = words_for(ranks)
    if words == 1:
        state = np.zeros(vertices, dtype=np.uint64)
        assign_edges_one_word(first, second, order, host, by_host, host_starts, weights, state, edge_part, copies)
        replicas = state.reshape(vertices, 1)
    else:
        state = np.zeros((vertices, words + words_for(len(host_starts) - 1)), dtype=np.uint64)
        assign_edges(first, second, order, host, by_host, host_starts, weights, state, edge_part, copies)
        replicas = np.ascontiguousarray(state[:, :words])
    place_isolated(degrees, copies, replicas)
    return edge_part, replicas, host


def ordered_edges(
    low: IndexArray, high: IndexArray, degrees: NDArray[np.int64], edge_order: EdgeOrder, seed: int
) -> tuple[IndexArray, IndexArray, IndexArray]:
    """The order in which edges are assigned, int32 [E_u] (int64 from 2**31 edges), and their ends in that order."""
    order = index_array(len(low), len(low))
    if edge_order == "input":
        order[:] = np.arange(len(low))
        return order, low, high
    if edge_order == "random":
        order[:] = np.random.default_rng(seed).permutation(len(low))
        return order, low[order], high[order]
    first, second = np.empty_like(low), np.empty_like(high)
    sort_by_degree_sum(low, high, degrees, order, first, second)
    return order, first, second
