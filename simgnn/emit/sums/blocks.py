"""Sums over blocks: as each rank's block of rows arrives, the edges from it add to the sums of own rows."""

from simgnn.emit.blocks import Arrived, BlockSync, BlockTransfer
from simgnn.emit.communication import CopiedRows
from simgnn.emit.segments import BACKWARD, FORWARD
from simgnn.emit.sums.arriving_blocks import ArrivingBlocks
from simgnn.emit.sums.block_attention import BlockAttention
from simgnn.emit.sync import Phase
from simgnn.model import costs
from simgnn.model.spec import LayerSpec
from simgnn.program.kinds import OpKind, Segment
from simgnn.program.program import EVALUATE
from simgnn.program.sizes import Scratch, Size, rows_of

SCALINGS = {"gcn": "gcn", "sage": "mean", "gin": "sum"}
"""Kind of a layer -> the weights of the edges that it sums over."""


class BlockSums(ArrivingBlocks):
    """Sums over blocks; see :class:`~simgnn.emit.communication.Sums` for the methods."""

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

    def _sum(
        self, layer: LayerSpec, phase: Phase, source: str, target: str, width: int, templates: tuple[str, ...],
        sent_in: tuple[str, ...],
    ) -> None:  # fmt: skip
        if not templates:
            return
        sync = self.sync(layer, phase, source, width, templates, sent_in)
        for transfer, position, root, arrived in self.each_block(sync):
            self._add_block(layer, sync, transfer, position, root, arrived, target)

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
