"""How evenly a partition spreads vertices of each type and their edges: the constraints that DistDGL gives to METIS."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simgnn.graph.graph import Graph
from simgnn.partition.statistics.quality import over_mean

TYPES = ("train", "validation", "test", "none")
"""Type of a vertex: the mask that holds it, or none."""


@dataclass(frozen=True)
class TypeBalance:
    """Vertices of one type, and the edges that end in them, over P ranks.

    ``vertices``, ``edges``: their numbers; ``vertex_imbalance``, ``edge_imbalance``: those of the fullest rank times P
    over the number (1 where there are none).
    """

    type: str
    vertices: int
    edges: int
    vertex_imbalance: float
    edge_imbalance: float


def vertex_types(graph: Graph) -> NDArray[np.int8]:
    """Place in :data:`TYPES` of each vertex, int8 [V]."""
    types = np.full(graph.vertices, len(TYPES) - 1, np.int8)
    for place, name in enumerate(TYPES[:-1]):
        mask = getattr(graph, f"{name}_mask")
        if mask is not None:
            types[mask] = place
    return types


def type_balances(graph: Graph, owner: NDArray[np.int32], ranks: int) -> tuple[TypeBalance, ...]:
    """Balance of every type that the graph has, in an edge-cut: a rank holds the edges that end in its vertices.

    ``owner`` int32 [V], of ``ranks`` = P. Source: DistDGL, Zheng et al., IA3 2020 (docs/systems/distdgl.md).
    """
    bins = vertex_types(graph).astype(np.int64) * ranks + np.asarray(owner)
    cells = len(TYPES) * ranks
    vertices = np.bincount(bins, minlength=cells).reshape(-1, ranks)
    edges = np.bincount(bins, graph.csr.degrees(), minlength=cells).astype(np.int64).reshape(-1, ranks)
    return tuple(
        TypeBalance(name, int(held.sum()), int(ended.sum()), over_mean(held), over_mean(ended))
        for name, held, ended in zip(TYPES, vertices, edges, strict=True)
        if held.any()
    )
