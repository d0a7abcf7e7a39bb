"""What a number of chunks amounts to: rows that move and that a device holds, costs of the orders."""

from dataclasses import dataclass
from typing import Any

from simgnn.graph.graph import Graph
from simgnn.partition.chunks.needed_rows import measure_order
from simgnn.partition.chunks.partitioner import ChunkSettings
from simgnn.partition.chunks.reorganise import OrderCost
from simgnn.partition.chunks.store import ChunkArtifact, divided
from simgnn.partition.chunks.tables import buffer_rows
from simgnn.partition.chunks.volumes import Volumes
from simgnn.partition.store import PartitionArtifact


@dataclass(frozen=True)
class ChunkCounts:
    """Counts with ``chunks`` chunks of each rank, in the chosen ``order``. ``replication_factor``: V_ori over vertices.
    ``buffer_rows``: rows of the largest merged buffer of a rank. ``initial``: what decided, of the initial order;
    ``cost``: of the chosen one, in seconds of a pass over a layer for each byte of a row (None: no rates are known)."""

    chunks: int
    replication_factor: float
    volumes: Volumes
    buffer_rows: int
    order: str
    initial: OrderCost
    cost: float | None

    def as_dict(self) -> dict[str, Any]:
        """Return all figures as plain values for JSON."""
        return {
            "chunks": self.chunks,
            "replication_factor": self.replication_factor,
            **self.volumes.as_dict(),
            "buffer_rows": self.buffer_rows,
            "order": self.order,
            "cost_s_per_row_byte": self.cost,
            "initial": {
                "v_p2p": self.initial.v_p2p, "v_ru": self.initial.v_ru, "cost_s_per_row_byte": self.initial.cost
            },
        }  # fmt: skip


def kept_counts(artifact: ChunkArtifact, vertices: int) -> ChunkCounts:
    """Return the counts of chunks that are kept on disk."""
    tables, costs = artifact.tables, artifact.costs
    volumes, chosen = artifact.volumes, artifact.chosen
    return ChunkCounts(
        chunks=artifact.chunks,
        replication_factor=volumes.v_ori / vertices,
        volumes=volumes,
        buffer_rows=int(buffer_rows(tables).max()),
        order=chosen,
        initial=costs["initial"],
        cost=costs[chosen].cost,
    )


def counted(graph: Graph, parts: PartitionArtifact, settings: ChunkSettings) -> ChunkCounts:
    """Count what ``settings`` would amount to, without keeping it. Raises :class:`ConfigError` as :func:`divided`."""
    chunked, found = divided(graph, parts, settings)
    measured = measure_order(chunked, found.transition)
    return ChunkCounts(
        chunks=settings.chunks,
        replication_factor=measured.volumes.v_ori / graph.vertices,
        volumes=measured.volumes,
        buffer_rows=int(measured.buffer_rows.max()),
        order=found.chosen,
        initial=found.costs["initial"],
        cost=found.costs[found.chosen].cost,
    )
