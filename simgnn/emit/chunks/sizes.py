"""Numbers of a partition in chunks, by step of an epoch and of an evaluation, as columns and routes of a program."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simgnn.emit.builder import ProgramBuilder
from simgnn.emit.chunks.names import (
    BATCH,
    EDGES,
    FAR,
    FIRST,
    LISTS,
    MERGED,
    NEAR,
    NEED,
    NEEDED,
    OTHERS,
    RANK_ROWS,
    READ,
    ROWS,
    TRAIN_ROWS,
    listed,
)
from simgnn.partition.chunks import tables
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.program.ops import Space
from simgnn.program.sizes import IntArray, Route

REASON = "training chunk by chunk"


@dataclass(frozen=True)
class ChunkSizes:
    """The tables of chunks of a partition. ``layers``: L of the model. ``reuses``, ``peers``: how rows move, see
    :class:`~simgnn.emit.chunks.policies.ChunkCommunication`. ``gathers``: layers read rows that are gathered.
    ``host``: the space of buffers on hosts.

    An epoch has 2 L C + 1 steps: C chunks of each layer forward and backward, and the update. An evaluation has
    L C + 1: C chunks of each layer, and the sum of its counts over ranks; L C with one rank."""

    stats: PartitionStats
    layers: int
    reuses: bool
    peers: bool
    gathers: bool
    host: Space

    @cached_property
    def _tables(self) -> Mapping[str, IntArray]:
        names = (*tables.BY_BATCH, *tables.BY_PAIR)
        return {name: np.asarray(self.stats.table(name, REASON), dtype=np.int64) for name in names}

    @property
    def chunks(self) -> int:
        """C, the chunks of each rank."""
        return int(self._tables[tables.ROWS].shape[1])

    @cached_property
    def batches(self) -> IntArray:
        """The batch of each step, those of an evaluation behind those of an epoch; C where there is none, int64."""
        walk, none = np.arange(self.chunks), [self.chunks]
        summing = [none] if self.stats.ranks > 1 else []
        return np.concatenate((*[walk] * (2 * self.layers), none, *[walk] * self.layers, *summing))

    @property
    def moves_between_ranks(self) -> bool:
        """Whether a chunk of any rank needs rows of another."""
        return len(self._tables[tables.REMOTE]) > 0

    def by_step(self, values: IntArray) -> IntArray:
        """Return numbers of batches [..., C] by step [..., S], zero in steps without a batch."""
        wide = np.concatenate((values, np.zeros((*values.shape[:-1], 1), np.int64)), axis=-1)
        return np.asarray(wide[..., self.batches])

    def of_batches(self) -> Iterator[tuple[str, IntArray]]:
        """Yield the numbers of rows of each list of :data:`LISTS`, int64 [P, C]."""
        found = self._tables
        near = found[tables.NEEDED] - found[tables.ROWS] - self._remote.sum(axis=1)
        read = self._new if self.reuses else self._remote
        loaded = found[tables.LOADED] if self.reuses else found[tables.TRANSITION]
        evicted = found[tables.EVICTED] if self.reuses else found[tables.TRANSITION]
        counts = {
            "load_from": loaded, "load_to": loaded, "sent": read.sum(axis=0), "received": read.sum(axis=1),
            "own": found[tables.ROWS], "near": near, "others": near + self._remote.sum(axis=1),
            "collected": self._remote.sum(axis=0), "evict_from": evicted, "evict_to": evicted,
        }  # fmt: skip
        if not self.gathers:
            del counts["others"]
        yield from counts.items()

    @cached_property
    def _remote(self) -> IntArray:
        """Rows that a rank needs of each owner, int64 [P, owner, C]."""
        return self._dense(tables.REMOTE)

    @cached_property
    def _new(self) -> IntArray:
        return self._dense(tables.REMOTE_NEW)

    def _dense(self, name: str) -> IntArray:
        ranks = self.stats.ranks
        dense = np.zeros((ranks, ranks, self.chunks), np.int64)
        rank, batch, owner, rows = self._tables[name].T
        dense[rank, owner, batch] = rows
        return dense

    def route(self, rows: IntArray) -> Route:
        """Return the route from owners to the ranks that need their rows, int64 [P, owner, C], by step."""
        source, target = np.nonzero(self._remote.any(axis=2).T)
        return Route(source.astype(np.int32), target.astype(np.int32), self.by_step(rows[target, source]))

    def add_to(self, builder: ProgramBuilder) -> None:
        """Add columns, routes and the buffers of lists of rows."""
        found, stats = self._tables, self.stats
        rows, far = found[tables.ROWS], self._remote.sum(axis=1)
        near = found[tables.NEEDED] - rows - far
        builder.column(RANK_ROWS.name, stats.rows)
        builder.column(MERGED.name, tables.buffer_rows(found))
        trained = np.asarray(stats.table("train_rows", "the loss"), dtype=np.float64)
        share = np.ceil(rows * (trained / np.maximum(stats.rows, 1))[:, None]).astype(np.int64)
        by_step = {
            ROWS: rows, FIRST: np.cumsum(rows, axis=1) - rows, EDGES: found[tables.EDGES], NEEDED: found[tables.NEEDED],
            NEAR: near, FAR: far, OTHERS: near + far, TRAIN_ROWS: np.minimum(share, rows),
        }  # fmt: skip
        for column, values in by_step.items():
            builder.column(column.name, self.by_step(values))
        batches = np.minimum(self.batches, self.chunks - 1)
        builder.column(BATCH.name, np.tile(batches, (stats.ranks, 1)))
        for name, counts in self.of_batches():
            total = builder.column(f"chunks/{name}/all", counts.sum(axis=1))
            builder.column(f"chunks/{name}/rows", self.by_step(counts))
            builder.column(f"chunks/{name}/first", self.by_step(np.cumsum(counts, axis=1) - counts))
            builder.buffer(
                listed(name),
                total,
                1,
                "int64",
                space="device" if LISTS[name] == "device" else self.host,
                persistent=True,
            )
        if self.moves_between_ranks:
            builder.route(READ, self.route(self._new if self.reuses else self._remote))
            builder.route(NEED, self.route(self._remote))
