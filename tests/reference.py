"""Single-process references to check distributed training against: the same model on the whole graph, or on the union
of all ranks' mini-batches, made of DGL's layers and torch's own losses.

They share no arithmetic with the executor: DGL's message passing, ``torch.nn.functional`` losses, one tensor per
parameter in the optimizer. Only sampled blocks and dropout masks are the same. They need DGL (Python below 3.12), and
serve tests and checks of a run on a graph that fits in memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch.nn import functional

from executor.kernels.dropout import factors
from simgnn.errors import BackendError
from simgnn.graph.graph import CentredRows, Graph
from simgnn.model.spec import LayerSpec
from simgnn.sampling.batches.plan import SamplingPlan
from simgnn.sampling.draw.sampler import Batch, Sampler
from simgnn.sampling.draw.seeds import dropout_seed, layer_key

TURNED = ("fc_self.weight", "fc_neigh.weight", "fc.weight")
"""Parameters that DGL stores as [out, in] and the executor as [in, out]."""
LOOPED = ("gcn", "gat")
"""Kinds of layers that read each vertex itself through a self loop."""


@dataclass(frozen=True)
class Reference:
    """Results of :func:`train_reference`: ``losses`` of each epoch, before its update; ``gradients`` of the last epoch,
    by layer and the executor's parameter name; ``parameters`` and ``scores`` [V, classes] after the last update."""

    losses: list[float]
    gradients: list[dict[str, torch.Tensor]]
    parameters: list[dict[str, torch.Tensor]]
    scores: torch.Tensor


@dataclass(frozen=True)
class BatchReference:
    """Results of :func:`train_batch_reference`: ``losses`` of each epoch, the mean over training rows, each counted in
    its own step before that step's update; ``parameters`` after the last step, by layer and the executor's parameter
    name; ``scores`` [V, classes] after each epoch, over all in-edges; ``embeddings`` [V, D] after the last step, None
    where none are learned."""

    losses: list[float]
    parameters: list[dict[str, torch.Tensor]]
    scores: list[torch.Tensor]
    embeddings: torch.Tensor | None = None


@dataclass
class LearnedRows:
    """Learned vectors of all vertices [V, D] with Adagrad over the whole table, whichever vertices a batch has. With
    ``delay`` 1 a gradient changes them one step late (docs/systems/distdgl.md)."""

    vectors: torch.Tensor
    delay: int
    rate: float

    def __post_init__(self) -> None:
        self.vectors = self.vectors.clone().requires_grad_()
        self._squares, self._late = torch.zeros_like(self.vectors), torch.zeros_like(self.vectors)

    def step(self) -> None:
        """Update the vectors once from the gradient of the mean loss, and clear the gradient."""
        assert self.vectors.grad is not None
        gradient, self.vectors.grad = self.vectors.grad, None
        if self.delay:
            gradient, self._late = self._late, gradient
        with torch.no_grad():
            self._squares += gradient**2
            self.vectors -= self.rate * gradient / (self._squares.sqrt() + 1e-10)


def train_reference(
    graph: Graph,
    layers: Sequence[LayerSpec],
    initial: Sequence[Mapping[str, torch.Tensor]],
    epochs: int,
    settings: Mapping[str, Any],
    seed: int,
    dtype: torch.dtype = torch.float64,
) -> Reference:
    """Train on the full graph from ``initial`` parameters (one mapping per layer).

    ``settings``: fields of ``[train]`` (optimizer, learning_rate, weight_decay, momentum); ``seed``: the experiment's,
    which decides what dropout drops. Raises :class:`BackendError` without DGL, or for a layer without a reference.
    """
    dgl = _dgl()
    targets, sources = np.repeat(np.arange(graph.vertices), graph.csr.degrees()), graph.csr.indices.astype(np.int64)
    edges = dgl.graph((torch.from_numpy(sources), torch.from_numpy(targets)), num_nodes=graph.vertices)
    looped = dgl.add_self_loop(edges)
    every = torch.arange(graph.vertices)

    def forward(drawn: int | None) -> torch.Tensor:
        rows = features
        for module, layer in zip(modules, layers, strict=True):
            rows = _layer_output(module, layer, looped if layer.kind in LOOPED else edges, rows, every, drawn)
        return rows

    modules = [_module(layer, "both").to(dtype) for layer in layers]
    names = _load_values(modules, layers, initial)
    features = _dense_rows(graph.features).to(dtype)
    assert graph.train_mask is not None
    chosen = torch.from_numpy(np.array(graph.train_mask))
    labels = torch.from_numpy(np.array(graph.labels))[chosen]
    optimizer = _optimizer([p for module in modules for p in module.parameters()], settings)
    losses: list[float] = []
    for epoch in range(epochs):
        optimizer.zero_grad()
        scores = forward(dropout_seed(seed, epoch))[chosen]
        if graph.multilabel:
            loss = functional.binary_cross_entropy_with_logits(scores, labels.to(dtype))
        else:
            loss = functional.cross_entropy(scores, labels)
        loss.backward()
        losses.append(float(loss.detach()))
        optimizer.step()
    with torch.no_grad():
        scores = forward(None)
    return Reference(
        losses,
        [_read_values(m, n, True) for m, n in zip(modules, names, strict=True)],
        [_read_values(m, n, False) for m, n in zip(modules, names, strict=True)],
        scores,
    )


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
    """Train on mini-batches from ``initial`` parameters; the loss of a step is the mean over the seeds of all workers'
    batches, or with ``gradient_mean`` = "ranks" the mean of the batches' means.

    ``settings``: fields of ``[train]``; ``learned``: vectors beside the features. Raises :class:`BackendError` without
    DGL, or for a layer without a reference.
    """
    modules = [_module(layer, "right").to(dtype) for layer in layers]
    names = _load_values(modules, layers, initial)
    features, labels = _dense_rows(graph.features).to(dtype), torch.from_numpy(np.array(graph.labels))
    optimizer = _optimizer([p for module in modules for p in module.parameters()], settings)
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
            found = torch.cat([_batch_scores(modules, layers, batch, seed, rows) for batch, seed in each])
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
            scores.append(_batch_scores(modules, layers, every, None, rows))
    parameters = [_read_values(m, n, False) for m, n in zip(modules, names, strict=True)]
    return BatchReference(losses, parameters, scores, None if learned is None else learned.vectors.detach())


def _mean_of_ranks(scores: torch.Tensor, batches: Sequence[Batch], labels: torch.Tensor, graph: Graph) -> torch.Tensor:
    """Return the mean over ranks of the mean loss of their batches; ``scores`` of all seeds, one batch after the
    other."""
    parts = torch.split(scores, [int(batch.sizes[0]) for batch in batches])
    seeds = [torch.from_numpy(np.array(batch.seeds, dtype=np.int64)) for batch in batches]
    means = [_loss_sum(part, labels[mine], graph) / len(mine) for part, mine in zip(parts, seeds, strict=True)]
    return torch.stack(means).mean()


def _loss_sum(scores: torch.Tensor, labels: torch.Tensor, graph: Graph) -> torch.Tensor:
    """Sum the losses of some rows; in a multi-label graph the loss of a row is the mean over classes."""
    if graph.multilabel:
        total = functional.binary_cross_entropy_with_logits(scores, labels.to(scores.dtype), reduction="sum")
        return total / graph.classes
    return functional.cross_entropy(scores, labels, reduction="sum")


def _batch_scores(
    modules: Sequence[torch.nn.Module],
    layers: Sequence[LayerSpec],
    batch: Batch,
    drawn: int | None,
    features: torch.Tensor,
) -> torch.Tensor:
    vertices = torch.from_numpy(np.array(batch.vertices, dtype=np.int64))
    rows = features[vertices]
    for module, layer, hop in zip(modules, layers, range(len(layers), 0, -1), strict=True):
        block = batch.blocks[hop - 1]
        count = len(block.indptr) - 1
        targets, sources = np.repeat(np.arange(count), np.diff(block.indptr)), block.sources.astype(np.int64)
        if layer.kind in LOOPED:
            targets, sources = (np.concatenate((ends, np.arange(count))) for ends in (targets, sources))
        pairs = torch.from_numpy(sources), torch.from_numpy(targets)
        edges = _dgl().create_block(pairs, num_src_nodes=int(batch.sizes[hop]), num_dst_nodes=count)
        rows = _layer_output(module, layer, edges, rows, vertices[:count], drawn)
    return rows


def _dgl() -> Any:
    try:
        # DGL: optional, and slow to load
        import dgl
    except ImportError as error:
        raise BackendError(
            f"the reference needs DGL, which cannot be imported ({error}); it has no wheel for Python 3.12 and later"
        ) from error
    return dgl


def _load_values(
    modules: Sequence[torch.nn.Module], layers: Sequence[LayerSpec], initial: Sequence[Mapping[str, torch.Tensor]]
) -> list[dict[str, str]]:
    """Copy the executor's parameters to DGL's modules; return DGL's name of each executor's name, by layer."""
    names = [dict(_parameter_names(layer)) for layer in layers]
    for module, name, values in zip(modules, names, initial, strict=True):
        found = dict(module.named_parameters())
        with torch.no_grad():
            for ours, theirs in name.items():
                found[theirs].copy_(values[ours].t() if theirs in TURNED else values[ours])
    return names


def _module(layer: LayerSpec, norm: str) -> Any:
    """Return DGL's layer of that kind; ``norm``: how it weighs the sums of a GCN."""
    nn = _dgl().nn
    if layer.kind == "gcn":
        return nn.GraphConv(layer.width_in, layer.width_out, norm=norm, allow_zero_in_degree=True)
    if layer.kind == "sage":
        return nn.SAGEConv(layer.width_in, layer.width_out, "mean")
    if layer.kind == "gin":
        mlp = torch.nn.Sequential(
            torch.nn.Linear(layer.width_in, layer.hidden),
            torch.nn.ReLU(),
            torch.nn.Linear(layer.hidden, layer.width_out),
        )
        return nn.GINConv(mlp, "sum")
    if layer.kind == "gat":
        return nn.GATConv(layer.width_in, layer.width_out // layer.heads, layer.heads)
    raise BackendError(f"there is no reference for layers of kind '{layer.kind}'; there is one for gcn, sage, gin, gat")


def _parameter_names(layer: LayerSpec) -> list[tuple[str, str]]:
    """Return pairs (name in the executor's layer, name in DGL's)."""
    if layer.kind == "gcn":
        return [("weight", "weight"), ("bias", "bias")]
    if layer.kind == "sage":
        return [("weight_self", "fc_self.weight"), ("weight_neighbor", "fc_neigh.weight"), ("bias", "fc_self.bias")]
    if layer.kind == "gat":
        attention = [("attention_source", "attn_l"), ("attention_target", "attn_r")]
        return [("weight", "fc.weight"), *attention, ("bias", "bias")]
    return [(f"mlp.{place}.{part}", f"apply_func.{place}.{part}") for place in (0, 2) for part in ("weight", "bias")]


def _layer_output(
    module: torch.nn.Module,
    layer: LayerSpec,
    edges: Any,
    rows: torch.Tensor,
    vertices: torch.Tensor,
    drawn: int | None,
) -> torch.Tensor:
    """Compute a layer, its activation, then dropout of the rows of ``vertices`` with the seed ``drawn`` (None: no
    dropout)."""
    rows = module(edges, rows)
    if layer.kind == "gat":
        rows = rows.flatten(1)  # heads side by side
    if layer.follows != "none":
        rows = functional.elu(rows) if layer.follows == "elu" else torch.relu(rows)
    if drawn is None or not layer.dropped:
        return rows
    return rows * factors(vertices, rows.shape[1], layer_key(drawn, layer.index), layer.dropped, rows.dtype)


def _read_values(module: torch.nn.Module, names: Mapping[str, str], gradient: bool) -> dict[str, torch.Tensor]:
    """Return parameters, or their gradients, in the executor's layout."""
    found = dict(module.named_parameters())
    result = {}
    for ours, theirs in names.items():
        parameter = found[theirs]
        value = parameter.grad if gradient else parameter.detach()
        assert value is not None
        result[ours] = value.t().clone() if theirs in TURNED else value.clone()
    return result


def _dense_rows(features: Any) -> torch.Tensor:
    """Return features as one dense tensor; in float64 where their mean is subtracted."""
    if isinstance(features, CentredRows):
        return torch.from_numpy(features.toarray(np.float64))
    if isinstance(features, sparse.csr_array):
        features = features.toarray()
    return torch.from_numpy(np.array(features))


def _optimizer(parameters: list[torch.nn.Parameter], settings: Mapping[str, Any]) -> torch.optim.Optimizer:
    rate, decay = float(settings["learning_rate"]), float(settings["weight_decay"])
    if settings["optimizer"] == "adam":
        return torch.optim.Adam(parameters, lr=rate, weight_decay=decay, foreach=False)
    return torch.optim.SGD(parameters, lr=rate, weight_decay=decay, momentum=float(settings["momentum"]), foreach=False)
