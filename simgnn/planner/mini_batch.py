"""Mini-batch training: batches are drawn, their rows staged, their layers trained; three chains of ops per step.

*Drawing* makes blocks. *Staging* brings rows: local ones, hot ones, those of other hosts, and a piece of the next
epoch's cache. *Training* is one chain from the first layer to the optimizer. The schedule decides how far the first two
run ahead of the third, as dependencies on earlier steps. Ops that update learned embeddings are at the end of the third
chain, or beside it. Sources: docs/systems/distdgl.md, docs/systems/rapidgnn.md."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

import numpy as np

from simgnn.emit.batches import names
from simgnn.emit.batches.embeddings import APPLY, PICK, SUM, PushOps, push_ops
from simgnn.emit.batches.names import block, drawn, edges_of, rows_after
from simgnn.emit.batches.placement import RowStore
from simgnn.emit.batches.staging import StageInputs, Staging, add_route, received
from simgnn.emit.builder import ProgramBuilder, accesses
from simgnn.emit.communication import BatchCommunication
from simgnn.experiment.schema import Experiment
from simgnn.experiment.sections import TrainSection
from simgnn.graph.graph import GraphFacts
from simgnn.model.costs import pass_over
from simgnn.model.spec import LayerSpec, ModelSpec
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.planner.block_layers import BlockLayer, emit_inference, place_in_batches
from simgnn.planner.layer_choices import InputRows, plan_layers
from simgnn.planner.update import add_labels, emit_update, keep_splits, learned_state, loss_scratch
from simgnn.policies.communication.store import ROUTE
from simgnn.policies.placement.store import CACHE_ROUTE, FIRST_ROUTE
from simgnn.policy import MiniBatchSchedule, StepEnds, expect_whole
from simgnn.program.calendar import EVALUATE, Calendar
from simgnn.program.kinds import Form, OpKind
from simgnn.program.ops import ITEM_BYTES, Access, Dependency, Nature, Op, Transfer, Work
from simgnn.program.program import Program
from simgnn.program.sizes import Column, IntArray, Scratch, rows_of
from simgnn.sampling.batches.sizes import BatchSizes

WORD_BYTES = 4
SEED_BYTES = 8
DRAWN_SEEDS = "drawn_seeds"
BLOCK_BYTES, STAGED_ROWS, HITS = Column("batch/bytes"), Column("rows/staged"), Column("rows/hits")
STEP, FIRST, OPENING = "step", "first", "opening"
"""Templates: a step, the first step of a run, the first step of another epoch."""


class StoredRows:
    """Adds columns, routes and buffers for the sizes of a run's batches to a builder, and returns the chain of ops that
    stages a batch's rows. ``ready``: the op that completes these."""

    def __init__(
        self, builder: ProgramBuilder, batches: BatchSizes, stats: PartitionStats, schedule: MiniBatchSchedule,
        placement: RowStore,
    ) -> None:  # fmt: skip
        self.builder = builder
        self.batches, self.placement = batches, placement
        self.several_hosts = len(set(builder.hosts)) > 1
        self.cache = batches.cache if self.several_hosts else None
        self.ready = names.TAKE_HOT if self.cache is not None else names.STAGE_ROWS
        self.hops = len(batches.edges)
        self._width = stats.facts.feature_width
        self._owned = stats.rows
        self._columns()
        self._buffers(stats.facts, schedule)

    def drawn(self) -> tuple[Access, ...]:
        """The outputs of drawing a batch: its vertices, its seeds, its blocks by hop."""
        return accesses([names.VERTICES, DRAWN_SEEDS, *map(drawn, range(1, self.hops + 1))])

    def check_fits(self) -> None:
        """Raise :class:`~simgnn.errors.ConfigError` if caches and staged batches exceed the placement's memory."""
        builder, largest = self.builder, self.builder.columns["largest/inputs"]
        cached = np.zeros_like(largest) if self.cache is None else self.cache.rows
        self.placement.check_fits(
            cached, largest, builder.buffers[names.INPUTS].depth, self._width * builder.item_bytes
        )

    def staged(self, communication: BatchCommunication) -> list[Op]:
        """The chain of staging ops: rows of other hosts, blocks and rows to the device, hot rows, the next hot rows."""
        staging = Staging(self.builder, self._width)
        pulled = [communication.pull(staging)] if self.several_hosts else []
        hops = range(1, self.hops + 1)
        blocks = Op(
            names.STAGE_BLOCKS, OpKind.H2D, Nature.STAGING, accesses([DRAWN_SEEDS, *map(drawn, hops)]),
            accesses([names.SEEDS, *map(block, hops)]), work=(Work("copy", {"bytes": BLOCK_BYTES, "item_bytes": 1}),),
            transfer=Transfer(1, BLOCK_BYTES), category="comm_overhead", scratch=Scratch(handed_over=True),
        )  # fmt: skip
        staging.add(blocks)
        reads = accesses([names.VERTICES, names.FEATURES, *pulled])
        staging.to_device(names.STAGE_ROWS, reads, Access(names.INPUTS), STAGED_ROWS, StageInputs)
        if self.cache is not None:
            self.placement.take(staging)
            self.placement.fill_next(staging)
        return staging.ops

    def first(self) -> list[Op]:
        """Return the chain of ops that fills the first epoch's caches; empty without hot rows."""
        staging = Staging(self.builder, self._width)
        if self.cache is not None:
            self.placement.fill_first(staging)
        return staging.ops

    def _columns(self) -> None:
        builder, batches = self.builder, self.batches
        for hop in range(self.hops + 1):
            builder.column(rows_after(hop).name, batches.rows[hop])
        for hop in range(1, self.hops + 1):
            builder.column(edges_of(hop).name, batches.edges[hop - 1])
            builder.column(f"words/{hop}", self._words(hop))
        words = np.sum([self._words(hop) for hop in range(1, self.hops + 1)], axis=0)
        numbers = batches.rows[0]
        if batches.seeds is not None and batches.pairs is not None:
            builder.column(names.SEED_ROWS.name, batches.seeds)
            builder.column(names.PAIRS.name, batches.pairs)
            numbers = batches.pairs
        builder.column(BLOCK_BYTES.name, WORD_BYTES * words + SEED_BYTES * numbers)
        builder.column("largest/seeds", _largest(numbers))
        builder.column("largest/inputs", _largest(batches.rows[-1]))
        builder.column("train_vertices", batches.training)
        here = batches.local
        if self.several_hosts:
            add_route(builder, ROUTE, batches.pulled)
            here = here + builder.columns[received(ROUTE).name]
        builder.column(STAGED_ROWS.name, here)
        if self.cache is not None:
            builder.column(HITS.name, batches.hits)
            builder.column("hot/rows", self.cache.rows)
            if self.placement.refills:
                builder.column("hot/kept", self.cache.kept)
                add_route(builder, CACHE_ROUTE, self.cache.pulled)
            add_route(builder, FIRST_ROUTE, self.cache.first)

    def _words(self, hop: int) -> IntArray:
        """Count the int32 numbers in a block: a pointer for each row, one for the end, and a source for each edge."""
        rows = self.batches.rows[hop - 1]
        words: IntArray = rows + (rows > 0) + self.batches.edges[hop - 1]
        return words

    def _buffers(self, facts: GraphFacts, schedule: MiniBatchSchedule) -> None:
        """Add ring buffers of batches. Each copy in a ring is as large as the rank's largest batch of the run."""
        builder, held = self.builder, expect_whole(schedule, "drawn_batches", schedule.drawn_batches, 1)
        staged = expect_whole(schedule, "staged_batches", schedule.staged_batches(self.batches.steps), 1)
        seeds, inputs = Column("largest/seeds"), Column("largest/inputs")
        builder.buffer(names.VERTICES, inputs, 1, "int64", space="host", depth=held, ring="step")
        builder.buffer(DRAWN_SEEDS, seeds, 1, "int64", space="host", depth=held, ring="step")
        builder.buffer(names.SEEDS, seeds, 1, "int64", depth=staged, ring="step")
        builder.buffer(names.INPUTS, inputs, self._width, depth=staged, ring="step", lasting=True)
        for hop in range(1, self.hops + 1):
            words = builder.column(f"largest/words/{hop}", _largest(self._words(hop)))
            builder.buffer(drawn(hop), words, 1, "int32", space="host", depth=held, ring="step")
            builder.buffer(block(hop), words, 1, "int32", depth=staged, ring="step")
        hosts = np.array(builder.hosts)
        on_hosts = np.bincount(hosts, self._owned)
        rows = builder.column(names.FEATURE_ROWS.name, on_hosts[hosts])
        builder.buffer(names.FEATURES, rows, self._width, space="host-shared", persistent=True)
        if self.batches.pairs is None:
            add_labels(builder, "labels", Column("train_vertices"), facts)
        if self.cache is not None:
            builder.buffer(names.HOT, Column("hot/rows"), self._width, depth=self.placement.caches, lasting=True)


def _largest(column: IntArray) -> IntArray:
    return np.asarray(column.max(axis=(1, 2)))


@dataclass(frozen=True)
class TrainingOps:
    """The ops that train a staged batch, in program order. ``chain``: one op after the other; the next step waits for
    its end. ``beside``: ops that run beside the chain; ``aside``: ops that run after it, beside the next step."""

    chain: tuple[Op, ...]
    beside: tuple[Op, ...] = ()
    aside: tuple[Op, ...] = ()

    @property
    def trained(self) -> str:
        return self.chain[-1].name

    def starting(self, ready: str) -> list[Op]:
        """Return all ops. All wait for ``ready``, which completes the batch's rows; the chain also for the last."""
        chain = after(self.chain, (Dependency(ready), Dependency(self.trained, steps_back=1)))
        beside = after(self.beside, (Dependency(ready),)) if self.beside else []
        return [*beside, *chain, *self.aside]


def training_ops(
    training: Sequence[Op], pushed: PushOps | None, delay: int, schedule: MiniBatchSchedule
) -> TrainingOps:
    """Add the ops that train embeddings to a step whose other ops are ``training``, first layer to optimizer.

    Pushed gradients are applied at the end of their step (docs/systems/distdgl.md). With a ``delay`` a step applies
    those of the previous step, when all ranks of its host have their rows. If the schedule lets ops run beside
    training, gradients travel and rows change beside it; ranks sum the model's gradients only after that, so that the
    next step pulls updated rows from every host."""
    if pushed is None:
        return TrainingOps(in_order(training))
    if not delay:
        return TrainingOps(in_order((*training, pushed.pick, *pushed.push, *pushed.apply)))
    if not schedule.pushes_beside:
        return TrainingOps(in_order((*pushed.apply, *training, pushed.pick, *pushed.push)))
    chain = list(in_order((*training, pushed.pick)))
    meet = next(place for place, op in enumerate(chain) if op.phase == "update")
    chain[meet] = replace(chain[meet], after=(*chain[meet].after, Dependency(APPLY)))
    applied = list(in_order(pushed.apply))
    applied[-1] = replace(applied[-1], after=(*applied[-1].after, Dependency(SUM, steps_back=1)))
    return TrainingOps(tuple(chain), tuple(applied), tuple(after(in_order(pushed.push), (Dependency(PICK),))))


def in_order(ops: Sequence[Op]) -> tuple[Op, ...]:
    """Make each op depend on the one before it."""
    return (ops[0], *(replace(op, after=(Dependency(before.name),)) for before, op in pairwise(ops)))


def after(ops: Sequence[Op], dependencies: tuple[Dependency, ...]) -> list[Op]:
    """Add dependencies to the first op of a chain."""
    return [replace(ops[0], after=(*ops[0].after, *dependencies)), *ops[1:]]


def mini_batches(
    experiment: Experiment, stats: PartitionStats, batches: BatchSizes
) -> tuple[Program, tuple[LayerSpec, ...], dict[str, Any]]:
    """Plan sampled training on batches of known sizes: the program, its layers, and the values chosen for ``auto``.

    The sizes of all epochs' batches are columns of the program, so that it is valid for one run only."""
    placement = experiment.row_store
    assert placement is not None
    # the store holds dense rows, embeddings behind features
    width = stats.facts.feature_width + placement.learned_width
    facts = replace(stats.facts, feature_nonzeros=None, feature_width=width)
    if batches.pairs is not None:  # the last layer's rows are no scores of classes
        hidden = experiment.model.hidden
        facts = replace(facts, classes=hidden if isinstance(hidden, int) else hidden[-1], multilabel=False)
    stats = replace(stats, facts=facts)
    model, _ = plan_layers(experiment, stats.facts, stats.ranks, InputRows())
    resolved = {
        "model.order": [layer.order for layer in model.layers],
        "model.activation": model.layers[0].function,
        "placement.hot_rows": placement.cached_rows,
    }
    return _program(experiment, stats, batches, model), model.layers, resolved


def _program(experiment: Experiment, stats: PartitionStats, batches: BatchSizes, model: ModelSpec) -> Program:
    batching, communication = experiment.sampling, cast(BatchCommunication, experiment.communication)
    placement, train = experiment.row_store, experiment.train
    assert batching is not None
    assert placement is not None
    assert experiment.schedule.mini_batches is not None, "other schedules are rejected when an experiment is loaded"
    schedule = experiment.schedule.mini_batches.fitted(train.epochs * batches.steps)
    builder = ProgramBuilder(experiment.name, [int(host) for host in stats.hosts], train.dtype, schedule)
    builder.natures += [Nature.DRAWING, Nature.STAGING, Nature.FETCHING]
    store = StoredRows(builder, batches, stats, schedule, placement)
    store.check_fits()
    staged = store.staged(communication)
    marks = 0 if batching.known_ahead or batches.parted is not None else schedule.drawing_threads
    evaluated = batching.evaluation == "exact" and (batches.compared is None or batches.compared.entries > 0)
    _lookups(builder, stats, batches, marks, not communication.sends_unasked, evaluated)
    _training(builder, model, batches, train, placement.learned_width > 0)
    pushed = None
    if placement.learned_width:
        host_rows = builder.columns[names.FEATURE_ROWS.name]
        pushed = push_ops(builder, batches, host_rows, placement.learned_width, placement.learned_delay)
    trained = training_ops(builder.templates.pop(STEP), pushed, placement.learned_delay, schedule)
    released = next(op.name for op in reversed(trained.chain) if op.phase == "backward")
    ends = StepEnds(staged=staged[-1].name, released=released, trained=trained.trained)
    drawing = after(batching.ops(builder, batches, store.drawn()), schedule.before_draw(ends))
    staged = after(staged, (Dependency(names.DRAW), *schedule.before_rows(ends)))
    training = trained.starting(store.ready)
    builder.templates[STEP] = [*drawing, *staged, *training]
    first = store.first()
    if first:
        builder.templates[FIRST] = [*first, *drawing, *after(staged, (Dependency(first[-1].name),)), *training]
    before = schedule.before_epoch(ends)
    if before:
        builder.templates[OPENING] = [*drawing, *after(staged, before), *training]
    if evaluated:
        emit_inference(builder, model, stats, batches.compared)
        builder.templates[EVALUATE] = list(in_order(builder.templates[EVALUATE]))
    calendar = Calendar(STEP, first=FIRST if first else None, steps=batches.steps, opening=OPENING if before else None)
    return builder.stated(calendar)


def _lookups(
    builder: ProgramBuilder, stats: PartitionStats, batches: BatchSizes, marks: int, found: bool, evaluated: bool
) -> None:
    """Add the memory of the tables in which ranks look up vertices: ids of all, by host (int64). If rows are looked up
    once a batch is drawn (``found``), the row of each vertex on its host, and for each row of the largest batch its
    place there and its row on its host (all int32). ``marks`` samplers have two bits per vertex and hop, and before the
    first. Numbers of training vertices and, if the rank's own vertices are ``evaluated``, theirs, in the host's memory
    and by split (int64)."""
    vertices, hops, largest = int(stats.rows.sum()), len(batches.edges), builder.columns["largest/inputs"]
    nbytes = 8 * vertices + 8 * batches.training + marks * (hops + 1) * vertices // 4
    nbytes += found * (4 * vertices + 8 * largest)
    size = builder.column("lookups/bytes", nbytes + 16 * stats.rows * evaluated)
    builder.buffer("lookups", size, 1, "uint8", space="host", persistent=True, inner=True)


def _training(
    builder: ProgramBuilder, model: ModelSpec, batches: BatchSizes, train: TrainSection, learned_inputs: bool
) -> None:
    layers, top = model.layers, len(model.layers)
    learned_state(builder, layers, train.update_rule)
    builder.buffer(names.SEED_COUNT, 1, 1)
    placed = [place_in_batches(model, layer, (STEP,)) for layer in layers]
    on_blocks = [BlockLayer(builder, model, *each, learned_inputs) for each in zip(layers, placed, strict=True)]
    for each in on_blocks:
        each.forward()
    rows = rows_after(0)
    builder.buffer(f"d/hidden/{top}", rows, model.classes)
    by_rank = train.gradient_mean == "ranks"
    if batches.pairs is None:
        reads, form, scored = ["labels"], Form.RANK_MEANS if by_rank else None, rows
        scratch = loss_scratch(builder, model, rows, picked=False)
    else:
        reads, form, scored = [], Form.RANK_MEANS_OF_PAIRS if by_rank else Form.PAIRS, names.PAIRS
        # of each pair: both rows, their products and gradients; and its place, score and derivative
        scratch = Scratch(rows_of(names.PAIRS, 4 * model.classes * builder.item_bytes + 4 * ITEM_BYTES["int64"]))
    work = (*builder.work([pass_over(rows, model.classes, 1)]), builder.row_work("loss", scored, model.classes))
    builder.compute(
        (STEP,), "forward/loss", OpKind.LOSS, [f"hidden/{top}", names.SEEDS, *reads],
        [f"d/hidden/{top}", "metrics", names.SEED_COUNT], work, layer=top, phase="forward", form=form, scratch=scratch,
    )  # fmt: skip
    keep_splits(builder, rows)
    for each in reversed(on_blocks):
        each.backward()
    emit_update(builder, layers, (STEP,), len(builder.hosts), train.update_rule, [names.SEED_COUNT])
