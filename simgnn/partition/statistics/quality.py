"""Quality measures of a partition: edge cut, replication, balance of ranks and of the types of vertices."""

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from simgnn.graph.graph import MASKS, Graph
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.program.sizes import IntArray


@dataclass(frozen=True)
class Quality:
    """How good a partition is.

    ``edge_cut``: stored (directed) edges whose ends have different owners; None for a vertex-cut. ``copies``: halo
    rows, or mirrors, of all ranks. ``replication_factor``: rows held over V. ``vertex_imbalance``, ``edge_imbalance``:
    the largest rank over the mean; vertices are owned rows in an edge-cut, masters and mirrors in a vertex-cut.
    ``inner`` and ``outer`` connections of a rank: rows that it sends or receives in one sync, inside its host and
    across; the sum over ranks counts each copy at both of its ends. Source: CDFGNN, section 4.
    """

    ranks: int
    edge_cut: int | None
    edge_cut_share: float | None
    replication_factor: float
    vertex_imbalance: float
    edge_imbalance: float
    copies: int
    copies_max: int
    inner_sum: int
    inner_max: int
    inner_mean: float
    outer_sum: int
    outer_max: int
    outer_mean: float

    def as_dict(self) -> dict[str, int | float | None]:
        """Plain values, for JSON."""
        return asdict(self)


def measure(stats: PartitionStats) -> Quality:
    """Measure a partition. Without a ``cut_edges`` table the edge cut is unknown (None)."""
    copies = stats.halo_rows()
    cut = int(stats.tables["cut_edges"].sum()) if "cut_edges" in stats.tables else None
    inner, outer = connections(stats)
    held = stats.rows + copies if stats.kind == "vertex-cut" else stats.rows
    return Quality(
        ranks=stats.ranks,
        edge_cut=cut,
        edge_cut_share=None if cut is None else cut / max(1, int(stats.edges.sum())),
        replication_factor=float((stats.rows.sum() + copies.sum()) / max(1, int(stats.rows.sum()))),
        vertex_imbalance=over_mean(held),
        edge_imbalance=over_mean(stats.edges),
        copies=int(copies.sum()),
        copies_max=int(copies.max()),
        inner_sum=int(inner.sum()),
        inner_max=int(inner.max()),
        inner_mean=float(inner.mean()),
        outer_sum=int(outer.sum()),
        outer_max=int(outer.max()),
        outer_mean=float(outer.mean()),
    )


def connections(stats: PartitionStats) -> tuple[IntArray, IntArray]:
    """Inner and outer connections of each rank, int64 [P] each: copies held of, plus copies held by, other ranks."""
    near = stats.hosts[stats.halo.source] == stats.hosts[stats.halo.target]
    counts = []
    for chosen in (near, ~near):
        ends = np.concatenate((stats.halo.source[chosen], stats.halo.target[chosen]))
        rows = np.tile(stats.halo.rows[chosen], 2)
        counts.append(np.bincount(ends, rows, minlength=stats.ranks).astype(np.int64))
    return counts[0], counts[1]


def over_mean(held: IntArray) -> float:
    """The largest entry of ``held`` int64 [P] over the mean; 1 where all are zero."""
    total = int(held.sum())
    return float(held.max() * len(held) / total) if total else 1.0


TYPES = (*MASKS, "none")
"""Type of a vertex: the mask that holds it, or none."""


@dataclass(frozen=True)
class TypeBalance:
    """How evenly P ranks share the vertices of one type, and the edges that end in them: see :func:`over_mean`."""

    type: str
    vertices: int
    edges: int
    vertex_imbalance: float
    edge_imbalance: float


def vertex_types(graph: Graph) -> NDArray[np.int8]:
    """Place in :data:`TYPES` of each vertex, int8 [V]."""
    types = np.full(graph.vertices, len(MASKS), np.int8)
    for place, name in enumerate(MASKS):
        mask = getattr(graph, f"{name}_mask")
        if mask is not None:
            types[mask] = place
    return types


def type_balances(graph: Graph, owner: NDArray[np.int32], ranks: int) -> tuple[TypeBalance, ...]:
    """Balance of every type that the graph has, in an edge-cut: a rank holds the edges that end in its vertices.
    ``owner`` int32 [V]. Source: DistDGL's constraints for METIS, Zheng et al., IA3 2020 (docs/systems/distdgl.md)."""
    bins = vertex_types(graph).astype(np.int64) * ranks + np.asarray(owner)
    cells = len(TYPES) * ranks
    vertices = np.bincount(bins, minlength=cells).reshape(-1, ranks)
    edges = np.bincount(bins, graph.csr.degrees(), minlength=cells).astype(np.int64).reshape(-1, ranks)
    return tuple(
        TypeBalance(name, int(held.sum()), int(ended.sum()), over_mean(held), over_mean(ended))
        for name, held, ended in zip(TYPES, vertices, edges, strict=True)
        if held.any()
    )
