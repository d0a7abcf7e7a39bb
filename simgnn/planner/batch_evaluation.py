"""Evaluation of a model that is trained on mini-batches: each layer on all in-edges of every rank's own vertices.

Layer after layer: rows of remote in-neighbours arrive from their owners, then the layer works on the rank's own edges
as it works on a sampled block, with nothing left out: exact, and nothing is drawn. Our decision: the specs of DistDGL
and RapidGNN do not say how accuracies were obtained. It needs memory for the rows of two layers, of own vertices and
their in-neighbours.
"""

from collections.abc import Callable

from simgnn.emit.batches.names import BATCHES, EVALUATING, FEATURES, HALO, OWN_BLOCK, OWN_LABELS
from simgnn.emit.batches.own_rows import JoinRows, TakeOwnRows
from simgnn.emit.batches.staging import add_route, received, sent
from simgnn.emit.names import Names
from simgnn.model.costs import pass_over
from simgnn.model.spec import LayerSpec, ModelSpec
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.planner.block_layers import BlockLayers, Place
from simgnn.planner.update import EVALUATION, add_labels, emit_evaluation
from simgnn.program.builder import ProgramBuilder, accesses
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Nature, Op, Transfer, Work
from simgnn.program.program import EVALUATE

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
