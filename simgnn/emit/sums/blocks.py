"""Sums over blocks: as the block of a rank arrives, its rows are added to the sums of their targets."""

from simgnn.emit.blocks import Arrived, BlockSync, BlockTransfer
from simgnn.emit.communication import CopiedRows
from simgnn.emit.segments import BACKWARD, FORWARD
from simgnn.emit.sums.arriving_blocks import ArrivingBlocks
from simgnn.emit.sums.block_attention import BlockAttention
from simgnn.emit.sync import Phase
from simgnn.model import costs
from simgnn.model.spec import LayerSpec
from simgnn.program.calendar import EVALUATE
from simgnn.program.kinds import OpKind, Segment
from simgnn.program.sizes import Scratch, Size, rows_of

SCALINGS = {"gcn": "gcn", "sage": "mean", "gin": "sum"}
"""Kind of a layer -> the weights of the edges that it sums over."""


class BlockSums(ArrivingBlocks):
    """Emits sums over blocks; :class:`~simgnn.emit.communication.Sums` describes the methods."""

    def fetch_inputs(self) -> None:
        """Emit nothing, since blocks travel when they are summed."""

    def copies(self, layer: LayerSpec) -> CopiedRows | None:
        """Return None, since ranks transform only their own rows."""
        return None

    def hoist(self, layer: LayerSpec) -> None:
        """Sum the inputs of layer 1 once, before the first epoch."""
        self.builder.buffer("aggregated/1", self.names.rows, layer.width_in, persistent=True)
        self._sum(layer, "setup", "features", "aggregated/1", layer.width_in, self.names.setup, self.names.setup)

    def forward(self, layer: LayerSpec, source: str) -> None:
        """Sum the rows in ``source``. A layer that sums its inputs first multiplies the sums with its weights here."""
        if layer.hoisted:
            return
        if layer.attends:
            BlockAttention(self, layer).forward(source)
            return
        index, width = layer.index, layer.width_in if layer.sums_inputs else layer.prepared_width
        target = self.builder.buffer(
            f"{'summed' if layer.sums_inputs else 'aggregated'}/{index}", self.names.rows, width
        )
        once = layer.index == 1 and source == self.segments.own(layer) and self.sent_in != self.names.forward
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
        """Sum the blocks of ``d/aggregated/LAYER`` over the reversed edges."""
        if layer.attends:
            BlockAttention(self, layer).backward(source, target)
            return
        gradient = f"d/aggregated/{layer.index}"
        templates = self.names.train
        self._sum(layer, "backward", gradient, target, layer.prepared_width, templates, templates)

    @property
    def whole(self) -> None:
        """Return None: a layer that is one function of all rows cannot be summed block by block."""
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
        pieces = costs.aggregate(edges, names.rows, self.rows[root], sync.width, layer.weighted)
        if position:
            pieces.append(costs.pass_over(names.rows, sync.width, 1))
        checked, more = self.checks(transfer, position)
        reads = list(dict.fromkeys((*arrived, *([target] if position else []), *checked)))
        builder.compute(
            sync.templates, sync.op(f"aggregate/{root}"), OpKind.AGGREGATE, reads, [target],
            builder.work(pieces, BACKWARD if transposed else FORWARD), layer=layer.index, phase=sync.phase,
            options=options | more, after=self.follows(sync, position),
            scratch=Scratch(rows_of(names.rows, sync.width * builder.item_bytes if position else 0), own_block=root),
        )  # fmt: skip
        self.keep_degrees(root)
        # of sources, behind sums so far where there are any, and of rows
        scaled = ((names.rows, builder.item_bytes * (2 if position else 1)), (self.rows[root], builder.item_bytes))
        builder.keep(f"scalings of block {root}/{int(transposed)}", *scaled)
