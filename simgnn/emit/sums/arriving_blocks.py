"""Broadcasts of whole blocks: ranks that have rows send them to all others, which add them to their sums."""

from collections.abc import Iterator

import numpy as np

from simgnn.emit.blocks import Arrived, BlockSync, BlockTransfer, ExpandBlocks, PlainBlocks
from simgnn.emit.segments import Segments
from simgnn.emit.sync import Phase
from simgnn.model.spec import LayerSpec
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.program.calendar import EVALUATE
from simgnn.program.ops import ITEM_BYTES, Dependency
from simgnn.program.sizes import Column, IntArray

LAST_OP = "update/optimize"
"""What the first broadcast of an epoch waits for, so that epochs follow one another."""


class ArrivingBlocks:
    """Emits the transfers of blocks for whatever sums over them.

    ``edges`` [P, P]: edges of each block, [rank that sums, rank whose rows are summed]. ``sent_in``: the templates in
    which input rows travel; ``ahead``: blocks that may arrive while one is multiplied.
    """

    def __init__(
        self, segments: Segments, stats: PartitionStats, edges: IntArray, expand: ExpandBlocks,
        sent_in: tuple[str, ...], ahead: int,
    ) -> None:  # fmt: skip
        self.segments, self.builder, self.names = segments, segments.builder, segments.names
        self.expand, self.sent_in, self.ahead = expand, sent_in, ahead
        self.rows, self.ranks = tuple(stats.rows.tolist()), stats.ranks
        self.roots = [root for root, rows in enumerate(self.rows) if rows]
        self._edges = edges
        self._epoch_began = False
        others = [max((r for j, r in enumerate(self.rows) if j != i), default=0) for i in range(self.ranks)]
        self._arriving = self.builder.column("block_rows", np.array(others, dtype=np.int64))

    def sync(
        self, layer: LayerSpec, phase: Phase, source: str, width: int, templates: tuple[str, ...],
        sent_in: tuple[str, ...],
    ) -> BlockSync:  # fmt: skip
        """Describe how the blocks of ``source`` travel in some templates."""
        return BlockSync(
            templates, sent_in, layer.index, phase, width, source, self.rows, self.names.rows, self._arriving,
            layer.index == 1 and source == self.segments.own(layer), self.ahead,
        )  # fmt: skip

    def each_block(self, sync: BlockSync) -> Iterator[tuple[BlockTransfer, int, int, Arrived]]:
        """For each root, emit the transfer of its block, then yield (transfer, position, root, buffers of its rows)."""
        transfer = self._transfer(sync)
        first = self._after(sync, 0)
        if self.ranks > 1:
            transfer.begin(first)
        for position, root in enumerate(self.roots):
            arrived = Arrived(sync.source, sync.source)
            if self.ranks > 1:
                arrived = transfer.send(root, self._after(sync, position) if position else first)
            yield transfer, position, root, arrived

    def checks(self, transfer: BlockTransfer, position: int) -> tuple[list[str], dict[str, int | str]]:
        """The buffers and options with which the last sum of a sync checks how old its blocks are."""
        if self.ranks == 1 or position + 1 < len(self.roots):
            return [], {}
        checked, options = transfer.checks()
        return [] if checked is None else [checked], options

    def follows(self, sync: BlockSync, position: int) -> tuple[Dependency, ...]:
        """The ops that the sum over a block waits for besides its block: blocks that arrive once and stay wait for no
        broadcast, so that they would be summed while the epoch before still communicates, which no run does."""
        stay = position == 0 and sync.sent_in != sync.templates
        return (Dependency(LAST_OP, epochs_back=1),) if stay else ()

    def block_edges(self, root: int, transposed: bool, loops: bool) -> Column:
        """The number of edges from a root's block on each rank; with ``loops``, self loops count."""
        edges = np.array(self._edges.T[:, root] if transposed else self._edges[:, root])
        if loops:
            edges[root] += self.rows[root]
        return self.builder.column(f"block_edges/{root}{'/transposed' if transposed else ''}", edges)

    def keep_degrees(self, root: int) -> None:
        """Count the memory of the in-degrees (int64) of a block's sources."""
        self.builder.keep(f"degrees of block {root}", (self.rows[root], ITEM_BYTES["int64"]))

    def _transfer(self, sync: BlockSync) -> BlockTransfer:
        """Freshness decides in training only: evaluations are exact, and input rows that travel once are sent as is."""
        if sync.templates == self.names.train:
            return self.expand(sync)
        return PlainBlocks(self.builder, sync, None)

    def _after(self, sync: BlockSync, position: int) -> tuple[Dependency, ...]:
        """The ops that a broadcast waits for: at most ``ahead`` blocks wait to be summed, and epochs do not overlap."""
        behind = position - 1 - self.ahead
        if behind >= 0:
            return (Dependency(sync.op(f"aggregate/{self.roots[behind]}")),)
        if position == 0 and EVALUATE not in sync.templates and not self._epoch_began:
            self._epoch_began = True
            return (Dependency(LAST_OP, epochs_back=1),)
        return ()
