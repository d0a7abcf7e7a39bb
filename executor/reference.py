"""The single-process reference: the same model on the whole graph, made of DGL's layers and torch's own losses.

It shares no arithmetic with the executor: DGL's message passing, ``torch.nn.functional`` losses, one parameter a tensor
in the optimizer; only which elements dropout drops is the same. DGL is needed (Python below 3.12). Meant for tests and
for checking a run on a graph that fits.
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
from simgnn.sampling.draw.seeds import dropout_seed, layer_key

TURNED = ("fc_self.weight", "fc_neigh.weight", "fc.weight")
"""Parameters that DGL holds as [out, in], ours are [in, out]."""


@dataclass(frozen=True)
class Reference:
    """``losses`` of each epoch, before its update. ``gradients``: of the last epoch, by layer and parameter name as the
    executor's layers name them; ``parameters``: after the last update. ``scores`` [V, classes] after it."""

    losses: list[float]
    gradients: list[dict[str, torch.Tensor]]
    parameters: list[dict[str, torch.Tensor]]
    scores: torch.Tensor


def train_reference(
    graph: Graph,
    layers: Sequence[LayerSpec],
    initial: Sequence[Mapping[str, torch.Tensor]],
    epochs: int,
    settings: Mapping[str, Any],
    seed: int,
    dtype: torch.dtype = torch.float64,
) -> Reference:
    """Train ``epochs`` epochs on the full graph from ``initial`` parameters (one mapping a layer).

    ``settings`` are the fields of ``[train]`` (optimizer, learning_rate, weight_decay, momentum); ``seed``: the
    experiment's, which decides what dropout drops. Raises :class:`BackendError` without DGL, or for a layer that has no
    reference.
    """
    edges = _dgl_graph(graph)
    modules = [reference_module(layer, "both").to(dtype) for layer in layers]
    names = load_values(modules, layers, initial)
    features = dense_rows(graph.features).to(dtype)
    assert graph.train_mask is not None
    chosen = torch.from_numpy(np.array(graph.train_mask))
    labels = torch.from_numpy(np.array(graph.labels))[chosen]
    optimizer = reference_optimizer([p for module in modules for p in module.parameters()], settings)
    losses: list[float] = []
    for epoch in range(epochs):
        optimizer.zero_grad()
        scores = _forward(modules, layers, edges, features, dropout_seed(seed, epoch))[chosen]
        if graph.multilabel:
            loss = functional.binary_cross_entropy_with_logits(scores, labels.to(dtype))
        else:
            loss = functional.cross_entropy(scores, labels)
        loss.backward()
        losses.append(float(loss.detach()))
        optimizer.step()
    with torch.no_grad():
        scores = _forward(modules, layers, edges, features)
    return Reference(
        losses,
        [read_values(m, n, True) for m, n in zip(modules, names, strict=True)],
        [read_values(m, n, False) for m, n in zip(modules, names, strict=True)],
        scores,
    )


def _dgl_graph(graph: Graph) -> Any:
    try:
        # DGL: optional, and slow to load
        import dgl
    except ImportError as error:
        raise BackendError(
            f"the reference needs DGL, which cannot be imported ({error}); it has no wheel for Python 3.12 and later"
        ) from error
    targets = np.repeat(np.arange(graph.vertices), graph.csr.degrees())
    sources = np.asarray(graph.csr.indices, dtype=np.int64)
    return dgl.graph((torch.from_numpy(sources), torch.from_numpy(targets)), num_nodes=graph.vertices)


def load_values(
    modules: Sequence[torch.nn.Module], layers: Sequence[LayerSpec], initial: Sequence[Mapping[str, torch.Tensor]]
) -> list[dict[str, str]]:
    """Give DGL's modules the values of our layers; by layer, the name there of each of our names."""
    names = [dict(parameter_names(layer)) for layer in layers]
    for module, name, values in zip(modules, names, initial, strict=True):
        found = dict(module.named_parameters())
        with torch.no_grad():
            for ours, theirs in name.items():
                found[theirs].copy_(values[ours].t() if theirs in TURNED else values[ours])
    return names


def reference_module(layer: LayerSpec, norm: str) -> torch.nn.Module:
    """DGL's layer of that kind; ``norm``: how it weighs the sums of a GCN."""
    # DGL: optional, and slow to load
    from dgl import nn

    if layer.kind == "gcn":
        return nn.GraphConv(layer.width_in, layer.width_out, norm=norm, allow_zero_in_degree=True)  # type: ignore[no-any-return]
    if layer.kind == "sage":
        return nn.SAGEConv(layer.width_in, layer.width_out, "mean")  # type: ignore[no-any-return]
    if layer.kind == "gin":
        mlp = torch.nn.Sequential(
            torch.nn.Linear(layer.width_in, layer.hidden),
            torch.nn.ReLU(),
            torch.nn.Linear(layer.hidden, layer.width_out),
        )
        return nn.GINConv(mlp, "sum")  # type: ignore[no-any-return]
    if layer.kind == "gat":
        return nn.GATConv(layer.width_in, layer.width_out // layer.heads, layer.heads)  # type: ignore[no-any-return]
    raise BackendError(f"there is no reference for layers of kind '{layer.kind}'; there is one for gcn, sage, gin, gat")


def parameter_names(layer: LayerSpec) -> list[tuple[str, str]]:
    """(Name in the executor's layer, name in DGL's)."""
    if layer.kind == "gcn":
        return [("weight", "weight"), ("bias", "bias")]
    if layer.kind == "sage":
        return [("weight_self", "fc_self.weight"), ("weight_neighbor", "fc_neigh.weight"), ("bias", "fc_self.bias")]
    if layer.kind == "gat":
        attention = [("attention_source", "attn_l"), ("attention_target", "attn_r")]
        return [("weight", "fc.weight"), *attention, ("bias", "bias")]
    return [(f"mlp.{place}.{part}", f"apply_func.{place}.{part}") for place in (0, 2) for part in ("weight", "bias")]


def _forward(
    modules: Sequence[torch.nn.Module],
    layers: Sequence[LayerSpec],
    edges: Any,
    rows: torch.Tensor,
    drawn: int | None = None,
) -> torch.Tensor:
    # DGL: optional, and slow to load
    import dgl

    looped = dgl.add_self_loop(edges)
    for module, layer in zip(modules, layers, strict=True):
        rows = module(looped if layer.kind in ("gcn", "gat") else edges, rows)
        if layer.kind == "gat":
            rows = rows.flatten(1)  # heads side by side
        rows = finished(layer, rows, torch.arange(len(rows)), drawn)
    return rows


def finished(layer: LayerSpec, rows: torch.Tensor, vertices: torch.Tensor, drawn: int | None) -> torch.Tensor:
    """What follows a layer: its activation, then dropout of the rows of ``vertices`` under the seed ``drawn`` (None: an
    evaluation, which drops nothing)."""
    if layer.follows != "none":
        rows = functional.elu(rows) if layer.follows == "elu" else torch.relu(rows)
    if drawn is None or not layer.dropped:
        return rows
    return rows * factors(vertices, rows.shape[1], layer_key(drawn, layer.index), layer.dropped, rows.dtype)


def read_values(module: torch.nn.Module, names: Mapping[str, str], gradient: bool) -> dict[str, torch.Tensor]:
    """Parameters, or their gradients, as our layers hold them."""
    found = dict(module.named_parameters())
    result = {}
    for ours, theirs in names.items():
        parameter = found[theirs]
        value = parameter.grad if gradient else parameter.detach()
        assert value is not None
        result[ours] = value.t().clone() if theirs in TURNED else value.clone()
    return result


def dense_rows(features: Any) -> torch.Tensor:
    """Features as one dense tensor; of those less their mean in float64."""
    if isinstance(features, CentredRows):
        return torch.from_numpy(features.toarray(np.float64))
    if isinstance(features, sparse.csr_array):
        features = features.toarray()
    return torch.from_numpy(np.array(features))


def reference_optimizer(parameters: list[torch.nn.Parameter], settings: Mapping[str, Any]) -> torch.optim.Optimizer:
    """torch's own optimizer, one parameter a tensor."""
    rate, decay = float(settings["learning_rate"]), float(settings["weight_decay"])
    if settings["optimizer"] == "adam":
        return torch.optim.Adam(parameters, lr=rate, weight_decay=decay, foreach=False)
    return torch.optim.SGD(parameters, lr=rate, weight_decay=decay, momentum=float(settings["momentum"]), foreach=False)
