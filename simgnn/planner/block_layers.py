"""Layers on blocks of edges, forward and backward: in mini-batches, and in the evaluation of a model trained on them.

The destination rows of a block come first among its source rows. In a mini-batch, layer l of L sums over the block of
hop L - l + 1, from the rows after that hop to those before. Source: the common plan of sampled systems
(docs/systems/mini-batches.md)."""

from dataclasses import dataclass, field
from typing import Any

from simgnn.emit.batches.names import (
    BATCHES,
    EVALUATING,
    FEATURES,
    HALO,
    INPUTS,
    OWN_BLOCK,
    OWN_LABELS,
    PARTNERS,
    SCORES,
    block,
    edges_of,
    rows_after,
)
from simgnn.emit.batches.on_rank import AreaUnderCurve, JoinRows, ScorePairs, TakeOwnRows
from simgnn.emit.batches.staging import add_route, received, sent
from simgnn.emit.builder import ProgramBuilder, accesses
from simgnn.emit.names import Names
from simgnn.emit.segments import Segments
from simgnn.model import costs
from simgnn.model.costs import Piece, RowSet, pass_over
from simgnn.model.spec import LayerSpec, ModelSpec
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.planner.update import EVALUATION, add_labels, emit_evaluation
from simgnn.program.calendar import EVALUATE
from simgnn.program.kinds import Form, OpKind, Segment
from simgnn.program.ops import ITEM_BYTES, Nature, Op, Transfer
from simgnn.program.sizes import Column, Scratch, Size, rows_of
from simgnn.sampling.draw.compared import ComparedSizes

POINTER_BYTES, SOURCE_BYTES = 8, 4


@dataclass(frozen=True)
class Place:
    """The buffers and names of a layer: ``names`` of sizes and templates, the buffer ``block`` of its edges, the buffer
    ``below`` of its input rows, those of all sources."""

    names: Names
    block: str
    below: str


def place_in_batches(model: ModelSpec, layer: LayerSpec, templates: tuple[str, ...]) -> Place:
    """Return the place of a layer in the mini-batches of training steps of ``templates``."""
    hop = len(model.layers) - layer.index + 1
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


@dataclass
class BlockLayer:
    """Emits the ops of a layer at its ``place``. ``learned_inputs``: whether input rows have a gradient too."""

    builder: ProgramBuilder
    model: ModelSpec
    layer: LayerSpec
    place: Place
    learned_inputs: bool = False
    segments: Segments = field(init=False)
    source: str = field(init=False)
    """The buffer of the rows that the layer sums."""

    def __post_init__(self) -> None:
        names, layer = self.place.names, self.layer
        self.segments = Segments(self.builder, self.model, names)
        self.source = f"{names.prefix}prepared/{layer.index}" if layer.has_prepare else self.place.below

    def forward(self) -> str:
        """Emit: prepare all rows, sum over the block, update the destinations. Returns the buffer of the output."""
        builder, layer, segments = self.builder, self.layer, self.segments
        names, below = self.place.names, self.place.below
        if layer.has_prepare:
            builder.buffer(self.source, names.sources, layer.prepared_width)
            sources: RowSet[Size] = RowSet(names.sources)
            work = builder.work(segments.product(layer, sources))
            segments.forward(layer, Segment.PREPARE, OpKind.TRANSFORM, [below], [self.source], work)
        reads = [self.place.block, self.source]
        if layer.attends:
            reads.append(segments.maximum(layer, reads))
        summed = segments.aggregate(layer, reads)
        hidden = builder.buffer(f"{names.prefix}hidden/{layer.index}", names.rows, layer.width_out)
        reads = [summed, *([below] if layer.uses_own_rows else [])]
        segments.update(layer, reads, hidden, RowSet(names.rows))
        segments.dropout(layer, "forward", Form.BATCH_DROPOUT)
        return hidden

    def backward(self) -> None:
        """Emit the backward pass of a layer: update, sum, preparation. Learned input rows get a gradient."""
        builder, layer, segments, names = self.builder, self.layer, self.segments, self.place.names
        trained = self.learned_inputs or segments.needs_gradient(layer)
        through, own = trained or layer.has_prepare, trained and layer.uses_own_rows
        segments.dropout(layer, "backward", Form.BATCH_DROPOUT)
        segments.reverse_update(layer, RowSet(names.rows), self.place.below, through, own)
        if not through:
            return
        below = f"d/hidden/{layer.index - 1}"
        target = f"d/prepared/{layer.index}" if layer.has_prepare else below
        builder.buffer(target, names.sources, layer.prepared_width)
        self._reverse_sum(target)
        if layer.has_prepare:
            self._reverse_prepare(target, below, trained)
        if own:
            builder.compute(
                names.train, f"backward/{layer.index}/add_own", OpKind.ADD, [f"d/own/{layer.index}", below], [below],
                builder.work([pass_over(names.rows, layer.width_in, 3)]), layer=layer.index, phase="backward",
                form=Form.FIRST_ROWS,
            )  # fmt: skip

    def _reverse_sum(self, target: str) -> None:
        builder, layer, segments, names = self.builder, self.layer, self.segments, self.place.names
        incoming = f"d/aggregated/{layer.index}"
        pieces: list[Piece[Size]] = costs.sums_backward(layer, names.edges, names.rows, names.sources)
        work = builder.work(segments.work(layer, "aggregate/backward", pieces), f"{names.locality}/backward")
        reads = [self.place.block, incoming, *([self.source, f"maximum/{layer.index}"] if layer.attends else [])]
        segments.reverse(
            layer, Segment.AGGREGATE, OpKind.AGGREGATE, reads, [target], work,
            {incoming: f"aggregated/{layer.index}", target: self.source}, scratch=segments.pointers(reverse=True),
        )  # fmt: skip

    def _reverse_prepare(self, target: str, below: str, trained: bool) -> None:
        builder, layer, segments, names = self.builder, self.layer, self.segments, self.place.names
        gradients, writes = {target: self.source}, []
        if trained:
            writes.append(builder.buffer(below, names.sources, layer.width_in))
            gradients[below] = self.place.below
        sources: RowSet[Size] = RowSet(names.sources)
        pieces = segments.product_backward(layer, sources, trained)
        segments.reverse(
            layer, Segment.PREPARE, OpKind.TRANSFORM, [target, self.place.below], writes, builder.work(pieces),
            gradients, scratch=Scratch(segments.weight_gradients(layer, pieces, in_turn=True)),
        )  # fmt: skip


def emit_inference(
    builder: ProgramBuilder, model: ModelSpec, stats: PartitionStats, compared: ComparedSizes | None = None
) -> None:
    """Emit the evaluation of a model that is trained on mini-batches, each op after the one that it waits for.

    Rows of remote in-neighbours arrive from their owners, then a layer reads all in-edges of the rank's own vertices as
    in a sampled block: exact, and nothing is drawn. Our decision: the papers of DistDGL and RapidGNN do not say how
    accuracies were obtained. It needs memory for the rows of two layers, of own vertices and their in-neighbours.
    ``compared``: of unsupervised training; the rows of the last layer are compared in pairs."""
    rows = builder.column(f"{EVALUATING}rows", stats.rows)
    names = Names(
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
    exchanges = len(stats.halo.source) > 0
    if exchanges:
        add_route(builder, HALO, stats.halo)
    nbytes = builder.column(f"{OWN_BLOCK}/bytes", POINTER_BYTES * (stats.rows + 1) + SOURCE_BYTES * stats.edges)
    builder.buffer(OWN_BLOCK, nbytes, 1, "uint8", persistent=True)
    if compared is None:
        add_labels(builder, OWN_LABELS, rows, stats.facts)
    builder.buffer("evaluation", 1, EVALUATION, "float64", persistent=True)
    width = model.layers[0].width_in
    below = builder.buffer(f"{EVALUATING}own", rows, width)
    inputs = Op(
        f"{EVALUATING}inputs", OpKind.H2D, Nature.STAGING, accesses([FEATURES]), accesses([below]), module=BATCHES,
        work=(builder.row_work("gather", rows, width),), transfer=Transfer(width * builder.item_bytes, rows),
        action=TakeOwnRows.label, phase="evaluate", category="comm_overhead",
    )  # fmt: skip
    builder.emit((EVALUATE,), inputs)
    for layer in model.layers:
        source = _with_halo(builder, names, layer, below) if exchanges else below
        below = BlockLayer(builder, model, layer, Place(names, OWN_BLOCK, source)).forward()
    if compared is None:
        emit_evaluation(builder, model, names, stats)
    else:
        _emit_comparison(builder, model, rows, below, compared)


def _emit_comparison(
    builder: ProgramBuilder, model: ModelSpec, rows: Column, own: str, compared: ComparedSizes
) -> None:
    """Emit the area under the ROC curve over pairs of vertices. Rows of partners arrive from their owners, ranks score
    the pairs of their own vertices, the sum over ranks holds all scores, and every rank computes the area."""
    width, top, reads = model.classes, len(model.layers), [own]
    entries = builder.column(f"{EVALUATING}pairs", compared.by_rank)
    fields: dict[str, Any] = {"layer": top, "phase": "evaluate", "module": BATCHES, "category": "update"}
    if len(compared.partners.source):
        add_route(builder, PARTNERS, compared.partners)
        reads.append(_sent_rows(builder, PARTNERS, own, width, top))
    builder.buffer(SCORES, 1, compared.entries, "float64", persistent=True)
    # of each pair: the row of its partner, the product, its place and score; and all rows side by side
    terms = rows_of(entries, 2 * width * builder.item_bytes + 2 * ITEM_BYTES["int64"])
    if len(reads) > 1:
        terms += rows_of(rows, width * builder.item_bytes) + rows_of(received(PARTNERS), width * builder.item_bytes)
    builder.keep("places of compared rows", (entries, 2 * ITEM_BYTES["int64"]))
    scratch = Scratch(terms)
    builder.compute(
        (EVALUATE,), f"{EVALUATING}score", OpKind.SELECT, reads, [SCORES],
        (builder.row_work("gather", entries, width),), ScorePairs, scratch=scratch, **fields,
    )  # fmt: skip
    if len(builder.hosts) > 1:
        builder.allreduce(
            (EVALUATE,), f"{EVALUATING}sum", [SCORES], compared.entries * ITEM_BYTES["float64"], control=True,
            phase="evaluate",
        )  # fmt: skip
    builder.compute(
        (EVALUATE,), f"{EVALUATING}area", OpKind.LOSS, [SCORES], ["evaluation"],
        builder.work([pass_over(compared.entries, 1, 4)]), AreaUnderCurve,
        scratch=Scratch(rows_of(compared.entries, 4 * ITEM_BYTES["float64"])), **fields,
    )  # fmt: skip


def _with_halo(builder: ProgramBuilder, names: Names, layer: LayerSpec, own: str) -> str:
    """Emit the input rows of a layer: of own vertices, followed by those of their remote in-neighbours."""
    index, width = layer.index, layer.width_in
    arrived = _sent_rows(builder, HALO, own, width, index)
    both = builder.buffer(f"{EVALUATING}sources/{index}", names.sources, width)
    builder.compute(
        (EVALUATE,), f"{EVALUATING}{index}/join", OpKind.COPY, [own, arrived], [both],
        builder.work([pass_over(names.sources, width, 2)]), JoinRows, layer=index, phase="evaluate", module=BATCHES,
        category="comm_overhead",
    )  # fmt: skip
    return both


def _sent_rows(builder: ProgramBuilder, route: str, own: str, width: int, layer: int) -> str:
    """Emit the exchange of rows of own vertices along a route; return the buffer of those that arrive."""
    name = f"{EVALUATING}{layer}" if route == HALO else route
    leaving = builder.buffer(f"{EVALUATING}sent/{layer}" if route == HALO else f"{route}/sent", sent(route), width)
    arrived = builder.buffer(f"{EVALUATING}halo/{layer}" if route == HALO else f"{route}/rows", received(route), width)
    builder.compute(
        (EVALUATE,), f"{name}/pack", OpKind.COPY, [own], [leaving], (builder.row_work("gather", sent(route), width),),
        layer=layer, phase="evaluate", route=route, category="comm_overhead",
    )  # fmt: skip
    builder.keep_rows_of(route, sent(route))
    builder.exchange(
        (EVALUATE,), f"{name}/exchange", route, [leaving], arrived, width * builder.item_bytes, layer=layer,
        phase="evaluate",
    )  # fmt: skip
    return arrived
