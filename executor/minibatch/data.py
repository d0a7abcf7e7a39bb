"""What a rank of a mini-batch run holds of the graph: the rows of its host, shared by its ranks, and the labels of its
own training vertices."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from executor.plan import RunPlan
from executor.task import Task
from simgnn.partition.shards import Shard, ShardArtifact
from simgnn.sampling.plan import SamplingPlan


def host_rows(plan: RunPlan, host: int, dtype: str) -> NDArray[Any]:
    """Dense input rows [n, F_0] of the vertices that a host's ranks own, ascending by id."""
    ranks = [rank for rank, other in enumerate(plan.program.hosts) if other == host]
    owned = [plan.artifact.owned(rank) for rank in ranks]
    shards = [plan.shard(rank) for rank in ranks]
    if len(ranks) == 1 and _ascends(owned[0]) and not sparse.issparse(shards[0].features):
        return np.asarray(shards[0].features)  # as it lies on disk: it is copied piece by piece
    every = np.sort(np.concatenate(owned))
    rows = np.empty((len(every), shards[0].features.shape[1]), dtype)
    for ids, shard in zip(owned, shards, strict=True):
        _put_rows(rows, np.searchsorted(every, ids), shard)
    return rows


BLOCK_ROWS = 4096


def _put_rows(rows: NDArray[Any], places: NDArray[Any], shard: Shard) -> None:
    """Sparse rows become dense a block at a time: all at once would be there twice."""
    for first in range(0, len(places), BLOCK_ROWS):
        part = slice(first, first + BLOCK_ROWS)
        block = shard.features[part]
        rows[places[part]] = block.toarray() if sparse.issparse(block) else block


def _ascends(ids: NDArray[Any]) -> bool:
    return bool((np.diff(ids) > 0).all())


def load_seed_task(
    plan: RunPlan, sampling: SamplingPlan, rank: int, features: torch.Tensor, device: torch.device
) -> Task:
    """Labels of the training vertices of ``rank``, in their order; ``features``: the rows of its host."""
    mine = sampling.workers[rank]
    owners = np.asarray(sampling.owner)[mine]
    shards = ShardArtifact.open(plan.shards)
    labels: NDArray[Any] | None = None
    for owner in np.unique(owners):
        theirs = np.flatnonzero(owners == owner)
        ids, held = plan.artifact.owned(int(owner)), shards.labels(int(owner))
        order = np.argsort(ids)
        found = np.asarray(held)[order[np.searchsorted(ids, mine[theirs], sorter=order)]]
        if labels is None:
            labels = np.empty((len(mine), *held.shape[1:]), held.dtype)
        labels[theirs] = found
    if labels is None:  # a rank without training vertices
        labels = np.zeros((0, plan.classes) if plan.multilabel else 0, np.int64)
    every = torch.arange(len(mine), device=device)
    none = every[:0]
    return Task(
        features=features,
        labels=torch.from_numpy(labels).to(device, features.dtype if plan.multilabel else torch.int64),
        rows=(every, none, none),
        train_total=sampling.trained,
        classes=plan.classes,
        multilabel=plan.multilabel,
    )
