"""Full-graph training chunk by chunk: rows lie on hosts, a step computes one layer of one chunk of every rank.

Source: HongTu (SIGMOD), sections 6 and 7 of our description: a forward pass that keeps sums on the host, and a backward
pass that computes updates again from them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from simgnn.emit.batches.names import VERTICES
from simgnn.emit.builder import Named, ProgramBuilder
from simgnn.emit.chunks.names import (
    EDGES,
    EDGES_HELD,
    HELD,
    MERGED,
    NEEDED,
    OTHERS,
    RANK_ROWS,
    ROWS,
    TOPOLOGY,
    TRAIN_ROWS,
    all_merged,
    at_list,
    listed,
    of_chunk,
    stored,
)
from simgnn.emit.chunks.policies import ChunkCommunication, ChunkPlacement, TakeEdges
from simgnn.emit.chunks.sizes import ChunkSizes
from simgnn.emit.chunks.transfers import ChunkTransfers, Phase
from simgnn.emit.names import Names
from simgnn.emit.segments import BACKWARD, FORWARD, Segments
from simgnn.experiment.schema import Experiment
from simgnn.model import costs
from simgnn.model.costs import Piece
from simgnn.model.spec import BUILT_IN_LAYERS, LayerSpec, ModelSpec
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
from simgnn.program.sizes import Column, Scratch, Size

BY_EDGES = {"edges": 1}
"""Options of ops that read the edges of their chunk first."""
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
    sizes = ChunkSizes(
        stats,
        len(model.layers),
        communication.reuses,
        communication.peers,
        any(map(gathers, model.layers)),
        placement.host_space,
    )
    kept = placement.kept(experiment.model.attends, experiment.model.built_in)
    builder = ProgramBuilder(
        experiment.name, [int(host) for host in stats.hosts], experiment.train.dtype, experiment.schedule
    )
    program = ChunkedPlan(builder, model, stats, sizes, kept == "recompute").program(experiment.train.update_rule)
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


def gathers(layer: LayerSpec) -> bool:
    """Whether a chunk's layer reads the rows that it needs one after the other, not where they lie in the merged
    buffer: each of them is transformed, or the layer is the user's own."""
    return layer.attends or layer.kind not in BUILT_IN_LAYERS


class ChunkedPlan:
    """Emits the steps of an epoch and of an evaluation. The first chunk of a pass over a layer may have a template of
    its own: in the last layer forward, the others add to its metrics; backward, it first clears gradients below.

    ``recomputes``: backward loads rows again and computes whole layers again; else forward keeps sums on the host, from
    which only updates are computed again."""

    def __init__(
        self, builder: ProgramBuilder, model: ModelSpec, stats: PartitionStats, sizes: ChunkSizes, recomputes: bool
    ) -> None:
        self.recomputes = recomputes
        self.builder, self.model, self.stats, self.sizes = builder, model, stats, sizes
        self.top = len(model.layers)
        widest = max(layer.width_in for layer in model.layers)
        self.transfers = ChunkTransfers(builder, sizes.moves_between_ranks, sizes.host, widest, recomputes)

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
            builder.allreduce((SUM,), SUM, ["evaluation"], EVALUATION * METRIC_BYTES, control=True, phase="evaluate")

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
        self.transfers.add_to()
        if any(layer.dropped for layer in model.layers):
            builder.buffer(VERTICES, RANK_ROWS, 1, "int64", persistent=True)
        builder.buffer("features", RANK_ROWS, model.layers[0].width_in, space=self.sizes.host, persistent=True)
        add_labels(builder, "labels", RANK_ROWS, self.stats.facts, self.sizes.host)
        keep_splits(builder, RANK_ROWS)
        learned_state(builder, model.layers, optimizer)
        builder.buffer("evaluation", 1, EVALUATION, "float64", persistent=True)
        builder.buffer(TOPOLOGY, self._topology(), 1, "uint8", persistent=True)

    def _topology(self) -> Column:
        """Bytes of the edges of all chunks of a rank, in both directions: 4 an edge and its weight, 8 a row pointer;
        and of the factors of rows. A GCN has some for the merged buffer, for rows that a chunk needs, and five times
        its own; a mean has them for its own."""
        builder, chunks, layer = self.builder, self.sizes.chunks, self.model.layers[0]
        rows, needed, edges = (builder.columns[each.name][:, :chunks].sum(axis=1) for each in (ROWS, NEEDED, EDGES))
        of_edge = 4 + (builder.item_bytes if layer.weighted else 0)
        factors = {"gcn": chunks * builder.columns[MERGED.name] + needed + 5 * rows, "sage": rows}.get(layer.kind, 0)
        pointers = 8 * (rows + needed + 2 * chunks)
        return builder.column("topology_bytes", 2 * of_edge * edges + pointers + builder.item_bytes * factors)

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
        self._compute(segments, layer, here, "forward")
        hidden = f"hidden/{index}"
        if train is not None and not self.recomputes:
            self._save(here, f"forward/{index}/keep", layer, f"aggregated/{index}", layer.aggregated_width)
        if index < self.top:
            self._save(here, f"forward/{index}/save", layer, hidden, layer.width_out)
        elif train is None:
            reads: list[Named] = [hidden, of_chunk("labels"), *([] if opens else ["evaluation"])]
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
            kept = self._gradients(index)
            self._save(here, f"forward/{index}/save", layer, gradient, self.model.classes, kept)

    def _compute(self, segments: Segments, layer: LayerSpec, here: tuple[str, ...], phase: Phase) -> None:
        """Emit the layer of a chunk from rows of the host, up to its output. ``phase``: of the transfers."""
        index, builder, width = layer.index, self.builder, layer.width_in
        self.transfers.bring(here, phase, index, stored(segments.own(layer)), width)
        own = self._pick(here, phase, layer, "own", ROWS)
        self._edges(here, index, phase)
        if not gathers(layer):
            self._sum(segments, layer, [own, all_merged(HELD, width)])
        else:
            others = builder.buffer(f"others/{index}", OTHERS, width)
            # those of the rank, then those of other ranks, as their gradients leave
            self._pick(here, phase, layer, "others", OTHERS)
            if layer.whole:
                hidden = builder.buffer(f"hidden/{index}", ROWS, layer.width_out)
                work = builder.work(segments.work(layer, "forward", []), FORWARD)
                reads = [EDGES_HELD, own, others]
                segments.forward(layer, Segment.FORWARD, OpKind.TRANSFORM, reads, [hidden], work, options=BY_EDGES)
                self._dropout(segments, layer, "forward")
                return
            self._sum(segments, layer, self._prepared(segments, layer, own, others))
        self._update(segments, layer)

    def _pick(self, here: tuple[str, ...], phase: Phase, layer: LayerSpec, name: str, rows: Column) -> str:
        """Emit the copy of rows out of the merged buffer."""
        picked = self.builder.buffer(f"{name}/{layer.index}", rows, layer.width_in)
        self.builder.compute(
            here, f"{phase}/{layer.index}/{name}", OpKind.COPY,
            [at_list(HELD, name, layer.width_in), listed(name)], [picked],
            (self.builder.row_work("gather", rows, layer.width_in),), layer=layer.index, phase=phase,
        )  # fmt: skip
        return picked

    def _prepared(self, segments: Segments, layer: LayerSpec, own: str, others: str) -> list[str]:
        """Emit ``prepare`` of own and of other rows; returns what is summed."""
        if not layer.has_prepare:
            return [own, others]
        builder, width = self.builder, layer.prepared_width
        writes = [
            builder.buffer(f"prepared/{layer.index}", ROWS, width),
            builder.buffer(f"prepared_others/{layer.index}", OTHERS, width),
        ]
        pieces = segments.product(layer, costs.RowSet(ROWS)) + segments.product(layer, costs.RowSet(OTHERS))
        work, scratch = builder.work(pieces), segments.copied_weights(pieces)
        segments.forward(layer, Segment.PREPARE, OpKind.TRANSFORM, [own, others], writes, work, scratch)
        return writes

    def _sum(self, segments: Segments, layer: LayerSpec, rows: Sequence[Named]) -> None:
        """Emit the sums of the chunk's rows over their in-edges."""
        builder, index = self.builder, layer.index
        if layer.attends:
            maximum = builder.buffer(f"maximum/{index}", ROWS, layer.heads)
            work = builder.work(costs.attention_maximum(layer, EDGES, ROWS, NEEDED), FORWARD)
            reads = [EDGES_HELD, *rows]
            segments.forward(layer, Segment.MAXIMUM, OpKind.AGGREGATE, reads, [maximum], work, options=BY_EDGES)
            rows = [*rows, maximum]
        summed = builder.buffer(f"aggregated/{index}", ROWS, layer.aggregated_width)
        pieces = segments.work(layer, "aggregate", costs.sums(layer, EDGES, ROWS, NEEDED))
        segments.forward(
            layer, Segment.AGGREGATE, OpKind.AGGREGATE, [EDGES_HELD, *rows], [summed], builder.work(pieces, FORWARD),
            options=BY_EDGES,
        )  # fmt: skip

    def _update(self, segments: Segments, layer: LayerSpec) -> None:
        hidden = self.builder.buffer(f"hidden/{layer.index}", ROWS, layer.width_out)
        reads = [f"aggregated/{layer.index}", *([f"own/{layer.index}"] if layer.uses_own_rows else [])]
        segments.update(layer, reads, hidden, costs.RowSet(ROWS))
        self._dropout(segments, layer, "forward")

    def _dropout(self, segments: Segments, layer: LayerSpec, phase: Phase) -> None:
        segments.dropout(layer, phase, vertices=of_chunk(VERTICES))

    def _edges(self, templates: tuple[str, ...], layer: int, phase: Phase) -> None:
        """Emit the choice of the chunk's edges."""
        self.builder.buffer(EDGES_HELD, 1, 0, "uint8")
        self.builder.compute(
            templates, f"{phase}/{layer}/edges", OpKind.SELECT, [TOPOLOGY], [EDGES_HELD], (), TakeEdges,
            module="placement", layer=layer, phase=phase,
        )  # fmt: skip

    def _gradients(self, layer: int) -> str:
        """The buffer of the host that holds the gradients of a layer's output: of two layers in turn, one each."""
        return f"host/d/{layer % 2}/{self.model.layers[layer - 1].width_out}"

    def _save(
        self, templates: tuple[str, ...], name: str, layer: LayerSpec, buffer: str, width: int, into: str = ""
    ) -> None:
        """Emit the copy of a chunk's rows to the host, into the buffer named after them, or ``into`` another."""
        builder = self.builder
        kept = builder.buffer(into or stored(buffer), RANK_ROWS, width, space=self.sizes.host)
        builder.host_copy(
            templates, name, OpKind.D2H, [buffer], [of_chunk(kept)], ROWS, width * builder.item_bytes,
            layer=layer.index, phase="forward", category="comm",
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
        trained = index > 1
        below = self._gradients(index - 1) if trained else ""
        own_gradient = trained and layer.uses_own_rows
        if opens:
            builder.buffer(below, RANK_ROWS, layer.width_in, space=self.sizes.host)
            builder.compute(
                here, f"backward/{index}/clear", OpKind.ELEMENTWISE, [], [below],
                builder.work([costs.pass_over(RANK_ROWS, layer.width_in, 1)]), layer=index, phase="backward",
                form=Form.ZEROS,
            )  # fmt: skip
        gradient, summed = f"d/hidden/{index}", f"aggregated/{index}"
        self._take(here, f"backward/{index}/take", layer, self._gradients(index), gradient)
        if self.recomputes:
            self._compute(segments, layer, here, "backward")
        else:
            self._take(here, f"backward/{index}/again", layer, stored(summed), summed)
            if layer.uses_own_rows:
                self._take(here, f"backward/{index}/own", layer, stored(segments.own(layer)), f"own/{index}")
            self._update(segments, layer)
        self._dropout(segments, layer, "backward")
        mine, others = f"d/summed/{index}", f"d/others/{index}"
        if trained:
            builder.buffer(mine, ROWS, layer.width_in)
            builder.buffer(others, OTHERS, layer.width_in)
        if layer.whole:
            self._reverse_whole(segments, layer, [mine, others] if trained else [])
        else:
            through = trained or (gathers(layer) and layer.has_prepare)
            segments.reverse_update(layer, costs.RowSet(ROWS), f"own/{index}", through, own_gradient)
            if through and gathers(layer):
                self._reverse_gathered(segments, layer, [mine, others] if trained else [])
            elif through:
                self._reverse_sum(here, layer, [mine, others])
        if own_gradient and not layer.whole:
            builder.compute(
                here, f"backward/{index}/add_update", OpKind.ADD, [f"d/own/{index}", mine], [mine],
                builder.work([costs.pass_over(ROWS, layer.width_in, 3)]), layer=index, phase="backward",
            )  # fmt: skip
        if trained:
            self.transfers.give_back(here, index, mine, others, below, layer.width_in)

    def _reverse_sum(self, here: tuple[str, ...], layer: LayerSpec, writes: list[str]) -> None:
        """Emit the gradients of rows through sums that depend on nothing but edges."""
        index, builder = layer.index, self.builder
        if not self.recomputes:
            self._edges(here, index, "backward")
        pieces: list[Piece[Size]] = costs.sums_backward(layer, EDGES, ROWS, NEEDED)
        builder.compute(
            here, f"backward/{index}/{Segment.EDGE_GRADIENTS}", OpKind.AGGREGATE, [EDGES_HELD, f"d/aggregated/{index}"],
            writes, builder.work(pieces, BACKWARD), layer=index, phase="backward", segment=Segment.EDGE_GRADIENTS,
            options=BY_EDGES,
        )  # fmt: skip

    def _reverse_gathered(self, segments: Segments, layer: LayerSpec, writes: list[str]) -> None:
        """Emit the reverse of sums over gathered rows, and of ``prepare``; ``writes``: gradients of own and of other
        rows (none in layer 1)."""
        index, builder = layer.index, self.builder
        sources = [f"own/{index}", f"others/{index}"]
        if not layer.has_prepare:
            segments.aggregate_backward(layer, writes, dict(zip(writes, sources, strict=True)))
            return
        prepared, width = [f"prepared/{index}", f"prepared_others/{index}"], layer.prepared_width
        through = [
            builder.buffer(f"d/{name}", rows, width) for name, rows in zip(prepared, (ROWS, OTHERS), strict=True)
        ]
        segments.aggregate_backward(layer, through, dict(zip(through, prepared, strict=True)))
        pieces = [
            piece
            for rows in (ROWS, OTHERS)
            for piece in segments.product_backward(layer, costs.RowSet(rows), bool(writes))
        ]
        gradients = dict(zip((*through, *writes), (*prepared, *sources), strict=False))
        scratch = Scratch(segments.weight_gradients(layer, pieces, in_turn=True))
        segments.reverse(
            layer, Segment.PREPARE, OpKind.TRANSFORM, [*through, *sources], writes, builder.work(pieces), gradients,
            scratch=scratch,
        )  # fmt: skip

    def _reverse_whole(self, segments: Segments, layer: LayerSpec, writes: list[str]) -> None:
        """Emit the backward pass of a layer of one segment."""
        index = layer.index
        sources = [f"own/{index}", f"others/{index}"]
        gradients = {f"d/hidden/{index}": f"hidden/{index}", **dict(zip(writes, sources, strict=False))}
        pieces = segments.work(layer, "forward/backward", [])
        scratch = Scratch(segments.weight_gradients(layer, pieces, in_turn=False))
        segments.reverse(
            layer, Segment.FORWARD, OpKind.TRANSFORM, [f"d/hidden/{index}", *sources, f"hidden/{index}"], writes,
            self.builder.work(pieces, BACKWARD), gradients, scratch=scratch,
        )  # fmt: skip
