"""Quality measures of a partition, from its statistics alone."""

from dataclasses import asdict, dataclass

import numpy as np

from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.program.sizes import IntArray


@dataclass(frozen=True)
class Quality:
    """How good a partition is.

    ``edge_cut``: stored (directed) edges whose ends have different owners; None for a vertex-cut. ``copies``: halo
    rows, or mirrors, of all ranks. ``replication_factor``: rows held over V. ``vertex_imbalance``, ``edge_imbalance``:
    the largest rank over the mean; vertices are owned rows in an edge-cut, masters and mirrors in a vertex-cut.
    ``inner`` and ``outer`` connections of a rank: rows that it sends or receives in one sync, inside its host and
    across; the sum over ranks counts each copy twice, at both of its ends. Source: CDFGNN, section 4 (F9, F10 of our
    spec).
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
    """Measure the partition that ``stats`` describes. Without a ``cut_edges`` table the edge cut is unknown (None)."""
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
    """The fullest rank over the mean of all, from what each holds, int64 [P]; 1 where none holds anything."""
    total = int(held.sum())
    return float(held.max() * len(held) / total) if total else 1.0
