"""Full-graph training chunk by chunk: rows lie on hosts, a step computes one layer of one chunk of every rank.

Source: HongTu (SIGMOD), sections 6 and 7 of our description: a forward pass that keeps sums on the host, and a backward
pass that computes updates again from them."""

from dataclasses import replace
from typing import Any, cast

from simgnn.emit.batches.names import VERTICES
from simgnn.emit.builder import ProgramBuilder
from simgnn.emit.chunks.names import (
    EDGES,
    EDGES_HELD,
    NEEDED,
    OTHERS,
    RANK_ROWS,
    ROWS,
    TOPOLOGY,
    TRAIN_ROWS,
    at_list,
    listed,
    of_chunk,
    stored,
)
from simgnn.emit.chunks.policies import ChunkCommunication, ChunkPlacement, TakeEdges
from simgnn.emit.chunks.sizes import ChunkSizes
from simgnn.emit.chunks.transfers import ChunkTransfers
from simgnn.emit.names import Names
from simgnn.emit.segments import BACKWARD, FORWARD, Segments
from simgnn.experiment.schema import Experiment
from simgnn.model import costs
from simgnn.model.spec import LayerSpec, ModelSpec
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.planner.layer_choices import InputRows, plan_layers
from simgnn.planner.update import (
    EVALUATION,
    METRIC_BYTES,
    add_labels,
    emit_update,
    keep_splits,
    learned_state,
    loss_scratch,
)
from simgnn.program.calendar import Calendar, Stretch
from simgnn.program.kinds import Form, OpKind, Segment
from simgnn.program.program import Program
from simgnn.program.sizes import Column

UPDATE, SUM = "update", "evaluate/sum"
"""Templates of the last step of an epoch, and of that of an evaluation."""


def plan_chunks(experiment: Experiment, stats: PartitionStats) -> tuple[Program, tuple[LayerSpec, ...], dict[str, Any]]:
    """Plan training chunk by chunk. Returns program, layers and the values chosen for ``auto``."""
    communication = cast(ChunkCommunication, experiment.communication)
    placement = cast(ChunkPlacement, experiment.placement)
    facts = replace(stats.facts, feature_nonzeros=None)
    stats = replace(stats, facts=facts)
    inputs = InputRows(rows="input", resent=True, sums_first=True)
    model, _ = plan_layers(experiment, facts, stats.ranks, inputs)
    sizes = ChunkSizes(stats, len(model.layers), communication.reuses, communication.peers)
    kept = placement.kept(experiment.model.attends, experiment.model.built_in)
    builder = ProgramBuilder(
        experiment.name, [int(host) for host in stats.hosts], experiment.train.dtype, experiment.schedule
    )
    program = ChunkedPlan(builder, model, stats, sizes).program(experiment.train.update_rule)
    resolved = {
        "model.order": [layer.order for layer in model.layers],
        **({"model.activation": model.layers[0].function} if experiment.model.built_in else {}),
        "placement.intermediates": kept,
        "placement.topology": placement.edges_lie(),
    }
    return program, model.layers, resolved


def _forward(layer: int, opens: bool) -> str:
    return f"forward/{layer}/open" if opens else f"forward/{layer}"


def _backward(layer: int, opens: bool) -> str:
    return f"backward/{layer}/open" if opens else f"backward/{layer}"


def _evaluate(layer: int, opens: bool) -> str:
    return f"evaluate/{layer}/open" if opens else f"evaluate/{layer}"


class ChunkedPlan:
    """Emits the steps of an epoch and of an evaluation. The first chunk of a pass over a layer may have a template of
    its own: in the last layer forward, the others add to its metrics; backward, it first clears gradients below."""

    def __init__(self, builder: ProgramBuilder, model: ModelSpec, stats: PartitionStats, sizes: ChunkSizes) -> None:
        self.builder, self.model, self.stats, self.sizes = builder, model, stats, sizes
        self.top = len(model.layers)
        self.transfers = ChunkTransfers(builder, sizes.moves_between_ranks)

    def program(self, optimizer: str) -> Program:
        """Return the program of training and evaluation, whose ops follow one another."""
        self._state(optimizer)
        with self.builder.one_by_one():
            self._emit(optimizer)
        calendar = self._calendar()
        # a rank with one chunk has no step of some kinds
        for name in self.builder.templates.keys() - {*calendar.templates, *calendar.sweep}:
            del self.builder.templates[name]
        self.builder.chain(calendar)
        return self.builder.stated(calendar)

    def _emit(self, optimizer: str) -> None:
        for layer in self.model.layers:
            self._pass(layer)
        for layer in reversed(self.model.layers):
            opens = (True, False) if layer.index > 1 else (False,)
            for first in opens:
                self._back(layer, first)
        builder, layers = self.builder, self.model.layers
        emit_update(builder, layers, (UPDATE,), self.stats.ranks, optimizer)
        if self.stats.ranks > 1:
            builder.allreduce(
                (SUM,), SUM, ["evaluation"], EVALUATION * METRIC_BYTES, control=True, phase="evaluate"
            )

    def _calendar(self) -> Calendar:
        forward = [one for layer in self.model.layers for one in self._stretches(_forward, layer.index, self.top)]
        back = [
            one
            for layer in reversed(self.model.layers)
            for one in self._stretches(_backward, layer.index, max(layer.index, 2))
        ]
        sweep = [one for layer in self.model.layers for one in self._stretches(_evaluate, layer.index, self.top)]
        summing = [Stretch(SUM)] if self.stats.ranks > 1 else []
        return Calendar.of_steps([*forward, *back, Stretch(UPDATE)], [*sweep, *summing])

    def _stretches(self, name: Any, layer: int, opening: int) -> list[Stretch]:
        first = int(layer == opening)
        return [Stretch(name(layer, True), first), Stretch(name(layer, False), self.sizes.chunks - first)]

    # -- state -----------------------------------------------------------------------------------------------------

    def _state(self, optimizer: str) -> None:
        builder, model = self.builder, self.model
        self.sizes.add_to(builder)
        if any(layer.dropped for layer in model.layers):
            builder.buffer(VERTICES, RANK_ROWS, 1, "int64", persistent=True)
        builder.buffer("features", RANK_ROWS, model.layers[0].width_in, space="host", persistent=True)
        add_labels(builder, "labels", RANK_ROWS, self.stats.facts)
        keep_splits(builder, RANK_ROWS)
        learned_state(builder, model.layers, optimizer)
        builder.buffer("evaluation", 1, EVALUATION, "float64", persistent=True)
        builder.buffer(TOPOLOGY, self._topology(), 1, "uint8", persistent=True)

    def _topology(self) -> Column:
        """Bytes of the edges of all chunks of a rank, in both directions: 4 an edge and its weight, 8 a row pointer;
        and of the scaling of each row that a chunk needs."""
        builder, chunks = self.builder, self.sizes.chunks
        of_edge = 4 + (builder.item_bytes if self.model.layers[0].weighted else 0)
        rows, needed = (builder.columns[column.name][:, :chunks].sum(axis=1) for column in (ROWS, NEEDED))
        edges = builder.columns[EDGES.name][:, :chunks].sum(axis=1)
        nbytes = 2 * of_edge * edges + 8 * (rows + needed + 2 * chunks)
        return builder.column("topology_bytes", nbytes)

    def _segments(self, train: str | None, forward: str) -> Segments:
        """Return the emitter of segments, on the rows of a chunk."""
        names = Names(
            rows=ROWS, sources=NEEDED, edges=EDGES, train_rows=TRAIN_ROWS, feature_nonzeros=None,
            aggregated_nonzeros=None, train=() if train is None else (train,), forward=(forward,), setup=(),
        )  # fmt: skip
        return Segments(self.builder, self.model, names)

    # -- forward ---------------------------------------------------------------------------------------------------

    def _pass(self, layer: LayerSpec) -> None:
        for opens in (True, False) if layer.index == self.top else (False,):
            trained, swept = _forward(layer.index, opens), _evaluate(layer.index, opens)
            for template, train in ((trained, trained), (swept, None)):
                self._chunk(layer, template, train, opens)

    def _chunk(self, layer: LayerSpec, template: str, train: str | None, opens: bool) -> None:
        """Emit one chunk of a layer forward, in training or (``train`` None) in an evaluation."""
        segments, builder, index, here = self._segments(train, template), self.builder, layer.index, (template,)
        held = self.transfers.bring(here, index, stored(segments.own(layer)), layer.width_in)
        own = builder.buffer(f"own/{index}", ROWS, layer.width_in)
        builder.compute(
            here, f"forward/{index}/own", OpKind.COPY, [at_list(held, "own"), listed("own")], [own],
            (builder.row_work("gather", ROWS, layer.width_in),), layer=index, phase="forward",
        )  # fmt: skip
        self._edges(here, index, "forward")
        summed = builder.buffer(f"aggregated/{index}", ROWS, layer.aggregated_width)
        pieces = costs.sums(layer, EDGES, ROWS, NEEDED)
        segments.forward(
            layer, Segment.AGGREGATE, OpKind.AGGREGATE, [EDGES_HELD, own, held], [summed],
            builder.work(pieces, FORWARD), options={"edges": 1},
        )  # fmt: skip
        if train is not None:
            self._save(here, f"forward/{index}/keep", layer, summed, layer.aggregated_width, "forward")
        self._update(segments, layer)
        hidden = f"hidden/{index}"
        if index < self.top:
            self._save(here, f"forward/{index}/save", layer, hidden, layer.width_out, "forward")
        elif train is None:
            reads = [hidden, of_chunk("labels"), *([] if opens else ["evaluation"])]
            builder.compute(
                here, "evaluate/loss", OpKind.LOSS, reads, ["evaluation"],
                builder.work([costs.pass_over(ROWS, self.model.classes, 2)]), layer=index, phase="evaluate",
                options={"split": ROWS.name}, scratch=loss_scratch(builder, self.model, ROWS, picked=True),
            )  # fmt: skip
        else:
            gradient = builder.buffer(f"d/hidden/{index}", ROWS, self.model.classes)
            work = (
                *builder.work([costs.pass_over(ROWS, self.model.classes, 1)]),
                builder.row_work("loss", TRAIN_ROWS, self.model.classes),
            )
            builder.compute(
                here, "forward/loss", OpKind.LOSS, [hidden, of_chunk("labels"), *([] if opens else ["metrics"])],
                [gradient, "metrics"], work, layer=index, phase="forward",
                scratch=loss_scratch(builder, self.model, TRAIN_ROWS, picked=True),
            )  # fmt: skip
            self._save(here, f"forward/{index}/save", layer, gradient, self.model.classes, "forward")

    def _update(self, segments: Segments, layer: LayerSpec) -> None:
        hidden = self.builder.buffer(f"hidden/{layer.index}", ROWS, layer.width_out)
        reads = [f"aggregated/{layer.index}", *([f"own/{layer.index}"] if layer.uses_own_rows else [])]
        segments.update(layer, reads, hidden, costs.RowSet(ROWS))
        self._dropout(segments, layer, "forward")

    def _dropout(self, segments: Segments, layer: LayerSpec, phase: Any) -> None:
        segments.dropout(layer, phase, vertices=of_chunk(VERTICES))

    def _edges(self, templates: tuple[str, ...], layer: int, phase: str) -> None:
        """Emit the choice of the chunk's edges."""
        self.builder.buffer(EDGES_HELD, 1, 0, "uint8")
        self.builder.compute(
            templates, f"{phase}/{layer}/edges", OpKind.SELECT, [TOPOLOGY], [EDGES_HELD], (), TakeEdges,
            module="placement", layer=layer, phase=phase,
        )  # fmt: skip

    def _save(
        self, templates: tuple[str, ...], name: str, layer: LayerSpec, buffer: str, width: int, phase: str
    ) -> None:
        """Emit the copy of a chunk's rows to the host."""
        builder = self.builder
        kept = builder.buffer(stored(buffer), RANK_ROWS, width, space="host")
        builder.host_copy(
            templates, name, OpKind.D2H, [buffer], [of_chunk(kept)], ROWS, width * builder.item_bytes,
            layer=layer.index, phase=phase, category="comm",
        )  # fmt: skip

    def _take(self, templates: tuple[str, ...], name: str, layer: LayerSpec, source: str, buffer: str) -> None:
        """Emit the copy of a chunk's rows from the host."""
        builder, width = self.builder, self.builder.buffers[source].width
        builder.buffer(buffer, ROWS, width)
        builder.host_copy(
            templates, name, OpKind.H2D, [of_chunk(source)], [buffer], ROWS, width * builder.item_bytes,
            layer=layer.index, phase="backward", category="comm",
        )  # fmt: skip

    # -- backward --------------------------------------------------------------------------------------------------

    def _back(self, layer: LayerSpec, opens: bool) -> None:
        """Emit one chunk of a layer backward."""
        index, template = layer.index, _backward(layer.index, opens)
        segments, builder, here = self._segments(template, template), self.builder, (template,)
        below, trained = stored(f"d/hidden/{index - 1}"), index > 1
        own_gradient = trained and layer.uses_own_rows
        if opens:
            builder.buffer(below, RANK_ROWS, layer.width_in, space="host")
            builder.compute(
                here, f"backward/{index}/clear", OpKind.ELEMENTWISE, [], [below],
                builder.work([costs.pass_over(RANK_ROWS, layer.width_in, 1)]), layer=index, phase="backward",
                form=Form.ZEROS,
            )  # fmt: skip
        gradient, summed = f"d/hidden/{index}", f"aggregated/{index}"
        self._take(here, f"backward/{index}/take", layer, stored(gradient), gradient)
        self._take(here, f"backward/{index}/again", layer, stored(summed), summed)
        if layer.uses_own_rows:
            self._take(here, f"backward/{index}/own", layer, stored(segments.own(layer)), f"own/{index}")
        self._update(segments, layer)
        self._dropout(segments, layer, "backward")
        segments.reverse_update(layer, costs.RowSet(ROWS), f"own/{index}", trained, own_gradient)
        if not trained:
            return
        self._edges(here, index, "backward")
        mine = builder.buffer(f"d/summed/{index}", ROWS, layer.width_in)
        others = builder.buffer(f"d/others/{index}", OTHERS, layer.width_in)
        pieces = costs.sums_backward(layer, EDGES, ROWS, NEEDED)
        builder.compute(
            here, f"backward/{index}/{Segment.EDGE_GRADIENTS}", OpKind.AGGREGATE, [EDGES_HELD, f"d/aggregated/{index}"],
            [mine, others], builder.work(pieces, BACKWARD), layer=index, phase="backward",
            segment=Segment.EDGE_GRADIENTS, options={"edges": 1},
        )  # fmt: skip
        if own_gradient:
            builder.compute(
                here, f"backward/{index}/add_update", OpKind.ADD, [f"d/own/{index}", mine], [mine],
                builder.work([costs.pass_over(ROWS, layer.width_in, 3)]), layer=index, phase="backward",
            )  # fmt: skip
        self.transfers.give_back(here, index, mine, others, below, layer.width_in)
