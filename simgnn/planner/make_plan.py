"""Plans a program from an experiment and partition statistics. Every ``auto`` is resolved and recorded here."""

from dataclasses import dataclass, replace
from typing import Any, Self, cast

from simgnn.emit.blocks import ExpandBlocks, PlainBlocks
from simgnn.emit.builder import ProgramBuilder
from simgnn.emit.communication import Communication, Sizes
from simgnn.emit.drawn_rows import DrawsRows
from simgnn.emit.freshness import Freshness, MovesBlocks, MovesRows
from simgnn.emit.halo_cache.cached_rows import CachesHalo, HaloCaches
from simgnn.emit.halo_cache.routes import CachedRows
from simgnn.emit.names import Names
from simgnn.emit.segments import Segments
from simgnn.emit.sums.drawn import Drawing, DrawnSums
from simgnn.emit.sync import Reference, Sync, emit_plainly
from simgnn.errors import ConfigError, ProgramError
from simgnn.experiment.schema import Experiment
from simgnn.experiment.slots import expected_cut
from simgnn.model.spec import LayerSpec, ModelSpec
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.planner.chunked import plan_chunks
from simgnn.planner.edge_weights import check_weights_used
from simgnn.planner.full_graph import FullGraphPlan
from simgnn.planner.layer_choices import InputRows, plan_layers
from simgnn.planner.mini_batch import mini_batches
from simgnn.planner.update import emit_evaluation, emit_loss, emit_update, training_state
from simgnn.policy import Codec
from simgnn.program.calendar import EVALUATE, FIRST, JOIN, Calendar, epoch_names, templates_of
from simgnn.program.ops import ITEM_BYTES
from simgnn.program.program import Program
from simgnn.program.validate import validate
from simgnn.sampling.batches.sizes import BatchSizes


@dataclass(frozen=True)
class Planned:
    """A program, the layers that its modules are built from, and the values chosen for ``auto`` (key path -> value).

    ``undeclared`` names user layers that declare no cost: they run, but are not simulated."""

    program: Program
    layers: tuple[LayerSpec, ...]
    resolved: dict[str, Any]
    undeclared: tuple[str, ...] = ()


def plan(experiment: Experiment, stats: PartitionStats, batches: BatchSizes | None = None) -> Planned:
    """Plan training on mini-batches of the sizes ``batches``, or without them on the full graph.

    Raises :class:`ConfigError` if the partition or the graph does not suit the experiment."""
    if batches is None and experiment.sampling is not None:
        raise ConfigError(
            f"batching.kind: got '{experiment.batching.label}', expected 'full': no batches were drawn; those of a "
            "statistics file cannot be, as it holds no edges"
        )
    check_trains(experiment, stats)
    if experiment.communication.moves == "chunks":
        program, layers, resolved = plan_chunks(experiment, stats)
    elif batches is None:
        program, layers, resolved = _full_graph(experiment, stats)
    else:
        program, layers, resolved = mini_batches(experiment, stats, batches)
    _check_actions(experiment, validate(program))
    undeclared = any(work.primitive == "undeclared" for _, op in program.ops for work in op.work)
    return Planned(program, layers, resolved, (experiment.model.kind,) if undeclared else ())


def _check_actions(experiment: Experiment, program: Program) -> None:
    """Raise :class:`ProgramError` for ops whose action the policy of their slot does not list."""
    problems = [
        f"op '{op.name}' needs the action '{op.action}', which the 'actions' of {op.module}.kind do not list"
        for _, op in program.ops
        if op.action not in (None, *(action.label for action in getattr(experiment, op.module or "codec").actions))
    ]
    if problems:
        raise ProgramError(problems)


@dataclass(frozen=True)
class Arranged:
    """The layers of a plan on the full graph. ``rows``: which rows of layer 1 travel, "input" or "transformed";
    ``stats``: those of the partition, with features that count as dense where layers or communication need that."""

    model: ModelSpec
    rows: str
    sizes: Sizes
    stats: PartitionStats
    resolved: dict[str, Any]


def arrange_layers(experiment: Experiment, stats: PartitionStats) -> Arranged:
    """Choose order and inputs of all layers. Raises :class:`ConfigError` for layers that do not suit the policies."""
    facts, model, communication = stats.facts, experiment.model, cast(Communication, experiment.communication)
    draws = _draws(experiment, stats)
    input_rows = "input" if draws and experiment.freshness.holds_inputs else communication.input_rows()
    # sums over other rows in each epoch are no constant, and are made of dense rows
    renewed = draws and (input_rows == "input" or bool(model.aggregates_first))
    # rows of a cache have one length
    renewed |= experiment.freshness.caches_halo and communication.resends_inputs()
    # of rows less their mean, kept sparse, a layer of the user's own would see a column that is no feature
    if communication.dense_inputs or renewed or (facts.centred_features and not model.built_in):
        facts = replace(facts, feature_nonzeros=None)
        stats = replace(stats, facts=facts)
    sizes = communication.sizes(stats, ITEM_BYTES[experiment.train.dtype])
    inputs = InputRows(
        # input rows are sent once, exactly; rows transformed by weights would be late
        rows="input" if experiment.freshness.late and input_rows == "auto" else input_rows,
        resent=communication.resends_inputs() or draws,
        transforms_copies=communication.transforms_copies and not (draws and facts.feature_nonzeros is not None),
        payload=sizes.input_bytes,
        copied=sizes.copied_rows,
    )
    chosen, rows = plan_layers(experiment, facts, stats.ranks, inputs)
    problems = communication.problems(chosen.layers) + experiment.freshness.problems(chosen.layers)
    if problems:
        raise ConfigError(problems)
    layers = tuple(communication.arranged(layer) for layer in chosen.layers)
    resolved = {
        "model.order": [layer.order for layer in chosen.layers],
        "model.hoist": [layer.hoisted for layer in layers],
        **({"model.activation": layers[0].function} if model.built_in else {}),
        **communication.resolved(rows),
    }
    return Arranged(replace(chosen, layers=layers), rows, sizes, stats, resolved)


def _full_graph(experiment: Experiment, stats: PartitionStats) -> tuple[Program, tuple[LayerSpec, ...], dict[str, Any]]:
    found = arrange_layers(experiment, stats)
    program = _program(experiment, found.stats, found.model, found.rows, found.sizes)
    return program, found.model.layers, found.resolved


def check_trains(experiment: Experiment, stats: PartitionStats) -> None:
    """Raise :class:`ConfigError` if graph or partition lack what training or the communication need, or if edges have
    weights that they cannot use."""
    facts, communication = stats.facts, experiment.communication
    check_weights_used(experiment, facts)
    problems = []
    if stats.kind != communication.cut:
        kind, expected = communication.label, expected_cut(communication.cut)
        problems.append(f"communication.kind = '{kind}': the partition's kind is {stats.kind}, {expected}")
    if facts.feature_width == 0:
        problems.append(
            f"graph '{facts.name}' has no features: set graph.stand_in_features = WIDTH for seeded random ones "
            "(results are then marked synthetic)"
        )
    if facts.classes == 0 or facts.train_vertices == 0:
        problems.append(f"graph '{facts.name}' has no labels or no training vertices, so there is nothing to train")
    validated = experiment.train.needs_validation
    if validated and facts.validation_vertices == 0:
        problems.append(
            f"{validated}: it needs the validation accuracy, and graph '{facts.name}' has no validation vertices; "
            "remove it, or give the graph a validation mask"
        )
    if problems:
        raise ConfigError(problems)


def _program(experiment: Experiment, stats: PartitionStats, model: ModelSpec, rows: str, sizes: Sizes) -> Program:
    hosts = [int(host) for host in stats.hosts]
    late = experiment.freshness.late
    builder = ProgramBuilder(experiment.name, hosts, experiment.train.dtype, experiment.schedule, late)
    layers = model.layers
    drawing, cached = _drawing(experiment, stats), _cached_rows(experiment, stats)
    resends = experiment.communication.resends_inputs() or (drawing is not None and not drawing.policy.holds_inputs)
    once = (sizes.fetches_inputs and rows == "input" and not resends) or layers[0].hoisted
    calendar = _calendar(experiment, once, stats.ranks, cached)
    train = calendar.templates
    names = Names(
        **sizes.add_to(builder, aggregated=layers[0].hoisted and layers[0].sparse_input),
        train=train,
        forward=train if drawing is not None else (*train, EVALUATE),
        setup=templates_of(train, FIRST) if once else (),
    )
    optimizer = experiment.train.update_rule
    training_state(builder, layers, names, stats, optimizer)
    segments = Segments(builder, model, names)
    fetched_in = names.forward if resends else names.setup
    transfers = ChosenTransfers(experiment.freshness, experiment.codec, builder)
    if cached is not None:
        cached.add_to(builder)
    if drawing is None:
        sums = sizes.sums(segments, transfers, rows, fetched_in)
    else:
        drawing.add_to(builder, layers[0].weighted, layers[0].attends)
        sums = DrawnSums(segments, drawing, transfers, rows, fetched_in)
    full_graph = FullGraphPlan(segments, sums)
    full_graph.inputs()
    for layer in layers:
        full_graph.forward(layer)
    emit_loss(builder, model, names)
    for layer in reversed(layers):
        full_graph.backward(layer)
    emit_update(builder, layers, names.train, stats.ranks, optimizer)
    experiment.freshness.emit_epoch_end(builder, names.train)
    experiment.codec.emit_epoch_end(builder, names.train)
    if drawing is not None:
        _emit_exact_forward(segments, sizes, rows, resends)
    emit_evaluation(builder, model, names, stats)
    return builder.build(calendar)


def _calendar(experiment: Experiment, once: bool, ranks: int, cached: CachedRows | None) -> Calendar:
    """Return the calendar of training on the full graph: the special epochs of freshness and codec, and a first epoch
    of its own if something happens ``once``, or if one of them asks for it. A rank alone exchanges nothing, and without
    a cache there is none to refresh."""
    same = experiment.freshness.caches_halo and cached is None
    policies = (*(() if same else (experiment.freshness,)), experiment.codec)
    asked = [policy.epochs for policy in policies] if ranks > 1 else []
    cycles = tuple(cycle for epochs in asked for cycle in epochs.cycles)
    return Calendar.of_epochs(cycles, once or any(epochs.first for epochs in asked))


def _draws(experiment: Experiment, stats: PartitionStats) -> bool:
    """Whether freshness draws halo rows, and any rank has some."""
    return experiment.freshness.draws_rows and len(stats.halo.source) > 0


def _drawing(experiment: Experiment, stats: PartitionStats) -> Drawing | None:
    """Return the draws of halo rows, if there are any."""
    if not _draws(experiment, stats):
        return None
    return Drawing(cast(DrawsRows, experiment.freshness), stats, experiment.seed, experiment.train.epochs)


def _cached_rows(experiment: Experiment, stats: PartitionStats) -> CachedRows | None:
    """Return which halo rows are cached where, if any are."""
    if not experiment.freshness.caches_halo:
        return None
    return HaloCaches(cast(CachesHalo, experiment.freshness), experiment.placement, stats).rows()


def _emit_exact_forward(training: Segments, sizes: Sizes, rows: str, fetches: bool) -> None:
    """Emit the forward pass of an evaluation over all edges, with all halo rows as they are. ``fetches``: input rows
    arrive in each evaluation."""
    builder, model = training.builder, training.model
    names = replace(training.names, train=(), forward=(EVALUATE,), setup=())
    segments = Segments(builder, model, names)
    sums = sizes.sums(segments, ExactTransfers(builder), rows, names.forward if fetches else ())
    exact = FullGraphPlan(segments, sums)
    exact.inputs()
    for layer in model.layers:
        exact.forward(layer)


@dataclass(frozen=True)
class ExactTransfers:
    """Transfers of all rows, as they are."""

    builder: ProgramBuilder

    def rows(self) -> Self:
        return self

    def __call__(self, sync: Sync) -> None:
        emit_plainly(self.builder, sync)

    def settle(self, templates: tuple[str, ...], reference: Reference) -> str | None:
        return None

    def blocks(self) -> ExpandBlocks:
        return lambda sync: PlainBlocks(self.builder, sync, None)


@dataclass(frozen=True)
class ChosenTransfers:
    """How the experiment's freshness and codec carry out transfers. Loading checked what freshness serves."""

    freshness: Freshness
    codec: Codec
    builder: ProgramBuilder

    def rows(self) -> Self:
        return self

    def __call__(self, sync: Sync) -> None:
        """Emit the ops of a sync, once for each form that the codec has in some of its epochs."""
        forms: dict[Codec, list[str]] = {}
        for template in sync.templates:
            forms.setdefault(self._codec_of(template), []).append(template)
        for codec, templates in forms.items():
            form = JOIN.join(self._names(templates[0])) if len(forms) > 1 else ""
            here = replace(sync, templates=tuple(templates), form=form)
            cast(MovesRows, self.freshness).expand(self.builder, here, codec)

    def _codec_of(self, template: str) -> Codec:
        return self.codec.in_epochs(self._names(template))

    def _names(self, template: str) -> tuple[str, ...]:
        """The names that the codec itself gave to the epochs of a template."""
        return tuple(name for name in self.codec.epochs.special if name in epoch_names(template))

    def settle(self, templates: tuple[str, ...], reference: Reference) -> str | None:
        return cast(MovesRows, self.freshness).settle(self.builder, templates, reference)

    def blocks(self) -> ExpandBlocks:
        return lambda sync: cast(MovesBlocks, self.freshness).blocks(self.builder, sync, self.codec)
