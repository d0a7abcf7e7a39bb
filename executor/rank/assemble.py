"""Assemble a rank's data from the run's plan: its part of the graph, model, optimizer, buffers and routes."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

import numpy as np
import torch

from executor.handlers.rows import slot_block
from executor.layers.blocks import BlockAdjacency, load_blocks
from executor.layers.halo_weights import EdgeWeights
from executor.policies.accelerated import accelerated, warm_up_policies
from executor.state.buffers import TORCH_TYPES, BufferStore, Value
from executor.state.context import GroupHandle, LocalRoute, RankContext, Vertices
from executor.state.model import LayerNetwork
from executor.state.optimizer import FlatOptimizer, learned_values
from executor.state.plan import RunPlan
from executor.state.routes import local_routes
from executor.state.task import Task, load_task
from executor.state.warmup import warm_up
from executor.store.host_turns import HostTurns
from executor.store.mapped import check_host_room, in_mappings, mapped_buffers
from executor.store.shared import shared_rows
from executor.world.member import World
from simgnn.emit.batches.names import VERTICES
from simgnn.emit.batches.on_rank import Functions, carried_out
from simgnn.emit.bit_widths.weights import HaloWeights
from simgnn.emit.drawn_rows import DrawsRows, KeepEdges
from simgnn.emit.sums.drawn import EDGES
from simgnn.errors import BackendError
from simgnn.partition.local.edge_cut import LocalGraph
from simgnn.partition.local.shards import Shard
from simgnn.partition.local.vertex_cut import RankGraph
from simgnn.policy import Array, FreshnessTraits, PolicyContext
from simgnn.program.kinds import WRITES_OWN_ROWS
from simgnn.program.program import Program
from simgnn.program.sizes import Column, IntArray


def rank_context(plan: RunPlan, world: World, groups: Mapping[str, GroupHandle]) -> Callable[[], RankContext]:
    """Open the rank's files (mapped until they are copied); return a function that makes the rank's context."""
    if plan.batches is not None:
        # mini-batches: half a hundred modules that a run on the full graph does not need
        from executor.minibatch.setup import batch_context

        return batch_context(plan, plan.batches, world, groups)
    if plan.chunks is not None:
        # Numba's kernels of chunks, which other runs do not need
        from executor.chunks.setup import chunk_context

        return chunk_context(plan, plan.chunks, world, groups)
    local, shard = plan.local(world.rank), plan.shard(world.rank)
    return lambda: _full_graph_context(plan, world, groups, local, shard)


def _full_graph_context(
    plan: RunPlan, world: World, groups: Mapping[str, GroupHandle], local: RankGraph, shard: Shard
) -> RankContext:
    program, dtype = plan.program, TORCH_TYPES[str(plan.train["dtype"])]
    trained = int(world.sum([float(shard.train_mask.sum())])[0])
    offloads = program.buffers["features"].space != "device"
    place = torch.device("cpu") if offloads else world.device
    task: Task = load_task(shard, dtype, place, trained, plan.classes, plan.multilabel, plan.layers[0].sparse_input)
    mean = None if task.feature_mean is None else task.feature_mean.to(world.device)
    network = LayerNetwork(plan.layers, local, plan.seed, dtype, world.device, mean)
    optimizer = FlatOptimizer(network.layers, plan.train)
    weights = {}
    if isinstance(local, LocalGraph):
        weights[HaloWeights] = EdgeWeights(local, plan.ranks, lambda: network.adjacency, network.scaling_of)
    control = GroupHandle(world.control, tuple(range(plan.ranks)), torch.device("cpu"))
    check_host_room(program, world.rank, control)
    task = in_mappings(program, task)
    constants: dict[str, Value] = {"features": task.features, "labels": task.labels}
    routes = local_routes(program, local, world.device)
    shared = shared_buffers(program, world.rank, control)
    turns = turns_of_host(program, world.rank, control)
    if VERTICES in program.buffers:
        constants[VERTICES] = torch.from_numpy(np.array(local.vertices, dtype=np.int64)).to(world.device)
    constants |= {**learned_values(plan.layers, optimizer), **shared}
    store = BufferStore(
        program, world.rank, world.device, constants, mapped_buffers(program, world.rank, constants.keys())
    )
    return RankContext(
        program=program,
        rank=world.rank,
        device=world.device,
        store=store,
        seed=plan.seed,
        routes=routes,
        groups=groups,
        network=network,
        task=task,
        optimizer=optimizer,
        blocks=_blocks(plan, world, dtype),
        resources={**edges_kept(network, program), **weights},
        vertices=vertices_of(plan, local),
        policies={slot: accelerated(policy) for slot, policy in plan.policies.items()},
        control=control,
        written=blocks_written(program, routes, store),
        turns=turns,
    )


def vertices_of(plan: RunPlan, local: RankGraph) -> Vertices:
    """Return the vertices of a rank's rows, for messages to users."""
    if not isinstance(local, LocalGraph):
        return Vertices(local.vertices)
    received = np.zeros(plan.ranks, dtype=np.int64)
    for owner, rows in local.receive.items():
        received[owner] = rows.stop - rows.start
    freshness, drawn = cast("FreshnessTraits | None", plan.policies.get("freshness")), None
    if freshness is not None and freshness.draws_rows:
        drawn = partial(_drawn, cast(DrawsRows, freshness), plan.seed, local.rank, received)
    return Vertices(local.vertices, local.halo, tuple(received.tolist()), drawn)


def _drawn(policy: DrawsRows, seed: int, rank: int, received: IntArray, epoch: int) -> IntArray:
    return policy.arriving(seed, epoch, rank, received).places


def shared_buffers(program: Program, rank: int, group: GroupHandle) -> dict[str, torch.Tensor]:
    """Return the program's buffers in memory that the ranks of a host share, filled with zeros. Every rank of ``group``
    calls it. Raises :class:`BackendError` on all ranks if a host has too little such memory."""
    creator = program.hosts.index(program.hosts[rank])
    found = {}
    for name, buffer in sorted(program.buffers.items()):
        if buffer.space == "host-shared":
            shape = (int(program.sizes.most(buffer.rows)[rank]), buffer.width)
            found[name] = shared_rows(shape, TORCH_TYPES[buffer.dtype], creator, lambda rows: None, group)
    return found


def turns_of_host(program: Program, rank: int, group: GroupHandle) -> dict[str, HostTurns]:
    """Return the servers that this rank shares with others of its host, by stream. Every rank of ``group`` calls it."""
    creator = program.hosts.index(program.hosts[rank])
    return {name: HostTurns(creator, group) for name, stream in sorted(program.streams.items()) if stream.in_turn}


def blocks_written(
    program: Program, routes: Mapping[str, LocalRoute], store: BufferStore
) -> Callable[[], dict[str, torch.Tensor]]:
    """Return a function of the rows of shared buffers that this rank writes, by buffer and route: a checkpoint holds
    them."""
    blocks = {
        f"{access.buffer} by {op.route}": (store.slot(access.buffer), slot_block(routes[op.route]))
        for _, op in program.ops
        if op.form in WRITES_OWN_ROWS and op.route is not None
        for access in op.writes
    }

    def now() -> dict[str, torch.Tensor]:
        return {name: cast(torch.Tensor, store.values[slot])[block] for name, (slot, block) in blocks.items()}

    return now


def edges_kept(network: LayerNetwork, program: Program) -> Functions:
    """Return the function of :class:`KeepEdges`: it selects the edges from the halo rows ``kept`` int64 [m], and checks
    that they are as many as the program states for the epoch."""

    def keep(context: PolicyContext, kept: Array) -> tuple[Array]:
        found, planned = network.kept_halo(kept), program.sizes.per_rank(Column(EDGES), context.epoch, 0)
        if found.edges.edges != planned[context.rank]:
            raise BackendError(
                f"rank {context.rank} keeps {found.edges.edges} edges from halo rows in epoch {context.epoch + 1}, the "
                f"program was planned for {planned[context.rank]}: prepare the run again"
            )
        return (found,)

    return carried_out(KeepEdges, keep)


def warm_up_for(plan: RunPlan, device: torch.device) -> None:
    """Run every kernel of the plan's model and policies once, to compile them."""
    dtype = TORCH_TYPES[str(plan.train["dtype"])]
    warm_up_policies(plan.policies.values(), dtype, device)
    if plan.batches is None:
        draws = any(op.action == KeepEdges.label for _, op in plan.program.ops)
        warm_up(plan.layers, plan.classes, plan.multilabel, plan.train, dtype, device, draws)
        return
    # mini-batches: half a hundred modules that a run on the full graph does not need
    from executor.minibatch.setup import warm_up_batches

    warm_up_batches(plan.layers, plan.classes, plan.multilabel, plan.train, dtype, device)


def _blocks(plan: RunPlan, world: World, dtype: torch.dtype) -> BlockAdjacency | None:
    """Group the rank's edges by the rank of their source, if the program sums them block by block."""
    if not any("block" in op.options for _, op in plan.program.ops):
        return None

    def local(rank: int) -> LocalGraph:
        graph = plan.local(rank)
        assert isinstance(graph, LocalGraph), "blocks of edges are those of an edge-cut"
        return graph

    return load_blocks(local, world.rank, plan.ranks, dtype=dtype, device=world.device)
