"""Where the ops that learn embeddings stand in a step: at its end, or beside the next one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from simgnn.emit.batches.embeddings import APPLY, PICK, SUM, PushOps, push_ops
from simgnn.emit.batches.names import DRAW, FEATURE_ROWS, SEED_COUNT, SEEDS, rows_after
from simgnn.experiment.schema import Experiment
from simgnn.experiment.sections import TrainSection
from simgnn.model.costs import pass_over
from simgnn.model.spec import ModelSpec
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.planner.block_layers import BlockLayers, emit_inference, in_batches
from simgnn.planner.layer_choices import LayerChoice, plan_layers
from simgnn.planner.plan import Planned
from simgnn.planner.stored_rows import StoredRows
from simgnn.planner.update import emit_update, keep_splits, learned_state, loss_scratch
from simgnn.policy import MiniBatchSchedule, StepEnds
from simgnn.program.builder import ProgramBuilder
from simgnn.program.kinds import Form, OpKind
from simgnn.program.ops import ITEM_BYTES, Dependency, Nature, Op, Work
from simgnn.program.program import EVALUATE, Calendar, Program
from simgnn.program.validate import validate
from simgnn.sampling.batches.sizes import BatchSizes


@dataclass(frozen=True)
class TrainingOps:
    """The ops that train a staged batch, in program order: ``beside`` the ``chain``, which is one op after the other,
    and ``aside`` from it, when it has ended, beside the next step. The next step waits for the end of the chain."""

    chain: tuple[Op, ...]
    beside: tuple[Op, ...] = ()
    aside: tuple[Op, ...] = ()

    @property
    def trained(self) -> str:
        """The last op of the chain."""
        return self.chain[-1].name

    def starting(self, ready: str) -> list[Op]:
        """All ops: they wait for the op ``ready``, which completes the batch's rows, the chain for that of the step
        before."""
        chain = after(self.chain, (Dependency(ready), Dependency(self.trained, steps_back=1)))
        beside = after(self.beside, (Dependency(ready),)) if self.beside else []
        return [*beside, *chain, *self.aside]


def training_ops(
    training: Sequence[Op], pushed: PushOps | None, delay: int, schedule: MiniBatchSchedule
) -> TrainingOps:
    """``training``: from the first layer to the optimizer.

    What is pushed is applied at the end of its step, as docs/systems/distdgl.md has it. With a ``delay`` a step applies
    what the one before pushed, when all ranks of its host have their rows. Where the schedule lets ops run beside
    training, gradients travel and rows change beside it; ranks meet in the sum of gradients after that, so that rows of
    the step that follows are pulled from what has changed on every host.
    """
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
    """Ops, each after the one before."""
    return (ops[0], *(replace(op, after=(Dependency(before.name),)) for before, op in pairwise(ops)))


def after(ops: Sequence[Op], dependencies: tuple[Dependency, ...]) -> list[Op]:
    """A chain whose first op waits for more."""
    return [replace(ops[0], after=(*ops[0].after, *dependencies)), *ops[1:]]


STEP, FIRST, OPENING = "step", "first", "opening"


def plan_mini_batches(experiment: Experiment, stats: PartitionStats, batches: BatchSizes) -> Planned:
    """Plan sampled training on batches of known sizes: every epoch's are columns of the program, so it is that of one
    run."""
    model, train = experiment.model, experiment.train
    placement = experiment.row_store
    assert placement is not None
    # the store holds dense rows, embeddings behind features
    width = stats.facts.feature_width + placement.learned_width
    facts = replace(stats.facts, feature_nonzeros=None, feature_width=width)
    stats = replace(stats, facts=facts)
    planned = plan_layers(
        LayerChoice(
            kind=model.kind,
            hidden=model.hidden_widths(),
            order=model.order,
            hoist="never",  # input rows are others in each step, so no sum of them is constant
            rows="input",
            resend_inputs=True,
            heads=model.heads,
            epochs=train.epochs,
            item_bytes=ITEM_BYTES[train.dtype],
            function=model.function(sampled=True),
            dropout=model.dropout,
        ),
        facts,
        0,
        0,
    )
    limit = train.gradient_limit(stats.ranks)
    layers = tuple(replace(layer, gradient_limit=limit) for layer in planned.model.layers)
    program = validate(_program(experiment, stats, batches, replace(planned.model, layers=layers)))
    return Planned(
        program=program,
        layers=layers,
        classes=facts.classes,
        multilabel=facts.multilabel,
        resolved={
            "model.order": [layer.order for layer in layers],
            "model.activation": layers[0].function,
            "placement.hot_rows": placement.cached_rows,
        },
    )


def _program(experiment: Experiment, stats: PartitionStats, batches: BatchSizes, model: ModelSpec) -> Program:
    batching, communication = experiment.sampling, experiment.batch_communication
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
    _lookups(builder, stats, batches, marks, not communication.sends_unasked, batching.evaluation == "exact")
    _training(builder, model, stats, train, placement.learned_width > 0)
    pushed = None
    if placement.learned_width:
        host_rows = builder.columns[FEATURE_ROWS.name]
        pushed = push_ops(builder, batches, host_rows, placement.learned_width, placement.learned_delay)
    trained = training_ops(builder.templates.pop(STEP), pushed, placement.learned_delay, schedule)
    released = next(op.name for op in reversed(trained.chain) if op.phase == "backward")
    ends = StepEnds(staged=staged[-1].name, released=released, trained=trained.trained)
    drawing = after(batching.ops(builder, batches, store.drawn()), schedule.before_draw(ends))
    staged = after(staged, (Dependency(DRAW), *schedule.before_rows(ends)))
    training = trained.starting(store.ready)
    builder.templates[STEP] = [*drawing, *staged, *training]
    first = store.first()
    if first:
        builder.templates[FIRST] = [*first, *drawing, *after(staged, (Dependency(first[-1].name),)), *training]
    before = schedule.before_epoch(ends)
    if before:
        builder.templates[OPENING] = [*drawing, *after(staged, before), *training]
    if batching.evaluation == "exact":
        emit_inference(builder, model, stats)
        builder.templates[EVALUATE] = list(in_order(builder.templates[EVALUATE]))
    return builder.stated(
        Calendar(STEP, first=FIRST if first else None, steps=batches.steps, opening=OPENING if before else None)
    )


def _lookups(
    builder: ProgramBuilder, stats: PartitionStats, batches: BatchSizes, marks: int, found: bool, evaluated: bool
) -> None:
    """What ranks keep to find vertices by, each a table of its own: the ids of all, by host (int64); where rows are
    worked out when a batch is there (``found``), the row of each on its host, and for each row of the largest batch its
    place there and its row on its host (int32 all); ``marks`` samplers with two bits a vertex and hop, and before the
    first; numbers of training vertices, and, where they are ``evaluated``, of the rank's own, in the host's memory and
    by split (int64)."""
    vertices, hops, largest = int(stats.rows.sum()), len(batches.edges), builder.columns["largest/inputs"]
    nbytes = 8 * vertices + 8 * batches.training + marks * (hops + 1) * vertices // 4
    nbytes += found * (4 * vertices + 8 * largest)
    size = builder.column("lookups/bytes", nbytes + 16 * stats.rows * evaluated)
    builder.buffer("lookups", size, 1, "uint8", space="host", persistent=True, inner=True)


def _training(
    builder: ProgramBuilder, model: ModelSpec, stats: PartitionStats, train: TrainSection, learned_inputs: bool
) -> None:
    """Layers, loss and update, in program order."""
    layers, top = model.layers, len(model.layers)
    learned_state(builder, layers, train.update_rule)
    builder.buffer(SEED_COUNT, 1, 1)
    blocks = BlockLayers(builder, model, in_batches(top, (STEP,)), learned_inputs)
    for layer in layers:
        blocks.forward(layer)
    rows = rows_after(0)
    builder.buffer(f"d/hidden/{top}", rows, model.classes)
    work = (Work("loss", {"rows": rows, "width": model.classes, "item_bytes": builder.item_bytes}),)
    builder.compute(
        (STEP,), "forward/loss", OpKind.LOSS, [f"hidden/{top}", SEEDS, "labels"],
        [f"d/hidden/{top}", "metrics", SEED_COUNT], (*builder.work([pass_over(rows, model.classes, 1)]), *work),
        layer=top, phase="forward", form=Form.RANK_MEANS if train.gradient_mean == "ranks" else None,
        scratch=loss_scratch(builder, model, rows, picked=False),
    )  # fmt: skip
    keep_splits(builder, rows)
    for layer in reversed(layers):
        blocks.backward(layer)
    emit_update(builder, layers, (STEP,), stats.ranks, train.update_rule, [SEED_COUNT])
