"""A single-process reference for rows that are used late: plain PyTorch on dense matrices, with the rows and gradients
of the epoch before kept by hand. It shares dropout masks with the executor and nothing else: no ranks, no messages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from executor.kernels.dropout import factors
from simgnn.graph.graph import Graph
from simgnn.model.spec import LayerSpec
from simgnn.sampling.draw.seeds import dropout_seed, layer_key

Values = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Lateness:
    """How rows are late. ``rows``, ``gradients``: the weight of earlier epochs in what is used (0: none is smoothed);
    ``waits``: the first epoch uses its own rows, else zeros. ``interval``: if set, rows are not one epoch late: they
    are exchanged in every so many epochs, and kept between; only then are gradients of them returned."""

    rows: float = 0.0
    gradients: float = 0.0
    waits: bool = True
    interval: int = 0

    def fresh(self, epoch: int) -> bool:
        """Whether an epoch uses its own rows and gradients."""
        return epoch % self.interval == 0 if self.interval else epoch == 0 and self.waits


@dataclass(frozen=True)
class LateReference:
    """``losses`` of each epoch, ``gradients`` of the parameters in each, flat; ``parameters`` after the last, flat;
    ``scores`` [V, classes] after the last update, of exact rows."""

    losses: list[float]
    gradients: list[torch.Tensor]
    parameters: torch.Tensor
    scores: torch.Tensor


class _Edges:
    """The in-edges of all vertices as dense matrices [V, V]: of sources on the target's own rank, and of others."""

    def __init__(self, graph: Graph, owner: NDArray[np.integer]) -> None:
        count = graph.vertices
        target = np.repeat(np.arange(count), graph.csr.degrees())
        matrix = torch.zeros(count, count, dtype=torch.float64)
        matrix[torch.from_numpy(target), torch.from_numpy(graph.csr.indices.astype(np.int64))] = 1
        same = torch.from_numpy(owner[:, None] == owner[None, :])
        self.own, self.remote = matrix * same, matrix * ~same
        self.degree = matrix.sum(1, keepdim=True)

    def sum(self, kind: str, here: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        """Sums of rows: ``here`` of sources on the target's rank, ``there`` of others."""
        if kind == "gcn":
            root = (self.degree + 1).rsqrt()
            return root * (self.own @ (root * here) + self.remote @ (root * there)) + root * root * here
        total = self.own @ here + self.remote @ there
        return total / self.degree.clamp(min=1) if kind == "sage" else total

    def attend(self, layer: LayerSpec, values: Values, here: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
        """Sums weighed by attention over in-edges and each vertex itself, heads side by side."""
        count, part = len(here), layer.width_out // layer.heads
        found = []
        for head in range(layer.heads):
            columns = slice(head * part, (head + 1) * part)
            near, far = here[:, columns], there[:, columns]
            of_source, of_target = (
                values[name].reshape(layer.heads, part)[head] for name in ("attention_source", "attention_target")
            )
            base = (near @ of_target)[:, None]
            own = self.own + torch.eye(count, dtype=torch.float64)
            scores = torch.cat((base + (near @ of_source)[None, :], base + (far @ of_source)[None, :]), 1)
            mask = torch.cat((own, self.remote), 1) == 0
            weights = torch.softmax(functional.leaky_relu(scores, 0.2).masked_fill(mask, -torch.inf), 1)
            found.append(weights @ torch.cat((near, far)))
        return torch.cat(found, 1)


def _prepare(layer: LayerSpec, values: Values, rows: torch.Tensor) -> torch.Tensor:
    return rows @ values["weight_neighbor" if layer.kind == "sage" else "weight"]


def _output(
    edges: _Edges, layer: LayerSpec, values: Values, rows: torch.Tensor, here: torch.Tensor, there: torch.Tensor
) -> torch.Tensor:
    """A layer's output from its input ``rows`` and from what it sums, ``here`` and ``there``."""
    if layer.kind == "gat":
        found = edges.attend(layer, values, here, there) + values["bias"]
    else:
        found = edges.sum(layer.kind, here, there)
        if layer.kind == "gin":
            inside = torch.relu((found + rows) @ values["mlp.0.weight"].t() + values["mlp.0.bias"])
            found = inside @ values["mlp.2.weight"].t() + values["mlp.2.bias"]
        else:
            found = found if layer.has_prepare else _prepare(layer, values, found)
            found = found + values["bias"]
        if layer.kind == "sage":
            found = found + rows @ values["weight_self"]
    return torch.relu(found) if layer.follows != "none" else found


def train_late_reference(
    graph: Graph, layers: Sequence[LayerSpec], initial: Sequence[Mapping[str, torch.Tensor]],
    owner: NDArray[np.integer], epochs: int, settings: Mapping[str, Any], seed: int, late: Lateness,
) -> LateReference:  # fmt: skip
    """Train from ``initial`` parameters (one mapping a layer), in float64. ``owner`` [V]: the rank of each vertex."""
    edges = _Edges(graph, owner)
    values = [{name: value.detach().double().requires_grad_() for name, value in one.items()} for one in initial]
    every = [value for one in values for value in one.values()]
    adam = settings["optimizer"] == "adam"
    optimizer: torch.optim.Optimizer = (
        torch.optim.Adam(every, lr=settings["learning_rate"], foreach=False) if adam
        else torch.optim.SGD(every, lr=settings["learning_rate"], foreach=False)
    )  # fmt: skip
    vertices = torch.arange(graph.vertices)
    features = torch.from_numpy(np.asarray(graph.features)).double()
    chosen, labels = (torch.from_numpy(np.array(part)) for part in (graph.train_mask, graph.labels))
    kept_rows: dict[int, torch.Tensor] = {}
    kept_gradients: dict[int, torch.Tensor] = {}
    losses, gradients = [], []
    for epoch in range(epochs):
        optimizer.zero_grad()
        rows, passed, masks = features, [], [torch.ones_like(features)]
        arrived_rows: dict[int, torch.Tensor] = {}
        for layer, parameters in zip(layers, values, strict=True):
            place = layer.index
            leaf = rows.detach().requires_grad_()
            made = _prepare(layer, parameters, leaf) if layer.has_prepare else leaf
            here = made.detach().requires_grad_() if layer.has_prepare else leaf
            exact = place == 1 or late.fresh(epoch)
            used = here.detach() if exact else kept_rows.get(place, torch.zeros_like(here))
            there = used.clone().requires_grad_()
            weight = late.rows if epoch else 0.0
            arrived_rows[place] = here.detach() if late.interval else weight * used + (1 - weight) * here.detach()
            output = _output(edges, layer, parameters, leaf, here, there)
            mask = torch.ones_like(output)
            if layer.dropped:
                key = layer_key(dropout_seed(seed, epoch), place)
                mask = factors(vertices, output.shape[1], key, layer.dropped, torch.float64)
            passed.append((layer, parameters, leaf, made, here, there, output))
            masks.append(mask.detach())
            rows = output.detach() * mask
        scores = rows.detach().requires_grad_()
        loss = functional.cross_entropy(scores[chosen], labels[chosen])
        losses.append(float(loss.detach()))
        [incoming] = torch.autograd.grad(loss, [scores])
        late_part = torch.zeros_like(incoming)
        arrived_gradients: dict[int, torch.Tensor] = {}
        for layer, parameters, leaf, made, here, there, output in reversed(passed):
            place, names = layer.index, list(parameters)
            incoming = (incoming + late_part) * masks[place]
            wanted = [leaf, here, there, *parameters.values()]
            found = torch.autograd.grad(output, wanted, incoming, allow_unused=True)
            of_leaf, of_here, of_there = [
                torch.zeros_like(one) if got is None else got for one, got in zip(wanted[:3], found[:3], strict=True)
            ]
            of_parameters = {
                name: torch.zeros_like(parameters[name]) if got is None else got
                for name, got in zip(names, found[3:], strict=True)
            }
            hidden = not layer.has_prepare
            sent, late_part = of_there, torch.zeros_like(of_there)
            if place == 1:
                of_here = of_here + (0 if hidden else of_there)
            else:
                if late.interval:
                    late_part = sent if late.fresh(epoch) else torch.zeros_like(sent)
                elif epoch == 0:
                    late_part = sent if late.waits else torch.zeros_like(sent)
                    arrived_gradients[place] = sent
                else:
                    late_part = kept_gradients[place]
                    arrived_gradients[place] = late.gradients * late_part + (1 - late.gradients) * sent
            if layer.has_prepare:
                total = of_here + late_part
                late_part = torch.zeros_like(leaf)
                more = torch.autograd.grad(made, [leaf, *parameters.values()], total, allow_unused=True)
                of_leaf = of_leaf + (0 if more[0] is None else more[0])
                for name, got in zip(names, more[1:], strict=True):
                    of_parameters[name] = of_parameters[name] + (0 if got is None else got)
            for name, got in of_parameters.items():
                parameters[name].grad = got
            incoming = of_leaf
        if not late.interval or late.fresh(epoch):
            kept_rows, kept_gradients = arrived_rows, arrived_gradients
        gradients.append(torch.cat([value.grad.reshape(-1) for value in every if value.grad is not None]))
        optimizer.step()
    with torch.no_grad():
        rows = features
        for layer, parameters in zip(layers, values, strict=True):
            here = _prepare(layer, parameters, rows) if layer.has_prepare else rows
            rows = _output(edges, layer, parameters, rows, here, here)
    return LateReference(losses, gradients, torch.cat([value.detach().reshape(-1) for value in every]), rows)
