"""Data of the graph that a rank of a mini-batch run holds: input rows and labels of its host, which the host's ranks
share; labels of its training vertices; and its own vertices, which are evaluated on all of their in-edges."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from executor.state.buffers import Value
from executor.state.context import LocalRoute
from executor.state.plan import RunPlan
from executor.state.routes import local_routes, packed_routes
from executor.state.task import Task, split_rows
from executor.store.features import FeatureStore, Places
from simgnn.emit.batches.names import FEATURES, OWN_BLOCK
from simgnn.emit.batches.on_rank import Functions, TakeOwnRows, carried_out
from simgnn.partition.local.shards import ShardArtifact
from simgnn.policy import PolicyContext
from simgnn.sampling.batches.plan import SamplingPlan

LABELS = "labels"
BLOCK_ROWS = 4096


def host_rows(plan: RunPlan, host: int, dtype: str) -> NDArray[Any]:
    """Return dense input rows [n, F_0] of the vertices that a host's ranks own, ascending by id."""
    ranks = _ranks_of(plan, host)
    rows = [plan.shard(rank).features for rank in ranks]
    ascends = len(ranks) == 1 and (np.diff(plan.artifact.owned(ranks[0])) > 0).all()
    if ascends and isinstance(rows[0], np.ndarray):
        return rows[0]  # as the file is mapped: the caller copies it piece by piece
    return _gathered(plan, ranks, rows, dtype)


def host_labels(plan: RunPlan, host: int) -> NDArray[Any]:
    """Return labels of the vertices that a host's ranks own, ascending by id: int64 [n, 1], or uint8 [n, classes]."""
    ranks, shards, (width, dtype) = _ranks_of(plan, host), ShardArtifact.open(plan.shards), _label_rows(plan)
    return _gathered(plan, ranks, [np.asarray(shards.labels(rank)).reshape(-1, width) for rank in ranks], dtype)


def _ranks_of(plan: RunPlan, host: int) -> list[int]:
    return [rank for rank, other in enumerate(plan.program.hosts) if other == host]


def _label_rows(plan: RunPlan) -> tuple[int, str]:
    return (plan.classes, "uint8") if plan.multilabel else (1, "int64")


def _gathered(plan: RunPlan, ranks: list[int], parts: list[Any], dtype: str) -> NDArray[Any]:
    """Gather rows [n, width] of all vertices of some ranks, ascending by id, from the rows of each rank."""
    owned = [plan.artifact.owned(rank) for rank in ranks]
    every = np.sort(np.concatenate(owned))
    rows = np.empty((len(every), parts[0].shape[1]), dtype)
    for ids, part in zip(owned, parts, strict=True):
        _put_rows(rows, np.searchsorted(every, ids), part)
    return rows


def _put_rows(rows: NDArray[Any], places: NDArray[Any], part: Any) -> None:
    """Write the rows of ``part`` at ``places``. Sparse rows become dense block by block, to limit memory."""
    for first in range(0, len(places), BLOCK_ROWS):
        here = slice(first, first + BLOCK_ROWS)
        block = part[here]
        rows[places[here]] = block if isinstance(block, np.ndarray) else block.toarray()


def load_seed_task(plan: RunPlan, sampling: SamplingPlan, store: FeatureStore, device: torch.device) -> Task:
    """Load the task of a rank: its training vertices in order, with labels pulled from the ``store`` (which also holds
    the input rows), and its own vertices if the program evaluates them. Every rank calls it."""
    features, rank = store.table(FEATURES), store.places.rank
    width, dtype = _label_rows(plan)
    store.share(LABELS, width, dtype, lambda: host_labels(plan, store.places.host))
    mine = sampling.workers[rank]

    def labels(rows: torch.Tensor) -> torch.Tensor:
        return rows.to(device, features.dtype) if plan.multilabel else rows.view(-1).to(device, torch.int64)

    every = torch.arange(len(mine), device=device)
    task = Task(
        features=features,
        labels=labels(store.pull(LABELS, torch.from_numpy(_gids(store, plan, sampling, mine)))),
        rows=(every, every[:0], every[:0]),
        train_total=sampling.trained,
        classes=plan.classes,
        multilabel=plan.multilabel,
    )
    if not plan.program.sweep:
        return task
    shard = plan.shard(rank)
    assert shard.labels is not None
    own = torch.from_numpy(np.array(shard.labels))
    trained = sum(map(len, sampling.workers))  # also vertices whose batches are dropped
    return replace(
        task, evaluated=replace(task, labels=labels(own), rows=split_rows(shard, device), train_total=trained)
    )


def _gids(store: FeatureStore, plan: RunPlan, sampling: SamplingPlan, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the store's ids of vertices, without a table of all vertices."""
    maps, hosts = store.places.maps, np.array(plan.program.hosts)
    part = hosts[np.asarray(sampling.owner)[ids]]
    gids = np.empty(len(ids), np.int64)
    for host in np.unique(part):
        theirs = part == host
        gids[theirs] = maps.node_map[host] + np.searchsorted(maps.core(host), ids[theirs])
    return gids


@dataclass(frozen=True)
class Evaluation:
    """Data for evaluations: constant tensors by buffer name, functions by policy action, all routes of the program."""

    routes: Mapping[str, LocalRoute]
    constants: Mapping[str, Value] = field(default_factory=dict)
    functions: Functions = field(default_factory=dict)


def load_evaluation(plan: RunPlan, places: Places, device: torch.device) -> Evaluation:
    """Load the part of the graph that evaluations need, if the program has any. Raises
    :class:`~simgnn.errors.BackendError` if the partition is not the program's."""
    program, rank = plan.program, places.rank
    if not program.sweep:
        return Evaluation(packed_routes(program, rank))
    local = plan.local(rank)
    rows = torch.from_numpy(np.searchsorted(places.maps.core(places.host), local.vertices))
    # edges as layers take a sampled block: (indptr int64 [n + 1], sources [edges])
    block = np.array(local.csr.indptr, dtype=np.int64), np.array(local.csr.indices)
    return Evaluation(
        routes=local_routes(program, local, device),
        constants={OWN_BLOCK: tuple(torch.from_numpy(part).to(device) for part in block)},
        functions=own_rows(rows, device),
    )


def own_rows(rows: torch.Tensor, device: torch.device) -> Functions:
    """Return the function that copies input rows of own vertices to ``device``; ``rows`` int64 [n] index the host's."""

    def take(context: PolicyContext, features: torch.Tensor) -> tuple[torch.Tensor]:
        return (features.index_select(0, rows).to(device),)

    return carried_out(TakeOwnRows, take)
