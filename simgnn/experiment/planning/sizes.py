"""The size table of a full-graph program on an edge-cut, from PartitionStats alone."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from simgnn.experiment.planning.builder import ProgramBuilder
from simgnn.partition.stats import PartitionStats
from simgnn.program.sizes import IntArray, Route

SPARSE = "sparse input features"


@dataclass(frozen=True)
class SizeColumns:
    """Per-rank numbers, and for sparse features the encoded bytes of each pair's halo rows."""

    stats: PartitionStats
    feature_nonzeros: IntArray | None
    halo_nonzeros: IntArray | None
    halo_bytes: IntArray | None

    @property
    def total_halo_nonzeros(self) -> int | None:
        """Stored values of all halo rows, over all ranks."""
        return None if self.halo_nonzeros is None else int(self.halo_nonzeros.sum())

    def add_to(self, builder: ProgramBuilder, aggregated: bool) -> dict[str, Any]:
        """Put columns and routes into a builder; returns the fields of ``Names`` that are sizes."""
        stats = self.stats
        halo_rows = stats.halo_rows()
        builder.route("halo", stats.halo)
        send_rows = np.bincount(stats.halo.source, stats.halo.rows, minlength=stats.ranks).astype(np.int64)
        fields: dict[str, Any] = {
            "rows": builder.column("rows", stats.rows),
            "halo_rows": builder.column("halo_rows", halo_rows),
            "sources": builder.column("sources", stats.rows + halo_rows),
            "send_rows": builder.column("send_rows", send_rows),
            "edges": builder.column("edges", stats.edges),
            "train_rows": builder.column("train_rows", stats.table("train_rows", "the loss")),
            "feature_nonzeros": None,
            "halo_nonzeros": None,
            "aggregated_nonzeros": None,
        }
        if self.feature_nonzeros is None or self.halo_nonzeros is None or self.halo_bytes is None:
            return fields
        builder.route("halo_feature_bytes", Route.from_matrix(self.halo_bytes))
        builder.column("send_feature_bytes", self.halo_bytes.sum(axis=1))
        builder.column("halo_feature_bytes", self.halo_bytes.sum(axis=0))
        fields["feature_nonzeros"] = builder.column("feature_nonzeros", self.feature_nonzeros)
        fields["halo_nonzeros"] = builder.column("halo_nonzeros", self.halo_nonzeros.sum(axis=0))
        if aggregated:
            table = stats.table("aggregated_feature_nonzeros", "the sum of sparse input features")
            fields["aggregated_nonzeros"] = builder.column("aggregated_nonzeros", table)
        return fields


def size_columns(stats: PartitionStats, item_bytes: int) -> SizeColumns:
    """Read what the statistics hold; sparse features need two tables more."""
    if stats.facts.feature_nonzeros is None:
        return SizeColumns(stats, None, None, None)
    nonzeros = stats.table("feature_nonzeros", SPARSE)
    halo = np.asarray(stats.table("halo_feature_nonzeros", SPARSE), dtype=np.int64)
    rows = stats.halo.matrix(stats.ranks)
    return SizeColumns(stats, nonzeros, halo, rows * 4 + halo * (4 + item_bytes))
