"""Makes the context of a rank that trains chunk by chunk: rows of its vertices in the order of chunks, lists, edges."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from executor.chunks.adjacency import ChunkEdges, GatheredAdjacency, SlotAdjacency
from executor.chunks.network import ChunkNetwork
from executor.layers.builtin import Layer
from executor.layers.user import check_recomputed
from executor.policies.accelerated import accelerated
from executor.state.buffers import TORCH_TYPES, BufferStore, Value
from executor.state.context import GroupHandle, RankContext, Vertices
from executor.state.optimizer import FlatOptimizer, learned_values
from executor.state.plan import RunPlan
from executor.state.task import load_task
from executor.store.mapped import check_host_room, in_mappings, mapped_buffers
from executor.store.shared import mapped_copy
from executor.world.member import World
from simgnn.emit.batches.names import VERTICES
from simgnn.emit.batches.on_rank import Functions, carried_out
from simgnn.emit.chunks.names import BATCH, LISTS, listed
from simgnn.emit.chunks.policies import ChunkCommunication, TakeEdges
from simgnn.errors import BackendError
from simgnn.partition.chunks.rank_chunks import RankChunks
from simgnn.partition.chunks.row_lists import other_rows, own_places, row_lists
from simgnn.partition.chunks.store import ChunkArtifact
from simgnn.partition.local.edge_cut import LocalGraph
from simgnn.partition.local.shards import Shard
from simgnn.policy import Array, PolicyContext
from simgnn.program.program import Program


def chunk_context(
    plan: RunPlan, folder: Path, world: World, groups: Mapping[str, GroupHandle]
) -> Callable[[], RankContext]:
    """Open the rank's files; return a function that makes the rank's context."""
    local, shard = plan.local(world.rank), plan.shard(world.rank)
    artifact = ChunkArtifact.open(folder)
    chunks = [artifact.rank(rank) for rank in range(plan.ranks)]
    assert isinstance(local, LocalGraph), "chunks divide an edge-cut"
    return lambda: _context(plan, world, groups, local, shard, chunks)


def _context(
    plan: RunPlan, world: World, groups: Mapping[str, GroupHandle], local: LocalGraph, shard: Shard,
    chunks: Sequence[RankChunks],
) -> RankContext:  # fmt: skip
    program, dtype, rank = plan.program, TORCH_TYPES[str(plan.train["dtype"])], world.rank
    mine = chunks[rank]
    ordered = _in_order(shard, _places(local.vertices, mine.vertices))
    trained = int(world.sum([float(ordered.train_mask.sum())])[0])
    control = GroupHandle(world.control, tuple(range(plan.ranks)), torch.device("cpu"))
    check_host_room(program, rank, control)
    task = load_task(ordered, dtype, torch.device("cpu"), trained, plan.classes, plan.multilabel, sparse_input=False)
    task = in_mappings(program, task)
    network = ChunkNetwork(plan.layers, plan.seed, dtype, world.device)
    check_recomputed(network.layers)
    optimizer = FlatOptimizer(network.layers, plan.train)
    constants: dict[str, Value] = {"features": task.features, "labels": task.labels}
    constants |= _lists(program, chunks, rank, _reuses(plan), world.device)
    if VERTICES in program.buffers:
        constants[VERTICES] = torch.from_numpy(np.array(mine.vertices, dtype=np.int64)).to(world.device)
    constants |= learned_values(plan.layers, optimizer)
    edges = _adjacencies(plan, network.layers[0], local, chunks, rank, world.device)
    return RankContext(
        program=program,
        rank=rank,
        device=world.device,
        store=BufferStore(program, rank, world.device, constants, mapped_buffers(program, rank, constants.keys())),
        seed=plan.seed,
        groups=groups,
        network=network,
        task=task,
        optimizer=optimizer,
        resources=edges_taken(edges, program.sizes.columns[BATCH.name][rank].tolist()),
        vertices=Vertices(mine.vertices),
        policies={slot: accelerated(policy) for slot, policy in plan.policies.items()},
        control=control,
    )


def _reuses(plan: RunPlan) -> bool:
    return cast(ChunkCommunication, plan.policies["communication"]).reuses


def _places(held: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the place of each wanted id among ids that are held, in any order."""
    order = np.argsort(held, kind="stable")
    places = order[np.searchsorted(held, wanted, sorter=order).clip(max=len(held) - 1)]
    if not np.array_equal(held[places], wanted):
        raise BackendError("chunks and partition have different vertices: prepare the run again")
    return np.asarray(places, dtype=np.int64)


def _in_order(shard: Shard, places: NDArray[np.int64]) -> Shard:
    """Return a shard with its rows in the order of chunks."""
    features: Any = shard.features
    assert shard.labels is not None
    return replace(
        shard,
        features=features[places],
        labels=shard.labels[places],
        train_mask=shard.train_mask[places],
        validation_mask=shard.validation_mask[places],
        test_mask=shard.test_mask[places],
    )


def _lists(
    program: Program, chunks: Sequence[RankChunks], rank: int, reuses: bool, device: torch.device
) -> dict[str, Value]:
    """Return the lists of rows as the buffers of the program hold them, int64 [rows, 1]."""
    found: dict[str, Value] = {}
    for name, rows in row_lists(chunks, rank, reuses).items():
        if listed(name) not in program.buffers:
            continue
        planned = int(program.sizes.per_rank(program.buffers[listed(name)].rows, 0, 0)[rank])
        if len(rows) != planned:
            raise BackendError(
                f"rank {rank}: the list '{name}' of its chunks has {len(rows)} rows, the program {planned}: they "
                "belong to different chunks; prepare the run again"
            )
        listing = torch.from_numpy(rows[:, None])
        found[listed(name)] = listing.to(device) if LISTS[name] == "device" else mapped_copy(listing)
    return found


def _adjacencies(
    plan: RunPlan, layer: torch.nn.Module, local: LocalGraph, chunks: Sequence[RankChunks], rank: int,
    device: torch.device,
) -> list[SlotAdjacency | GatheredAdjacency]:  # fmt: skip
    """Return the edges of each chunk of a rank, as the layers read them, which are all of the kind of ``layer``."""
    vertex_of = np.concatenate([one.vertices for one in chunks])
    first, dtype = sum(len(one.vertices) for one in chunks[:rank]), TORCH_TYPES[str(plan.train["dtype"])]
    held = np.concatenate((local.vertices, local.halo))
    found: list[SlotAdjacency | GatheredAdjacency] = []
    for batch in chunks[rank].batches():
        gids, others = other_rows(batch, first)
        needed = np.concatenate((first + np.arange(batch.rows.start, batch.rows.stop), gids))
        at = _places(held, vertex_of[needed])
        weighted = None if local.weighted_degree is None else local.weighted_degree[at]
        own = batch.slots[batch.own][own_places(batch, first)]
        edges = ChunkEdges(batch.csr, own, others, local.degree[at], weighted)
        if isinstance(layer, Layer) and not layer.spec.attends:
            found.append(SlotAdjacency(edges, layer.scaling, dtype, device))
        else:
            found.append(GatheredAdjacency(edges, isinstance(layer, Layer), dtype, device))
    return found


def edges_taken(edges: Sequence[SlotAdjacency | GatheredAdjacency], batches: Sequence[int]) -> Functions:
    """Return the function of :class:`TakeEdges`: the edges of a step's chunk. ``batches``: the chunk of each step."""

    def take(context: PolicyContext, topology: Array) -> tuple[Array]:
        return (edges[batches[context.step]],)

    return carried_out(TakeEdges, take)
