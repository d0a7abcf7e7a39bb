"""Set up a rank of a mini-batch run: batches, sources of their rows, the model over sampled blocks, and the warm-up."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from executor.handlers.segments import run_on_tape
from executor.kernels.rows import move_rows
from executor.minibatch.batches import BatchSource, DrawnBatches, PartedBatches, PresampledBatches, SampledBatches
from executor.minibatch.data import host_rows, load_evaluation, load_seed_task
from executor.minibatch.embeddings import learned_width, load_embeddings, rows_with_embeddings
from executor.minibatch.input_rows import FoundOrigins, ScheduledRows, StagedRows, Staging
from executor.policies.accelerated import accelerated
from executor.state.buffers import TORCH_TYPES, BufferStore, Value
from executor.state.context import GroupHandle, RankContext
from executor.state.model import SampledNetwork
from executor.state.optimizer import FlatOptimizer, learned_values
from executor.state.plan import RunPlan
from executor.state.task import Task
from executor.state.warmup import ring, warm_up_torch
from executor.store.features import FeatureStore, Places
from executor.store.shared import shared_arrays
from executor.world.member import World
from simgnn.emit.batches.drawing import DEGREES
from simgnn.emit.batches.names import FEATURES, HOT, INPUTS, OWN_LABELS, SEED_COUNT, SERVED_ROWS, rows_after
from simgnn.emit.batches.neighbours import Batching
from simgnn.model.spec import LayerSpec
from simgnn.partition.local.contiguous_ids import IdMaps
from simgnn.partition.local.serving import Serving
from simgnn.policies.placement.store import KeepHotRows
from simgnn.program.kinds import OpKind, Segment
from simgnn.record.plan import BatchesTable
from simgnn.sampling.batches.plan import SamplingPlan, open_plan
from simgnn.sampling.draw.parted import HostStructure, Requester
from simgnn.sampling.draw.sampler import Sampler
from simgnn.sampling.draw.seeds import epoch_order
from simgnn.sampling.fetches.fetch_plan import FetchPlan
from simgnn.sampling.fetches.remote_rows import Sources, rows_on_hosts

RING = 6
"""Number of vertices of the warm-up graph."""


def batch_context(
    plan: RunPlan, folders: BatchesTable, world: World, groups: Mapping[str, GroupHandle]
) -> Callable[[], RankContext]:
    """Open and check the rank's batches and row lists; return a function that makes the rank's context."""
    sampling = open_plan(Path(folders.plan))
    # None: hosts draw batches together
    source = None if DEGREES in plan.program.buffers else _batch_source(plan, folders, sampling, world.rank)
    fetches = None if folders.fetches is None else FetchPlan.open(Path(folders.fetches), plan.epochs)
    return lambda: _context(plan, sampling, source, fetches, world, groups)


def _batch_source(plan: RunPlan, folders: BatchesTable, sampling: SamplingPlan, rank: int) -> BatchSource:
    batching = cast(Batching, plan.policies["batching"])
    if batching.known_ahead:
        return PresampledBatches(Path(folders.folder), sampling, plan.artifact.digest, rank, plan.epochs)
    drawing = {op.stream for _, op in plan.program.ops if op.kind is OpKind.SAMPLE}
    return SampledBatches(sampling, rank, sum(plan.program.streams[name].servers for name in drawing))


def _context(
    plan: RunPlan,
    sampling: SamplingPlan,
    source: BatchSource | None,
    fetches: FetchPlan | None,
    world: World,
    groups: Mapping[str, GroupHandle],
) -> RankContext:
    program, rank, device = plan.program, world.rank, world.device
    dtype = TORCH_TYPES[str(plan.train["dtype"])]
    store = _feature_store(plan, sampling, world)
    task = load_seed_task(plan, sampling, store, device)
    network = SampledNetwork(plan.layers, plan.seed, dtype, device)
    optimizer = FlatOptimizer(network.layers, plan.train, counted=True)
    assert optimizer.count is not None
    constants: dict[str, Value] = {FEATURES: task.features, SEED_COUNT: optimizer.count}
    if not sampling.negatives:
        constants["labels"] = task.labels
    sizes = np.stack([program.sizes.columns[rows_after(hop).name][rank] for hop in range(len(sampling.fanouts) + 1)])
    drawn: DrawnBatches | PartedBatches
    if source is None:
        serving, host = store.places.serving, store.places.host

        def make() -> Mapping[str, NDArray[Any]]:
            return HostStructure.of(sampling.csr, sampling.owner, serving, host).arrays()

        # the in-edges of the vertices of this rank's host, in memory that the host's ranks share
        structure = HostStructure.from_arrays(host, shared_arrays(make, serving.writer(host), store.group))
        store.share(DEGREES, 1, "int32", structure.degrees)
        constants[DEGREES] = store.table(DEGREES)
        drawn = PartedBatches(structure, store.places.serving, rank, sampling, sizes)
    else:
        drawn = DrawnBatches(source, sampling.workers[rank], sizes)
    evaluation = load_evaluation(plan, store.places, device, sampling)
    constants |= evaluation.constants
    if task.evaluated is not None:
        constants[OWN_LABELS] = task.evaluated.labels
    buffers = BufferStore(program, rank, device, {**constants, **learned_values(plan.layers, optimizer)})
    served = program.buffers.get(SERVED_ROWS)
    leaving = buffers.room(SERVED_ROWS) if served is not None and served.lasting else None
    staged = _staged_rows(plan, sampling, fetches, world, leaving)
    learning, written = load_embeddings(plan, sampling, store)
    for copy, cache in enumerate(staged.caches):
        buffers.values[buffers.slot(HOT) + copy] = cache  # a checkpoint is read into it: no third cache
    context = RankContext(
        program=program,
        rank=rank,
        device=device,
        store=buffers,
        seed=plan.seed,
        routes=evaluation.routes,
        groups=groups,
        network=network,
        task=task,
        optimizer=optimizer,
        policies={slot: accelerated(policy) for slot, policy in plan.policies.items()},
        written=lambda: written,
        resources={**drawn.functions(), **staged.functions(), **learning, **evaluation.functions},
    )
    staged.note_rows = lambda *counted: context.note_rows(*counted)  # the context's recorder comes later
    return context


def _feature_store(plan: RunPlan, sampling: SamplingPlan, world: World) -> FeatureStore:
    """Make a store with this host's input rows (features, then embeddings), in memory that the host's ranks share."""
    serving = Serving(plan.program.hosts)
    maps = IdMaps.of(np.array(serving.hosts, np.int32)[np.asarray(sampling.owner)], serving.parts)
    group = GroupHandle(world.control, tuple(range(plan.ranks)), torch.device("cpu"))
    store, features = FeatureStore(Places(world.rank, maps, serving), group), plan.program.buffers[FEATURES]
    host, width = store.places.host, learned_width(plan.program)

    def load() -> NDArray[Any]:
        rows = host_rows(plan, host, features.dtype)
        return rows_with_embeddings(rows, maps.core(host), width, plan.seed) if width else rows

    store.share(FEATURES, features.width, features.dtype, load)
    return store


def _staged_rows(
    plan: RunPlan, sampling: SamplingPlan, fetches: FetchPlan | None, world: World, leaving: torch.Tensor | None
) -> StagedRows:
    program, rank, hosts = plan.program, world.rank, np.array(plan.program.hosts, np.int64)
    inputs, hot = program.buffers[INPUTS], program.buffers.get(HOT)
    staging = Staging(
        steps=program.calendar.steps,
        window=inputs.depth,
        largest=int(program.sizes.most(inputs.rows)[rank]),
        hot_rows=0 if hot is None else int(program.sizes.most(hot.rows)[rank]),
        width=inputs.width,
        dtype=TORCH_TYPES[str(plan.train["dtype"])],
        device=world.device,
        caches=0 if hot is None else hot.depth,
        leaving=leaving,
    )
    if fetches is not None:
        keeps = any(op.action == KeepHotRows.label for _, op in program.ops)
        return ScheduledRows(fetches, rank, staging, keeps)
    sources = Sources.of_worker(sampling.owner, hosts, rank)
    origins = FoundOrigins(sources, rows_on_hosts(np.asarray(sampling.owner), hosts), not sampling.negatives)
    return StagedRows(origins, staging)


def warm_up_batches(
    layers: Sequence[LayerSpec],
    classes: int,
    multilabel: bool,
    settings: Mapping[str, Any],
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Train one step on a batch of a ring of six vertices, to compile all kernels."""
    warm_up_torch(layers, dtype, device)
    graph, seeds = ring(RING), np.array([0, 3])
    seeds.setflags(write=False)  # as those of a run are, which is mapped
    epoch_order(seeds, 0, 0, 0)
    batch = Sampler(graph, [1] * len(layers)).sample(seeds, 0)
    structure = HostStructure.of(graph, np.zeros(RING, np.int32), Serving((0,)), 0)
    requester = Requester(structure, np.zeros(1, np.int64), 1, (1,))
    requester.begin(np.array([0, 3]), 0)
    asked, none = requester.ask(), np.zeros(0, np.int64)
    requester.stitch(asked, requester.draw(asked), none.astype(np.int32), none)
    network = SampledNetwork(layers, 0, dtype, device)
    optimizer = FlatOptimizer(network.layers, settings, counted=True)
    assert optimizer.count is not None
    table = torch.zeros((RING, layers[0].width_in), dtype=dtype)
    rows = torch.zeros((len(batch.vertices), layers[0].width_in), dtype=dtype, device=device)
    move_rows(table, np.asarray(batch.vertices), rows, np.arange(len(rows)))
    move_rows(table, None, rows, np.arange(len(rows)))
    with torch.no_grad():
        for layer, block in zip(layers, reversed(batch.blocks), strict=True):
            value = tuple(torch.from_numpy(part).to(device) for part in (block.indptr, block.sources))
            rows = _warm_up_layer(network, layer, value, rows)
    every = torch.arange(len(rows), device=device)
    labels = torch.zeros((len(rows), classes) if multilabel else len(rows), dtype=dtype if multilabel else torch.int64)
    task = Task(table, labels.to(device), (every, every[:0], every[:0]), len(rows), classes, multilabel)
    task.batch_loss(rows, every)
    optimizer.count.fill_(len(rows))
    optimizer.step()


def _warm_up_layer(
    network: SampledNetwork, layer: LayerSpec, block: tuple[torch.Tensor, ...], rows: torch.Tensor
) -> torch.Tensor:
    def run(segment: Segment, *read: Any) -> torch.Tensor:
        function = network.segment(layer.index, segment)
        wanted = [isinstance(value, torch.Tensor) for value in read]
        (output,), tape = run_on_tape(function, list(read), wanted)
        tape.backward([torch.zeros_like(output)])
        return output

    prepared = run(Segment.PREPARE, rows) if layer.has_prepare else rows
    maxima = [network.segment(layer.index, Segment.MAXIMUM)(block, prepared)] if layer.attends else []
    summed = run(Segment.AGGREGATE, block, prepared, *maxima)
    return run(Segment.UPDATE, summed, *([rows] if layer.uses_own_rows else []))
