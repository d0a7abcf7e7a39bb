"""What a rank of a mini-batch run holds of the graph: input rows and labels of its host, which all ranks share, and the
labels of the vertices that it learns and evaluates."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from executor.state.plan import RunPlan
from executor.state.task import Task
from executor.store.features import FeatureStore
from simgnn.emit.batches.names import FEATURES
from simgnn.partition.local.shards import Shard, ShardArtifact
from simgnn.program.program import EVALUATE
from simgnn.sampling.batches.plan import SamplingPlan

LABELS = "labels"
BLOCK_ROWS = 4096


def host_rows(plan: RunPlan, host: int, dtype: str) -> NDArray[Any]:
    """Dense input rows [n, F_0] of the vertices that a host's ranks own, ascending by id."""
    ranks = _ranks_of(plan, host)
    shards = [plan.shard(rank) for rank in ranks]
    if len(ranks) == 1 and _ascends(plan.artifact.owned(ranks[0])) and isinstance(shards[0].features, np.ndarray):
        return shards[0].features  # as it lies on disk: it is copied piece by piece

    def put(rows: NDArray[Any], places: NDArray[Any], position: int) -> None:
        _put_rows(rows, places, shards[position])

    return _gathered(plan, ranks, shards[0].features.shape[1], dtype, put)


def host_labels(plan: RunPlan, host: int) -> NDArray[Any]:
    """Labels of the vertices that a host's ranks own, ascending by id: int64 [n, 1], or uint8 [n, classes]."""
    ranks, shards = _ranks_of(plan, host), ShardArtifact.open(plan.shards)

    def put(rows: NDArray[Any], places: NDArray[Any], position: int) -> None:
        rows[places] = np.asarray(shards.labels(ranks[position])).reshape(-1, rows.shape[1])

    return _gathered(plan, ranks, *_label_rows(plan), put)


def _ranks_of(plan: RunPlan, host: int) -> list[int]:
    return [rank for rank, other in enumerate(plan.program.hosts) if other == host]


def _label_rows(plan: RunPlan) -> tuple[int, str]:
    """Width and type of the labels of a vertex."""
    return (plan.classes, "uint8") if plan.multilabel else (1, "int64")


def _gathered(
    plan: RunPlan,
    ranks: list[int],
    width: int,
    dtype: str,
    put: Callable[[NDArray[Any], NDArray[Any], int], None],
) -> NDArray[Any]:
    """Rows [n, width] of all vertices of some ranks, ascending by id; ``put`` writes those of one at their places."""
    owned = [plan.artifact.owned(rank) for rank in ranks]
    every = np.sort(np.concatenate(owned))
    rows = np.empty((len(every), width), dtype)
    for position, ids in enumerate(owned):
        put(rows, np.searchsorted(every, ids), position)
    return rows


def _put_rows(rows: NDArray[Any], places: NDArray[Any], shard: Shard) -> None:
    """Sparse rows become dense a block at a time: all at once would be there twice."""
    for first in range(0, len(places), BLOCK_ROWS):
        part = slice(first, first + BLOCK_ROWS)
        block: Any = shard.features[part]
        rows[places[part]] = block if isinstance(block, np.ndarray) else block.toarray()


def _ascends(ids: NDArray[Any]) -> bool:
    return bool((np.diff(ids) > 0).all())


def load_seed_task(plan: RunPlan, sampling: SamplingPlan, store: FeatureStore, device: torch.device) -> Task:
    """A rank's training vertices, in their order, whose labels are pulled from the ``store``, which holds the input
    rows; and its own vertices, where the program evaluates them. Every rank calls it."""
    features, rank = store.table(FEATURES), store.places.rank
    width, dtype = _label_rows(plan)
    store.share(LABELS, width, dtype, lambda: host_labels(plan, store.places.host))
    mine = sampling.workers[rank]
    pulled = store.pull(LABELS, torch.from_numpy(_gids(store, plan, sampling, mine)))
    every = torch.arange(len(mine), device=device)
    task = Task(
        features=features,
        labels=_labels(plan, pulled, features.dtype, device),
        rows=(every, every[:0], every[:0]),
        train_total=sampling.trained,
        classes=plan.classes,
        multilabel=plan.multilabel,
    )
    if EVALUATE not in plan.program.templates:
        return task
    shard = plan.shard(rank)
    assert shard.labels is not None
    masks = (shard.train_mask, shard.validation_mask, shard.test_mask)
    split = [torch.from_numpy(np.flatnonzero(mask)).to(device) for mask in masks]
    own = torch.from_numpy(np.array(shard.labels))
    labels = _labels(plan, own, features.dtype, device)
    every_one = sum(map(len, sampling.workers))  # also those whose batches are dropped
    own_task = replace(task, labels=labels, rows=(split[0], split[1], split[2]), train_total=every_one)
    return replace(task, evaluated=own_task)


def _labels(plan: RunPlan, rows: torch.Tensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """As a task takes them: int64 [n], or [n, classes] in the type of rows."""
    return rows.to(device, dtype) if plan.multilabel else rows.view(-1).to(device, torch.int64)


def _gids(store: FeatureStore, plan: RunPlan, sampling: SamplingPlan, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where vertices lie in the store; no table of all of them is made."""
    maps, hosts = store.places.maps, np.array(plan.program.hosts)
    part = hosts[np.asarray(sampling.owner)[ids]]
    gids = np.empty(len(ids), np.int64)
    for host in np.unique(part):
        theirs = part == host
        gids[theirs] = maps.node_map[host] + np.searchsorted(maps.core(host), ids[theirs])
    return gids
