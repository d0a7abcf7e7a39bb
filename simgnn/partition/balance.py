"""The load of each rank of an edge-cut: vertices, in-edges, halo rows and the work of an epoch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.graph.graph import Graph
from simgnn.partition.local.edge_cut_kernels import edges_between, group_by_owner
from simgnn.partition.statistics.partition_stats import over_mean
from simgnn.program.sizes import IntArray


def vertex_work(graph: Graph, weights: Mapping[str, float]) -> NDArray[np.float64]:
    """Compute the work of each vertex, float64 [V]: the sum of ``weights`` by name, that of "edges" for each in-edge,
    of "train", "validation" and "test" for vertices in that mask. Raises :class:`ConfigError` for a missing mask."""
    work = np.full(graph.vertices, weights.get("vertices", 0.0))
    for name, weight in weights.items():
        if name == "edges":
            work += weight * graph.csr.degrees()
        elif name != "vertices":
            mask = getattr(graph, f"{name}_mask")
            if mask is None:
                raise ConfigError(f"partition.weights.{name}: '{graph.name}' has no {name} vertices; remove '{name}'")
            work += weight * mask
    return work


@dataclass(frozen=True)
class RankLoads:
    """What each rank of an edge-cut has, [P]: owned vertices, in-edges of them, rows of other ranks that these need,
    ``halo_edges`` of these in-edges come from them, and ``work`` (float64) of an epoch, in units of a vertex."""

    vertices: IntArray
    edges: IntArray
    halo_rows: IntArray
    work: NDArray[np.float64]
    halo_edges: IntArray

    @property
    def cut_edges(self) -> int:
        """Edges whose ends have different owners."""
        return int(self.halo_edges.sum())

    def without(self, rows: IntArray, edges: IntArray, edge_work: float) -> "RankLoads":
        """Return the loads without ``rows`` [P] halo rows and ``edges`` [P] from them, each of ``edge_work``."""
        return RankLoads(
            self.vertices,
            self.edges - edges,
            self.halo_rows - rows,
            self.work - edge_work * edges,
            self.halo_edges - edges,
        )

    def imbalances(self) -> dict[str, float]:
        """Return the largest rank over the mean of each load."""
        loads = {"vertices": self.vertices, "edges": self.edges, "halo_rows": self.halo_rows, "work": self.work}
        return {name: over_mean(load) for name, load in loads.items()}


def rank_loads(
    graph: Graph, owner: NDArray[Any], ranks: int, weights: Mapping[str, float], apart: IntArray | None = None
) -> RankLoads:
    """Count the load of each rank. ``owner`` int [V]; ``weights`` as in :func:`vertex_work`. ``apart`` int64 [P]: the
    host of each rank, where ranks do without the halo rows of other hosts and their edges."""
    owner = np.asarray(owner)
    edges = np.bincount(owner, graph.csr.degrees(), minlength=ranks).astype(np.int64)
    hosts = np.zeros(ranks, dtype=np.int64) if apart is None else apart
    halo, cut = _halo_rows(np.asarray(graph.csr.indptr), np.asarray(graph.csr.indices), owner, hosts)
    work = np.bincount(owner, vertex_work(graph, weights), minlength=ranks).astype(np.float64)
    if apart is not None:
        lost = edges_between(graph.csr, owner, apart)
        edges, work = edges - lost, work - weights.get("edges", 0.0) * lost
    return RankLoads(np.bincount(owner, minlength=ranks).astype(np.int64), edges, halo, work, cut)


@njit(cache=True)
def _halo_rows(indptr, indices, owner, hosts):  # type: ignore[no-untyped-def]
    """Count the distinct sources of each rank that other ranks of its host own, and its edges from them, int64 [P]
    each."""
    ranks = len(hosts)
    order, starts = group_by_owner(owner, ranks)
    stamp = np.full(len(owner), -1, dtype=np.int32)
    halo, cut = np.zeros(ranks, dtype=np.int64), np.zeros(ranks, dtype=np.int64)
    for rank in range(ranks):
        for vertex in order[starts[rank] : starts[rank + 1]]:
            for edge in range(indptr[vertex], indptr[vertex + 1]):
                source = indices[edge]
                if owner[source] != rank and hosts[owner[source]] == hosts[rank]:
                    cut[rank] += 1
                    if stamp[source] != rank:
                        stamp[source] = rank
                        halo[rank] += 1
    return halo, cut
