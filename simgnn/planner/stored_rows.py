"""Columns, routes and buffers of a mini-batch plan, and the chain of ops that stages a batch's rows."""

import numpy as np

from simgnn.emit.batches.names import (
    FEATURE_ROWS,
    FEATURES,
    HOT,
    INPUTS,
    SEEDS,
    STAGE_BLOCKS,
    STAGE_ROWS,
    TAKE_HOT,
    VERTICES,
    block,
    drawn,
    edges_of,
    rows_after,
)
from simgnn.emit.batches.placement import RowStore
from simgnn.emit.batches.staging import StageInputs, Staging, add_route, received
from simgnn.emit.communication import BatchCommunication
from simgnn.graph.graph import GraphFacts
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.planner.update import add_labels
from simgnn.policies.communication.store import ROUTE
from simgnn.policies.placement.store import CACHE_ROUTE, FIRST_ROUTE
from simgnn.policy import MiniBatchSchedule
from simgnn.program.builder import ProgramBuilder, accesses
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Access, Nature, Op, Transfer, Work
from simgnn.program.scratch import Scratch
from simgnn.program.sizes import Column, IntArray
from simgnn.sampling.batches.sizes import BatchSizes

WORD_BYTES = 4
SEED_BYTES = 8
DRAWN_SEEDS = "drawn_seeds"
BLOCK_BYTES, STAGED_ROWS, HITS = Column("batch/bytes"), Column("rows/staged"), Column("rows/hits")


class StoredRows:
    """Puts the sizes of a run's batches into a builder. ``ready``: the op that completes a batch's rows."""

    def __init__(
        self, builder: ProgramBuilder, batches: BatchSizes, stats: PartitionStats, schedule: MiniBatchSchedule,
        placement: RowStore,
    ) -> None:  # fmt: skip
        self.builder = builder
        self.batches, self.placement = batches, placement
        self.several_hosts = len(set(builder.hosts)) > 1
        self.cache = batches.cache if self.several_hosts else None
        self.ready = TAKE_HOT if self.cache is not None else STAGE_ROWS
        self.hops = len(batches.edges)
        self._width = stats.facts.feature_width
        self._owned = stats.rows
        self._columns()
        self._buffers(stats.facts, schedule)

    def drawn(self) -> tuple[Access, ...]:
        """What drawing a batch writes: its vertices, its seeds, its blocks by hop."""
        return accesses([VERTICES, DRAWN_SEEDS, *map(drawn, range(1, self.hops + 1))])

    def check_fits(self) -> None:
        """Raise :class:`~simgnn.errors.ConfigError` where the placement's limit cannot hold what is staged and kept."""
        builder, largest = self.builder, self.builder.columns["largest/inputs"]
        cached = np.zeros_like(largest) if self.cache is None else self.cache.rows
        self.placement.check_fits(cached, largest, builder.buffers[INPUTS].depth, self._width * builder.item_bytes)

    def staged(self, communication: BatchCommunication) -> list[Op]:
        """The chain of ops: rows of other hosts, blocks and rows to the device, hot rows, the next epoch's hot rows."""
        staging = Staging(self.builder, self._width)
        pulled = [communication.pull(staging)] if self.several_hosts else []
        hops = range(1, self.hops + 1)
        blocks = Op(
            STAGE_BLOCKS, OpKind.H2D, Nature.STAGING, accesses([DRAWN_SEEDS, *map(drawn, hops)]),
            accesses([SEEDS, *map(block, hops)]), work=(Work("copy", {"bytes": BLOCK_BYTES, "item_bytes": 1}),),
            transfer=Transfer(1, BLOCK_BYTES), category="comm_overhead", scratch=Scratch(handed_over=True),
        )  # fmt: skip
        staging.add(blocks)
        reads = accesses([VERTICES, FEATURES, *pulled])
        staging.to_device(STAGE_ROWS, reads, Access(INPUTS), STAGED_ROWS, StageInputs)
        if self.cache is not None:
            self.placement.take(staging)
            self.placement.fill_next(staging)
        return staging.ops

    def first(self) -> list[Op]:
        """The chain of ops that fills the first epoch's caches; empty without hot rows."""
        staging = Staging(self.builder, self._width)
        if self.cache is not None:
            self.placement.fill_first(staging)
        return staging.ops

    def _columns(self) -> None:
        builder, batches = self.builder, self.batches
        for hop in range(self.hops + 1):
            builder.column(rows_after(hop).name, batches.rows[hop])
        for hop in range(1, self.hops + 1):
            builder.column(edges_of(hop).name, batches.edges[hop - 1])
            builder.column(f"words/{hop}", self._words(hop))
        words = np.sum([self._words(hop) for hop in range(1, self.hops + 1)], axis=0)
        builder.column(BLOCK_BYTES.name, WORD_BYTES * words + SEED_BYTES * batches.rows[0])
        builder.column("largest/seeds", _largest(batches.rows[0]))
        builder.column("largest/inputs", _largest(batches.rows[-1]))
        builder.column("train_vertices", batches.training)
        here = batches.local
        if self.several_hosts:
            add_route(builder, ROUTE, batches.pulled)
            here = here + builder.columns[received(ROUTE).name]
        builder.column(STAGED_ROWS.name, here)
        if self.cache is not None:
            builder.column(HITS.name, batches.hits)
            builder.column("hot/rows", self.cache.rows)
            if self.placement.refills:
                builder.column("hot/kept", self.cache.kept)
                add_route(builder, CACHE_ROUTE, self.cache.pulled)
            add_route(builder, FIRST_ROUTE, self.cache.first)

    def _words(self, hop: int) -> IntArray:
        """int32 numbers of a block: a pointer for each row and the end, a source for each edge."""
        rows = self.batches.rows[hop - 1]
        words: IntArray = rows + (rows > 0) + self.batches.edges[hop - 1]
        return words

    def _buffers(self, facts: GraphFacts, schedule: MiniBatchSchedule) -> None:
        """Add rings of batches. A ring's copies are as large as the run's largest batch of the rank."""
        builder, held = self.builder, schedule.drawn_batches
        staged = schedule.staged_batches(self.batches.steps)
        seeds, inputs = Column("largest/seeds"), Column("largest/inputs")
        builder.buffer(VERTICES, inputs, 1, "int64", space="host", depth=held, ring="step")
        builder.buffer(DRAWN_SEEDS, seeds, 1, "int64", space="host", depth=held, ring="step")
        builder.buffer(SEEDS, seeds, 1, "int64", depth=staged, ring="step")
        builder.buffer(INPUTS, inputs, self._width, depth=staged, ring="step", lasting=True)
        for hop in range(1, self.hops + 1):
            words = builder.column(f"largest/words/{hop}", _largest(self._words(hop)))
            builder.buffer(drawn(hop), words, 1, "int32", space="host", depth=held, ring="step")
            builder.buffer(block(hop), words, 1, "int32", depth=staged, ring="step")
        hosts = np.array(builder.hosts)
        on_hosts = np.bincount(hosts, self._owned)
        rows = builder.column(FEATURE_ROWS.name, on_hosts[hosts])
        builder.buffer(FEATURES, rows, self._width, space="host-shared", persistent=True)
        add_labels(builder, "labels", Column("train_vertices"), facts)
        if self.cache is not None:
            builder.buffer(HOT, Column("hot/rows"), self._width, depth=self.placement.caches, lasting=True)


def _largest(column: IntArray) -> IntArray:
    """The most of any step, int64 [P]."""
    return np.asarray(column.max(axis=(1, 2)))
