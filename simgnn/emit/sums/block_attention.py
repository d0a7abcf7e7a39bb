"""Attention over blocks: a running softmax as blocks of prepared rows arrive; backward, each rank reverses the sums
over the rows that it broadcast, from the gradients of all rows that attended to them.

Source: docs/systems/cagnet.md (ours; neither CAGNET nor SANCUS has attention). Deviations: scores of sources are
computed where rows arrive, so that only rows travel. A target with an older copy of a row may have had a maximum below
the row's current score; the backward pass then computes the row's weight as if its score were that maximum.
"""

import numpy as np

from simgnn.emit.blocks import Arrived
from simgnn.emit.segments import BACKWARD, FORWARD
from simgnn.emit.sums.arriving_blocks import ArrivingBlocks
from simgnn.model import costs
from simgnn.model.spec import LayerSpec
from simgnn.program.calendar import EVALUATE
from simgnn.program.kinds import OpKind, Segment
from simgnn.program.sizes import Column, Route, Scratch, Size, rows_of

SCORES = "block_scores"
"""Route of partial gradients of scores: from each rank that has rows to the owner of each other block."""
LEAVING, ARRIVING = Column(f"{SCORES}/leaving"), Column(f"{SCORES}/arriving")


class BlockAttention:
    """Emits the sums of one attending layer, block by block."""

    def __init__(self, sums: ArrivingBlocks, layer: LayerSpec) -> None:
        self.sums, self.layer = sums, layer
        self.builder, self.names = sums.builder, sums.names
        self._parameters = f"parameters/{layer.index}"

    def forward(self, source: str) -> None:
        """Emit sums of weighted rows and of weights, from prepared rows in ``source``, into ``aggregated/LAYER``."""
        for templates in (self.names.train, (EVALUATE,)):
            self._forward(source, templates)

    def _forward(self, source: str, templates: tuple[str, ...]) -> None:
        layer, builder, rows, index = self.layer, self.builder, self.names.rows, self.layer.index
        state = [
            builder.buffer(f"maximum/{index}", rows, layer.heads),
            builder.buffer(f"aggregated/{index}", rows, layer.aggregated_width),
        ]
        sync = self.sums.sync(layer, "forward", source, layer.prepared_width, templates, templates)
        for transfer, position, root, arrived in self.sums.each_block(sync):
            edges = self.sums.block_edges(root, transposed=False, loops=True)
            pieces = costs.attended_block(layer, edges, rows, self.sums.rows[root], position > 0)
            checked, options = self.sums.checks(transfer, position)
            reads = dict.fromkeys((source, *arrived, *(state if position else ()), *checked, self._parameters))
            builder.compute(
                templates, sync.op(f"aggregate/{root}"), OpKind.AGGREGATE, list(reads), state,
                builder.work(pieces, FORWARD), layer=index, phase="forward", segment=Segment.ADD_BLOCK,
                options={**_named(source, root, arrived, 0), **options}, scratch=self._adding(position > 0, root),
            )  # fmt: skip
            self.sums.keep_degrees(root)

    def backward(self, source: str, target: str) -> None:
        """Emit the gradient of the prepared rows in ``source``, from ``d/aggregated/LAYER``, into ``target``."""
        layer, builder, names, index = self.layer, self.builder, self.names, self.layer.index
        width = layer.aggregated_width + 2 * layer.heads
        payload = builder.buffer(f"d/payload/{index}", names.rows, width)
        packing: list[costs.Piece[Size]] = [costs.scores(layer, names.rows, 1), costs.pass_over(names.rows, width, 2)]
        builder.compute(
            names.train, f"backward/{index}/payload", OpKind.TRANSFORM,
            [f"d/aggregated/{index}", source, f"maximum/{index}", self._parameters], [payload], builder.work(packing),
            layer=index, phase="backward", segment=Segment.BLOCK_PAYLOAD,
        )  # fmt: skip
        state = [
            target,
            builder.buffer(f"d/source/{index}", names.rows, layer.heads),
            builder.buffer(f"d/target/{index}", names.rows, layer.heads),
        ]
        if self.sums.ranks > 1:
            self._add_route()
            state.append(builder.buffer(f"d/targets/{index}", LEAVING, layer.heads))
        sync = self.sums.sync(layer, "backward", payload, width, names.train, names.train)
        for transfer, position, root, arrived in self.sums.each_block(sync):
            edges = self.sums.block_edges(root, transposed=True, loops=True)
            pieces = costs.attended_block_backward(layer, edges, names.rows, self.sums.rows[root], position > 0)
            checked, options = self.sums.checks(transfer, position)
            reads = dict.fromkeys((source, *arrived, *(state if position else ()), *checked, self._parameters))
            builder.compute(
                names.train, sync.op(f"aggregate/{root}"), OpKind.AGGREGATE, list(reads), state,
                builder.work(pieces, BACKWARD), layer=index, phase="backward",
                segment=Segment.BLOCK_GRADIENTS, options={**_named(source, root, arrived, 1), **options},
                scratch=self._reversing(position > 0, root, width),
            )  # fmt: skip
        self._complete(source, state)

    def _adding(self, later: bool, root: int) -> Scratch:
        """Memory of the scores of both ends. A later block also needs new maxima and sums beside the earlier ones, and
        the factor by which earlier weights shrink."""
        heads, sums = self.layer.heads, self.layer.aggregated_width
        width = 5 * heads + sums if later else 2 * heads
        return Scratch(rows_of(self.names.rows, width * self.builder.item_bytes), own_block=root)

    def _reversing(self, later: bool, root: int, width: int) -> Scratch:
        """Memory of contiguous copies of the block's rows (``width`` wide), of scores and their gradients, and of
        gradients that are added to earlier ones."""
        heads, rows = self.layer.heads, self.layer.prepared_width
        width += rows + 3 * heads if later else heads
        return Scratch(rows_of(self.names.rows, width * self.builder.item_bytes), own_block=root)

    def _complete(self, source: str, state: list[str]) -> None:
        """Send the gradients of targets' scores to their owners, and complete those of prepared rows with them."""
        layer, builder, names, index = self.layer, self.builder, self.names, self.layer.index
        reads = [*state[:3], source]
        if self.sums.ranks > 1:
            reads.append(builder.buffer(f"d/targets/{index}/arrived", ARRIVING, layer.heads))
            builder.exchange(
                names.train, f"backward/{index}/scores/exchange", SCORES, [state[3]], reads[-1],
                layer.heads * builder.item_bytes, layer=index, phase="backward",
            )  # fmt: skip
        # through both scores to the rows, and to both vectors
        work = builder.work(costs.block_scores_backward(layer, names.rows))
        builder.compute(
            names.train, f"backward/{index}/scores", OpKind.TRANSFORM, [*reads, self._parameters],
            [state[0], f"gradients/{index}"], work, layer=index, phase="backward",
            segment=Segment.SCORE_GRADIENTS,
        )  # fmt: skip

    def _add_route(self) -> None:
        rows = np.array(self.sums.rows, dtype=np.int64)
        matrix = np.where((rows > 0)[:, None], rows[None, :], 0)
        np.fill_diagonal(matrix, 0)
        self.builder.route(SCORES, Route.from_matrix(matrix))
        self.builder.column(LEAVING.name, matrix.sum(axis=1))
        self.builder.column(ARRIVING.name, matrix.sum(axis=0))


def _named(source: str, root: int, arrived: Arrived, transposed: int) -> dict[str, int | str]:
    """Return the options from which the executor knows what each buffer that the op reads holds."""
    names = {"rows": source, "own": arrived.own, "arrived": arrived.block}
    return {"block": root, "transposed": transposed, **names}
