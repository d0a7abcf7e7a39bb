"""Sums over blocks: as each rank's block of rows arrives, the edges from it add to the sums of own rows."""

from collections.abc import Iterator

import numpy as np

from simgnn.emit.blocks import Arrived, BlockSync, BlockTransfer, ExpandBlocks, PlainBlocks
from simgnn.emit.communication import CopiedRows
from simgnn.emit.segments import BACKWARD, FORWARD, Segments
from simgnn.emit.sums.block_attention import BlockAttention
from simgnn.emit.sync import Phase
from simgnn.model import costs
from simgnn.model.spec import LayerSpec
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.program.kinds import OpKind, Segment
from simgnn.program.ops import ITEM_BYTES, Dependency
from simgnn.program.program import EVALUATE
from simgnn.program.scratch import Scratch, rows_of
from simgnn.program.sizes import Column, IntArray, Size

SCALINGS = {"gcn": "gcn", "sage": "mean", "gin": "sum"}
"""Kind of a layer -> the weights of the edges that it sums over."""
LAST_OP = "update/optimize"
"""What the first broadcast of an epoch waits for, so that epochs follow one another."""


class BlockSums:
    """See :class:`~simgnn.emit.communication.Sums`.

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

    def fetch_inputs(self) -> None:
        """Nothing: blocks are fetched where they are summed."""

    def copies(self, layer: LayerSpec) -> CopiedRows | None:
        """None: a rank transforms its own rows only."""
        return None

    def hoist(self, layer: LayerSpec) -> None:
        """The constant sum of layer 1's inputs, whose blocks travel once."""
        self.builder.buffer("aggregated/1", self.names.rows, layer.width_in, persistent=True)
        self._sum(layer, "setup", "features", "aggregated/1", layer.width_in, self.names.setup, self.names.setup)

    def forward(self, layer: LayerSpec, source: str) -> None:
        """Sums of what is in ``source``; where inputs are summed, their product with the weights then."""
        if layer.hoisted:
            return
        if layer.attends:
            BlockAttention(self, layer).forward(source)
            return
        index, width = layer.index, layer.width_in if layer.sums_inputs else layer.prepared_width
        target = self.builder.buffer(
            f"{'summed' if layer.sums_inputs else 'aggregated'}/{index}", self.names.rows, width
        )
        once = source == "features" and self.sent_in != self.names.forward
        if once:
            self._sum(layer, "forward", source, target, width, self.names.forward, self.sent_in)
        else:
            for templates in (self.names.train, (EVALUATE,)):
                self._sum(layer, "forward", source, target, width, templates, templates)
        if layer.sums_inputs:
            result = self.builder.buffer(f"aggregated/{index}", self.names.rows, layer.width_out)
            pieces = costs.product(costs.RowSet[Size](self.names.rows), layer.width_in, layer.width_out)
            self.segments.forward(
                layer, Segment.PREPARE, OpKind.TRANSFORM, [target], [result], self.builder.work(pieces)
            )

    def backward(self, layer: LayerSpec, source: str, target: str) -> None:
        """Sums of the blocks of ``d/aggregated/LAYER``, over the edges the other way round."""
        if layer.attends:
            BlockAttention(self, layer).backward(source, target)
            return
        gradient = f"d/aggregated/{layer.index}"
        templates = self.names.train
        self._sum(layer, "backward", gradient, target, layer.prepared_width, templates, templates)

    @property
    def whole(self) -> None:
        """A layer of one segment has no sum that could be cut into blocks."""
        return None

    def sync(
        self, layer: LayerSpec, phase: Phase, source: str, width: int, templates: tuple[str, ...],
        sent_in: tuple[str, ...],
    ) -> BlockSync:  # fmt: skip
        """The blocks of ``source`` as they travel in some templates."""
        return BlockSync(
            templates, sent_in, layer.index, phase, width, source, self.rows, self.names.rows, self._arriving,
            source == "features", self.ahead,
        )  # fmt: skip

    def each_block(self, sync: BlockSync) -> Iterator[tuple[BlockTransfer, int, int, Arrived]]:
        """Emits the transfers of a sync, one before each (transfer, position, root, buffers of the root's rows)."""
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
        """What the last of a sync's sums reads and is told besides, so that it makes sure of ages."""
        if self.ranks == 1 or position + 1 < len(self.roots):
            return [], {}
        checked, options = transfer.checks()
        return [] if checked is None else [checked], options

    def block_edges(self, root: int, transposed: bool, loops: bool) -> Column:
        """Edges of a root's block on each rank; with ``loops``, a vertex counts among its own sources."""
        edges = np.array(self._edges.T[:, root] if transposed else self._edges[:, root])
        if loops:
            edges[root] += self.rows[root]
        return self.builder.column(f"block_edges/{root}{'/transposed' if transposed else ''}", edges)

    def _sum(
        self, layer: LayerSpec, phase: Phase, source: str, target: str, width: int, templates: tuple[str, ...],
        sent_in: tuple[str, ...],
    ) -> None:  # fmt: skip
        if not templates:
            return
        sync = self.sync(layer, phase, source, width, templates, sent_in)
        for transfer, position, root, arrived in self.each_block(sync):
            self._add_block(layer, sync, transfer, position, root, arrived, target)

    def _transfer(self, sync: BlockSync) -> BlockTransfer:
        """Freshness has its say in training; evaluation is exact, and what travels once is sent as it is."""
        if sync.templates == self.names.train:
            return self.expand(sync)
        return PlainBlocks(self.builder, sync, None)

    def _after(self, sync: BlockSync, position: int) -> tuple[Dependency, ...]:
        """Ops that a broadcast waits for, so that no more blocks than stated are ahead, and no epoch is."""
        behind = position - 1 - self.ahead
        if behind >= 0:
            return (Dependency(sync.op(f"aggregate/{self.roots[behind]}")),)
        if position == 0 and EVALUATE not in sync.templates and not self._epoch_began:
            self._epoch_began = True
            return (Dependency(LAST_OP, epochs_back=1),)
        return ()

    def _add_block(
        self, layer: LayerSpec, sync: BlockSync, transfer: BlockTransfer, position: int, root: int, arrived: Arrived,
        target: str,
    ) -> None:  # fmt: skip
        names, builder, finish = self.names, self.builder, position + 1 == len(self.roots)
        transposed, scaling = sync.phase == "backward", SCALINGS[layer.kind]
        options: dict[str, int | str] = {"block": root, "scaling": scaling, "transposed": int(transposed)}
        options["finish"] = int(finish)
        edges = self.block_edges(root, transposed, loops=scaling == "gcn")
        pieces = costs.aggregate(edges, names.rows, self.rows[root], sync.width)
        if position:
            pieces.append(costs.pass_over(names.rows, sync.width, 1))
        checked, more = self.checks(transfer, position)
        reads = list(dict.fromkeys((*arrived, *([target] if position else []), *checked)))
        builder.compute(
            sync.templates, sync.op(f"aggregate/{root}"), OpKind.AGGREGATE, reads, [target],
            builder.work(pieces, BACKWARD if transposed else FORWARD), layer=layer.index, phase=sync.phase,
            options=options | more,
            scratch=Scratch(rows_of(names.rows, sync.width * builder.item_bytes if position else 0), own_block=root),
        )  # fmt: skip
        self.keep_degrees(root)
        # of sources, behind sums so far where there are any, and of rows
        scaled = ((names.rows, builder.item_bytes * (2 if position else 1)), (self.rows[root], builder.item_bytes))
        builder.keep(f"scalings of block {root}/{int(transposed)}", *scaled)

    def keep_degrees(self, root: int) -> None:
        """State the in-degrees (int64) of a block's sources."""
        self.builder.keep(f"degrees of block {root}", (self.rows[root], ITEM_BYTES["int64"]))
