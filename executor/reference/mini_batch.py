"""The single-process reference of mini-batch training: in each step the union of all ranks' batches, with DGL's layers.

It shares sampled blocks and what dropout drops with the executor, and no arithmetic: see
:mod:`executor.reference.full_graph`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from executor.reference.full_graph import (
    dense_rows,
    finished,
    load_values,
    read_values,
    reference_module,
    reference_optimizer,
)
from simgnn.errors import BackendError
from simgnn.graph.graph import Graph
from simgnn.model.spec import LayerSpec
from simgnn.sampling.batches.plan import SamplingPlan
from simgnn.sampling.draw.sampler import Batch, Sampler
from simgnn.sampling.draw.seeds import dropout_seed


@dataclass(frozen=True)
class BatchReference:
    """``losses`` of each epoch: the mean over training rows, each counted in its own step, before that step's update.
    ``parameters`` after the last step, by layer and name as the executor's layers name them. ``scores`` [V, classes]
    after each epoch, over all in-edges. ``embeddings`` [V, D] after the last step, None where none are learned."""

    losses: list[float]
    parameters: list[dict[str, torch.Tensor]]
    scores: list[torch.Tensor]
    embeddings: torch.Tensor | None = None


@dataclass
class LearnedRows:
    """A table of all vertices' vectors [V, D] and Adagrad over the whole of it, whatever was in a batch; with ``delay``
    1 a gradient changes them one step late (docs/systems/distdgl.md)."""

    vectors: torch.Tensor
    delay: int
    rate: float

    def __post_init__(self) -> None:
        self.vectors = self.vectors.clone().requires_grad_()
        self._squares, self._late = torch.zeros_like(self.vectors), torch.zeros_like(self.vectors)

    def step(self) -> None:
        """One update from the gradient of the mean loss, which is then cleared."""
        assert self.vectors.grad is not None
        gradient, self.vectors.grad = self.vectors.grad, None
        if self.delay:
            gradient, self._late = self._late, gradient
        with torch.no_grad():
            self._squares += gradient**2
            self.vectors -= self.rate * gradient / (self._squares.sqrt() + 1e-10)


def train_batch_reference(
    graph: Graph,
    layers: Sequence[LayerSpec],
    initial: Sequence[Mapping[str, torch.Tensor]],
    plan: SamplingPlan,
    epochs: int,
    settings: Mapping[str, Any],
    dtype: torch.dtype = torch.float64,
    learned: LearnedRows | None = None,
) -> BatchReference:
    """Train from ``initial`` parameters; a step's loss is the mean over the seeds of all workers' batches, or with
    ``gradient_mean`` = "ranks" the mean of the batches' means.

    ``settings`` are the fields of ``[train]``; ``learned``: vectors beside the features. Raises :class:`BackendError`
    without DGL, or for a layer that has no reference.
    """
    modules = [reference_module(layer, "right").to(dtype) for layer in layers]
    names = load_values(modules, layers, initial)
    features, labels = dense_rows(graph.features).to(dtype), torch.from_numpy(np.array(graph.labels))
    optimizer = reference_optimizer([p for module in modules for p in module.parameters()], settings)
    sampler, trained = Sampler(plan.csr, plan.fanouts), plan.trained
    every = Sampler(plan.csr, [-1] * len(layers)).sample(np.arange(plan.csr.rows), 0)
    losses, scores = [], []
    by_rank = settings.get("gradient_mean") == "ranks"
    for epoch in range(epochs):
        total = 0.0
        turns = [plan.epoch(worker, epoch) for worker in range(plan.ranks)]
        for step in range(plan.steps):
            optimizer.zero_grad()
            rows = features if learned is None else torch.cat((features, learned.vectors), 1)
            running = [turn for turn in turns if step < len(turn)]
            batches = [turn.sample(step, sampler) for turn in running]
            drawn = [dropout_seed(plan.seed, epoch, (turn.worker, step)) for turn in running]
            each = zip(batches, drawn, strict=True)
            found = torch.cat([_forward(modules, layers, batch, seed, rows) for batch, seed in each])
            seeds = torch.cat([torch.from_numpy(np.array(batch.seeds, dtype=np.int64)) for batch in batches])
            loss = _loss_sum(found, labels[seeds], graph)
            mean = _mean_of_ranks(found, batches, labels, graph) if by_rank else loss / len(seeds)
            mean.backward()
            optimizer.step()
            if learned is not None:
                learned.step()
            total += float(loss.detach())
        losses.append(total / trained)
        with torch.no_grad():
            rows = features if learned is None else torch.cat((features, learned.vectors), 1)
            scores.append(_forward(modules, layers, every, None, rows))
    parameters = [read_values(m, n, False) for m, n in zip(modules, names, strict=True)]
    return BatchReference(losses, parameters, scores, None if learned is None else learned.vectors.detach())


def _mean_of_ranks(scores: torch.Tensor, batches: Sequence[Batch], labels: torch.Tensor, graph: Graph) -> torch.Tensor:
    """Of the mean losses of the ranks that have a batch; ``scores`` of all their seeds, one after the other."""
    parts = torch.split(scores, [int(batch.sizes[0]) for batch in batches])
    seeds = [torch.from_numpy(np.array(batch.seeds, dtype=np.int64)) for batch in batches]
    means = [_loss_sum(part, labels[mine], graph) / len(mine) for part, mine in zip(parts, seeds, strict=True)]
    return torch.stack(means).mean()


def _loss_sum(scores: torch.Tensor, labels: torch.Tensor, graph: Graph) -> torch.Tensor:
    """Of a multi-label graph the mean over classes of each row."""
    if graph.multilabel:
        total = functional.binary_cross_entropy_with_logits(scores, labels.to(scores.dtype), reduction="sum")
        return total / graph.classes
    return functional.cross_entropy(scores, labels, reduction="sum")


def _forward(
    modules: Sequence[torch.nn.Module],
    layers: Sequence[LayerSpec],
    batch: Batch,
    drawn: int | None,
    features: torch.Tensor,
) -> torch.Tensor:
    vertices = torch.from_numpy(np.array(batch.vertices, dtype=np.int64))
    rows = features[vertices]
    for module, layer, hop in zip(modules, layers, range(len(layers), 0, -1), strict=True):
        rows = module(_dgl_block(batch, hop, looped=layer.kind in ("gcn", "gat")), rows)
        if layer.kind == "gat":
            rows = rows.flatten(1)  # heads side by side
        rows = finished(layer, rows, vertices[: len(rows)], drawn)
    return rows


def _dgl_block(batch: Batch, hop: int, looped: bool) -> Any:
    """A hop's edges as DGL's block, whose first sources are its destinations; ``looped``: with an edge of each to
    itself."""
    try:
        # DGL: optional, and slow to load
        import dgl
    except ImportError as error:
        raise BackendError(
            f"the reference needs DGL, which cannot be imported ({error}); it has no wheel for Python 3.12 and later"
        ) from error
    block = batch.blocks[hop - 1]
    count = len(block.indptr) - 1
    targets, sources = np.repeat(np.arange(count), np.diff(block.indptr)), block.sources.astype(np.int64)
    if looped:
        targets, sources = (np.concatenate((ends, np.arange(count))) for ends in (targets, sources))
    edges = torch.from_numpy(sources), torch.from_numpy(targets)
    return dgl.create_block(edges, num_src_nodes=int(batch.sizes[hop]), num_dst_nodes=count)
