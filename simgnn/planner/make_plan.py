"""Experiment and PartitionStats in, program out. Every ``auto`` is resolved here, once, and written into the plan."""

from dataclasses import dataclass, replace
from typing import cast

from simgnn.emit.blocks import ExpandBlocks
from simgnn.emit.communication import Sizes
from simgnn.emit.freshness import MovesBlocks, MovesRows
from simgnn.emit.names import Names
from simgnn.emit.segments import Segments
from simgnn.emit.sync import Reference, Sync
from simgnn.errors import ConfigError
from simgnn.experiment.combinations import expected_cut
from simgnn.experiment.schema import Experiment
from simgnn.experiment.slots import SLOTS
from simgnn.model.spec import BUILT_IN_LAYERS
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.planner.full_graph import FullGraphPlan
from simgnn.planner.layer_choices import LayerChoice, PlannedLayers, plan_layers
from simgnn.planner.mini_batch import plan_mini_batches
from simgnn.planner.plan import Planned, undeclared
from simgnn.planner.update import emit_evaluation, emit_loss, emit_update, training_state
from simgnn.policy import Codec
from simgnn.program.builder import ProgramBuilder
from simgnn.program.ops import ITEM_BYTES
from simgnn.program.program import EVALUATE, Calendar, Program
from simgnn.program.validate import validate
from simgnn.registry import reported
from simgnn.sampling.batches.sizes import BatchSizes

__all__ = ["Planned", "check_trains", "plan"]

FIRST, STEADY = "first", "steady"


def plan(experiment: Experiment, stats: PartitionStats, batches: BatchSizes | None = None) -> Planned:
    """Plan training: on mini-batches of the sizes ``batches``, else on the full graph.

    Raises :class:`ConfigError` for what the partition or the graph cannot serve.
    """
    if batches is None and experiment.sampling is not None:
        raise ConfigError(
            f"batching.kind: got '{experiment.batching.label}', expected 'full': no batches were drawn; those of a "
            "statistics file cannot be, as it holds no edges"
        )
    check_trains(experiment, stats)
    with reported(getattr(experiment, slot) for slot in SLOTS):
        return _full_graph(experiment, stats) if batches is None else plan_mini_batches(experiment, stats, batches)


def _full_graph(experiment: Experiment, stats: PartitionStats) -> Planned:
    facts, model, communication = stats.facts, experiment.model, experiment.full_graph_communication
    # of rows less their mean, kept sparse, a layer of the user's own would see a column that is no feature
    if communication.dense_inputs or (facts.centred_features and model.kind not in BUILT_IN_LAYERS):
        facts = replace(facts, feature_nonzeros=None)
        stats = replace(stats, facts=facts)
    item_bytes = ITEM_BYTES[experiment.train.dtype]
    sizes = communication.sizes(stats, item_bytes)
    planned = plan_layers(
        LayerChoice(
            kind=model.kind,
            hidden=model.hidden_widths(),
            order=model.order,
            hoist=model.hoist,
            rows=communication.input_rows(),
            resend_inputs=communication.resends_inputs(),
            heads=model.heads,
            epochs=experiment.train.epochs,
            item_bytes=item_bytes,
            transforms_copies=communication.transforms_copies,
            function=model.function(sampled=False),
            dropout=model.dropout,
        ),
        facts,
        sizes.input_bytes,
        sizes.copied_rows,
    )
    problems = communication.problems(planned.model.layers) + experiment.freshness.problems(planned.model.layers)
    if problems:
        raise ConfigError(problems)
    orders = [layer.order for layer in planned.model.layers]
    limit = experiment.train.gradient_limit(stats.ranks)
    arranged = tuple(replace(communication.arranged(one), gradient_limit=limit) for one in planned.model.layers)
    planned = replace(planned, model=replace(planned.model, layers=arranged))
    program = _program(experiment, stats, planned, sizes)
    validate(program)
    layers = planned.model.layers
    return Planned(
        program=program,
        layers=layers,
        classes=facts.classes,
        multilabel=facts.multilabel,
        resolved={
            "model.order": orders,
            "model.hoist": [layer.hoisted for layer in layers],
            **({"model.activation": layers[0].function} if model.kind in BUILT_IN_LAYERS else {}),
            **communication.resolved(planned.rows),
        },
        undeclared=undeclared(program, model.kind),
    )


def check_trains(experiment: Experiment, stats: PartitionStats) -> None:
    """Raise :class:`ConfigError` where nothing can be trained: on what the graph has, or with this partition."""
    facts = stats.facts
    problems = []
    if stats.kind != experiment.communication.cut:
        communication = experiment.communication
        problems.append(
            f"communication.kind = '{communication.label}': the partition's kind is {stats.kind}, "
            f"{expected_cut(communication.cut)}"
        )
    if facts.feature_width == 0:
        problems.append(
            f"graph '{facts.name}' has no features: set graph.stand_in_features = WIDTH for seeded random ones "
            "(results are then marked synthetic)"
        )
    if facts.classes == 0 or facts.train_vertices == 0:
        problems.append(f"graph '{facts.name}' has no labels or no training vertices, so there is nothing to train")
    if problems:
        raise ConfigError(problems)


def _program(experiment: Experiment, stats: PartitionStats, planned: PlannedLayers, sizes: Sizes) -> Program:
    hosts = [int(host) for host in stats.hosts]
    builder = ProgramBuilder(experiment.name, hosts, experiment.train.dtype, experiment.schedule)
    layers = planned.model.layers
    resends = experiment.communication.resends_inputs()
    once = (sizes.fetches_inputs and planned.rows == "input" and not resends) or layers[0].hoisted
    train = (FIRST, STEADY) if once else (STEADY,)
    names = Names(
        **sizes.add_to(builder, aggregated=layers[0].hoisted and layers[0].sparse_input),
        train=train,
        forward=(*train, EVALUATE),
        setup=(FIRST,) if once else (),
    )
    optimizer = experiment.train.update_rule
    training_state(builder, layers, names, stats, optimizer)
    segments = Segments(builder, planned.model, names)
    fetched_in = names.forward if resends else names.setup
    sums = sizes.sums(segments, _Transfers(experiment, builder), planned.rows, fetched_in)
    full_graph = FullGraphPlan(segments, sums)
    full_graph.inputs()
    for layer in layers:
        full_graph.forward(layer)
    emit_loss(builder, planned.model, names)
    for layer in reversed(layers):
        full_graph.backward(layer)
    emit_update(builder, layers, names.train, stats.ranks, optimizer)
    experiment.freshness.emit_epoch_end(builder, names.train)
    emit_evaluation(builder, planned.model, names, stats)
    return builder.build(Calendar(steady=STEADY, first=FIRST if once else None))


@dataclass(frozen=True)
class _Transfers:
    """See :class:`~simgnn.emit.communication.Transfers`. What freshness serves was checked when the experiment
    was loaded."""

    experiment: Experiment
    builder: ProgramBuilder

    def rows(self) -> "_Rows":
        assert "rows" in self.experiment.freshness.serves
        return _Rows(cast(MovesRows, self.experiment.freshness), self.experiment.codec, self.builder)

    def blocks(self) -> ExpandBlocks:
        assert "blocks" in self.experiment.freshness.serves
        freshness, codec, builder = cast(MovesBlocks, self.experiment.freshness), self.experiment.codec, self.builder
        return lambda sync: freshness.blocks(builder, sync, codec)


@dataclass(frozen=True)
class _Rows:
    """See :class:`~simgnn.emit.sync.Expand`."""

    freshness: MovesRows
    codec: Codec
    builder: ProgramBuilder

    def __call__(self, sync: Sync) -> None:
        self.freshness.expand(self.builder, sync, self.codec)

    def settle(self, templates: tuple[str, ...], reference: Reference) -> str | None:
        return self.freshness.settle(self.builder, templates, reference)
