"""Layers on blocks: forward and backward of each, from rows that the edges of a block lead from to those that they
lead to, which come first among them.

In a mini-batch, layer l of L sums over the block of hop L - l + 1, from the rows after that hop to those before.
Source: the common plan of sampled systems (docs/systems/mini-batches.md).
"""

from collections.abc import Callable
from dataclasses import dataclass

from simgnn.emit.batches.names import (
    BATCHES,
    EVALUATING,
    FEATURES,
    HALO,
    INPUTS,
    OWN_BLOCK,
    OWN_LABELS,
    block,
    edges_of,
    rows_after,
)
from simgnn.emit.batches.on_rank import JoinRows, TakeOwnRows
from simgnn.emit.batches.staging import add_route, received, sent
from simgnn.emit.names import Names
from simgnn.emit.segments import Segments
from simgnn.model import costs
from simgnn.model.costs import Piece, RowSet, pass_over
from simgnn.model.spec import LayerSpec, ModelSpec
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.planner.update import EVALUATION, add_labels, emit_evaluation
from simgnn.program.builder import ProgramBuilder, accesses
from simgnn.program.kinds import Form, OpKind, Segment
from simgnn.program.ops import Nature, Op, Transfer, Work
from simgnn.program.program import EVALUATE
from simgnn.program.scratch import Scratch
from simgnn.program.sizes import Size


@dataclass(frozen=True)
class Place:
    """Where a layer works: ``names`` of sizes and templates, the buffer ``block`` of its edges, the buffer ``below`` of
    its input rows, those of all sources."""

    names: Names
    block: str
    below: str


def in_batches(layers: int, templates: tuple[str, ...]) -> Callable[[LayerSpec], Place]:
    """The places of a model of so many layers in mini-batches, in training steps of ``templates``."""

    def place(layer: LayerSpec) -> Place:
        hop = layers - layer.index + 1
        names = Names(
            rows=rows_after(hop - 1),
            sources=rows_after(hop),
            edges=edges_of(hop),
            train_rows=rows_after(0),
            feature_nonzeros=None,
            aggregated_nonzeros=None,
            train=templates,
            forward=templates,
            setup=(),
            locality=f"locality/blocks/{hop}",
            drawn=True,
        )
        return Place(names, block(hop), INPUTS if layer.index == 1 else f"hidden/{layer.index - 1}")

    return place


class BlockLayers:
    """Emits the ops of layers, each at its ``place``. ``learned_inputs``: whether input rows have a gradient too."""

    def __init__(
        self,
        builder: ProgramBuilder,
        model: ModelSpec,
        place: Callable[[LayerSpec], Place],
        learned_inputs: bool = False,
    ) -> None:
        self.builder = builder
        self.model = model
        self.place = place
        self.learned_inputs = learned_inputs

    def forward(self, layer: LayerSpec) -> str:
        """Prepare all rows, sum over the block, update the rows that are left; returns the buffer of these."""
        builder, index, place, segments = self.builder, layer.index, self.place(layer), self._segments(layer)
        names, source, below = place.names, self._source(layer), place.below
        if layer.has_prepare:
            builder.buffer(source, names.sources, layer.prepared_width)
            sources: RowSet[Size] = RowSet(names.sources)
            work = builder.work(segments.product(layer, sources))
            segments.forward(layer, Segment.PREPARE, OpKind.TRANSFORM, [below], [source], work)
        reads = [place.block, source]
        if layer.attends:
            reads.append(segments.maximum(layer, reads))
        summed = segments.aggregate(layer, reads)
        hidden = builder.buffer(f"{names.prefix}hidden/{index}", names.rows, layer.width_out)
        reads = [summed, *([below] if layer.uses_own_rows else [])]
        segments.update(layer, reads, hidden, RowSet(names.rows))
        segments.dropout(layer, "forward", Form.BATCH_DROPOUT)
        return hidden

    def backward(self, layer: LayerSpec) -> None:
        """Update, sum, prepare: each the reverse of its forward segment. Input rows have one if they learn."""
        builder, index, segments = self.builder, layer.index, self._segments(layer)
        names = segments.names
        trained = self.learned_inputs or segments.needs_gradient(layer)
        through, own = trained or layer.has_prepare, trained and layer.uses_own_rows
        segments.dropout(layer, "backward", Form.BATCH_DROPOUT)
        segments.reverse_update(layer, RowSet(names.rows), self.place(layer).below, through, own)
        if not through:
            return
        target = f"d/prepared/{index}" if layer.has_prepare else f"d/hidden/{index - 1}"
        builder.buffer(target, names.sources, layer.prepared_width)
        self._reverse_sum(layer, segments, target)
        if layer.has_prepare:
            self._reverse_prepare(layer, segments, target, trained)
        if own:
            below = f"d/hidden/{index - 1}"
            builder.compute(
                names.train, f"backward/{index}/add_own", OpKind.ADD, [f"d/own/{index}", below], [below],
                builder.work([costs.pass_over(names.rows, layer.width_in, 3)]),
                layer=index, phase="backward", form=Form.FIRST_ROWS,
            )  # fmt: skip

    def _reverse_sum(self, layer: LayerSpec, segments: Segments, target: str) -> None:
        builder, index, names, source = self.builder, layer.index, segments.names, self._source(layer)
        incoming = f"d/aggregated/{index}"
        pieces: list[Piece[Size]] = costs.sums_backward(layer, names.edges, names.rows, names.sources)
        work = builder.work(segments.work(layer, "aggregate/backward", pieces), f"{names.locality}/backward")
        saved = [source, f"maximum/{index}"] if layer.attends else []
        segments.reverse(
            layer, Segment.AGGREGATE, OpKind.AGGREGATE, [self.place(layer).block, incoming, *saved], [target], work,
            {incoming: f"aggregated/{index}", target: source}, scratch=segments.pointers(reverse=True),
        )  # fmt: skip

    def _reverse_prepare(self, layer: LayerSpec, segments: Segments, target: str, trained: bool) -> None:
        builder, index, names = self.builder, layer.index, segments.names
        below, source = f"d/hidden/{index - 1}", self._source(layer)
        gradients, writes = {target: source}, []
        if trained:
            writes.append(builder.buffer(below, names.sources, layer.width_in))
            gradients[below] = self.place(layer).below
        sources: RowSet[Size] = RowSet(names.sources)
        pieces = segments.product_backward(layer, sources, trained)
        segments.reverse(
            layer, Segment.PREPARE, OpKind.TRANSFORM, [target, self.place(layer).below], writes, builder.work(pieces),
            gradients, scratch=Scratch(segments.weight_gradients(layer, pieces, in_turn=True)),
        )  # fmt: skip

    def _source(self, layer: LayerSpec) -> str:
        """The buffer of the rows that it sums."""
        place = self.place(layer)
        return f"{place.names.prefix}prepared/{layer.index}" if layer.has_prepare else place.below

    def _segments(self, layer: LayerSpec) -> Segments:
        return Segments(self.builder, self.model, self.place(layer).names)


POINTER_BYTES, SOURCE_BYTES = 8, 4


def emit_inference(builder: ProgramBuilder, model: ModelSpec, stats: PartitionStats) -> None:
    """Emit the evaluation, its ops in an order in which each may wait for the one before."""
    _Inference(builder, model, stats).emit()


class _Inference:
    def __init__(self, builder: ProgramBuilder, model: ModelSpec, stats: PartitionStats) -> None:
        self.builder, self.model, self.stats = builder, model, stats
        self.exchanges = len(stats.halo.source) > 0
        rows = builder.column(f"{EVALUATING}rows", stats.rows)
        self.names = Names(
            rows=rows,
            sources=builder.column(f"{EVALUATING}sources", stats.rows + stats.halo_rows()),
            edges=builder.column(f"{EVALUATING}edges", stats.edges),
            train_rows=rows,
            feature_nonzeros=None,
            aggregated_nonzeros=None,
            train=(),
            forward=(EVALUATE,),
            setup=(),
            prefix=EVALUATING,
        )
        if self.exchanges:
            add_route(builder, HALO, stats.halo)
        self._buffers()

    def emit(self) -> None:
        """All of it."""
        builder, layers = self.builder, self.model.layers
        below = builder.buffer(f"{EVALUATING}own", self.names.rows, layers[0].width_in)
        self._own_rows(below, layers[0].width_in)
        for layer in layers:
            source = self._with_halo(layer, below) if self.exchanges else below
            below = BlockLayers(builder, self.model, self._at(source)).forward(layer)
        emit_evaluation(builder, self.model, self.names, self.stats)

    def _at(self, source: str) -> Callable[[LayerSpec], Place]:
        return lambda layer: Place(self.names, OWN_BLOCK, source)

    def _buffers(self) -> None:
        builder, stats = self.builder, self.stats
        nbytes = POINTER_BYTES * (stats.rows + 1) + SOURCE_BYTES * stats.edges
        block = builder.column(f"{OWN_BLOCK}/bytes", nbytes)
        builder.buffer(OWN_BLOCK, block, 1, "uint8", persistent=True)
        add_labels(builder, OWN_LABELS, self.names.rows, stats.facts)
        builder.buffer("evaluation", 1, EVALUATION, "float64", persistent=True)

    def _own_rows(self, target: str, width: int) -> None:
        """Input rows of own vertices go from the host's memory to the device."""
        rows, item_bytes = self.names.rows, self.builder.item_bytes
        work = (Work("gather", {"rows": rows, "width": width, "item_bytes": item_bytes}),)
        self.builder.emit(
            (EVALUATE,),
            Op(
                f"{EVALUATING}inputs", OpKind.H2D, Nature.STAGING, accesses([FEATURES]), accesses([target]), work=work,
                transfer=Transfer(width * item_bytes, rows), module=BATCHES, action=TakeOwnRows.label,
                phase="evaluate", category="comm_overhead",
            ),
        )  # fmt: skip

    def _with_halo(self, layer: LayerSpec, own: str) -> str:
        """The input rows of a layer, of own vertices and, behind them, of their remote in-neighbours."""
        builder, index, width = self.builder, layer.index, layer.width_in
        leaving = builder.buffer(f"{EVALUATING}sent/{index}", sent(HALO), width)
        arrived = builder.buffer(f"{EVALUATING}halo/{index}", received(HALO), width)
        both = builder.buffer(f"{EVALUATING}sources/{index}", self.names.sources, width)
        work = (Work("gather", {"rows": sent(HALO), "width": width, "item_bytes": builder.item_bytes}),)
        builder.compute(
            (EVALUATE,), f"{EVALUATING}{index}/pack", OpKind.COPY, [own], [leaving], work,
            layer=index, phase="evaluate", route=HALO, category="comm_overhead",
        )  # fmt: skip
        builder.keep_rows_of(HALO, sent(HALO))
        builder.exchange(
            (EVALUATE,), f"{EVALUATING}{index}/exchange", HALO, [leaving], arrived, width * builder.item_bytes,
            layer=index, phase="evaluate",
        )  # fmt: skip
        builder.compute(
            (EVALUATE,), f"{EVALUATING}{index}/join", OpKind.COPY, [own, arrived], [both],
            builder.work([pass_over(self.names.sources, width, 2)]), layer=index, phase="evaluate",
            module=BATCHES, action=JoinRows, category="comm_overhead",
        )  # fmt: skip
        return both
