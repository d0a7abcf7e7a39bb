"""A single-process reference for sums over sampled halo rows: plain PyTorch on dense matrices, one for each epoch, of
the edges that the ranks keep. It shares dropout masks and the order of halo rows with the executor; which rows are
drawn is worked out anew, number by number."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from executor.kernels.dropout import factors
from simgnn.graph.graph import Graph
from simgnn.graph.hashing import stream_key
from simgnn.model.spec import LayerSpec
from simgnn.partition.store import PartitionArtifact
from simgnn.sampling.draw.seeds import dropout_seed, layer_key

WORD = 2**64 - 1
Values = dict[str, torch.Tensor]


@dataclass(frozen=True)
class SampledReference:
    """``losses`` of each epoch, ``gradients`` of the parameters in each, flat; ``parameters`` after the last, flat;
    ``scores`` [V, classes] after the last update, over all edges."""

    losses: list[float]
    gradients: list[torch.Tensor]
    parameters: torch.Tensor
    scores: torch.Tensor


def mixed(key: int, counter: int) -> int:
    """SplitMix64 in plain integers."""
    z = (key + counter * 0x9E3779B97F4A7C15) & WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


def count_of(p: float, rows: int) -> int:
    """How many of a pair's rows a sample of fixed size has: p |Q| rounded half up, one at least."""
    return max(int(np.floor(p * rows + 0.5)), 1) if p and rows else 0


def sample(seed: int, epoch: int, owner: int, receiver: int, rows: int, p: float, sampling: str) -> list[int]:
    """The places, among the rows of a pair of ranks, of those that an epoch uses."""
    stream = mixed(mixed(int(stream_key(seed, f"boundary/{epoch}")), owner), receiver)
    chances = [(mixed(stream, row) >> 11) * 2.0**-53 for row in range(rows)]
    if sampling == "bernoulli":
        return [row for row, chance in enumerate(chances) if chance < p]
    found: list[int] = []
    for row, chance in enumerate(chances):
        if chance * (rows - row) < count_of(p, rows) - len(found):
            found.append(row)
    return found


def kept_matrices(
    graph: Graph, artifact: PartitionArtifact, seed: int, epoch: int, p: float, sampling: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """The in-edges of all vertices that an epoch sums over, 0 or 1 [V, V]; and what the row of their source is
    multiplied by, [V, V]."""
    count = graph.vertices
    kept, scale = (torch.zeros(count, count, dtype=torch.float64) for _ in range(2))
    target = np.repeat(np.arange(count), graph.csr.degrees())
    for rank in range(artifact.ranks):
        local = artifact.local(rank)
        used = np.zeros(count)
        used[local.owned] = 1
        for owner, part in local.receive.items():
            halo = local.halo[part]
            places = sample(seed, epoch, owner, rank, len(halo), p, sampling)
            used[halo[places]] = len(halo) / len(places) if sampling == "fixed" and places else 1 / p if p else 1
        for vertex in local.owned:
            sources = graph.csr.indices[graph.csr.indptr[vertex] : graph.csr.indptr[vertex + 1]]
            kept[vertex, sources] = torch.from_numpy((used[sources] > 0).astype(np.float64))
            scale[vertex, sources] = torch.from_numpy(used[sources])
    assert len(target) == graph.csr.edges
    return kept, scale


def train_sampled_reference(
    graph: Graph, layers: Sequence[LayerSpec], initial: Sequence[Mapping[str, torch.Tensor]],
    artifact: PartitionArtifact, epochs: int, settings: Mapping[str, Any], seed: int, p: float, sampling: str = "fixed",
) -> SampledReference:  # fmt: skip
    """Train from ``initial`` parameters (one mapping a layer), in float64; all by autograd over the whole graph."""
    values = [{name: value.detach().double().requires_grad_() for name, value in one.items()} for one in initial]
    every = [value for one in values for value in one.values()]
    kind = torch.optim.Adam if settings["optimizer"] == "adam" else torch.optim.SGD
    optimizer = kind(every, lr=settings["learning_rate"], foreach=False)  # type: ignore[operator]
    features = graph.features.toarray() if hasattr(graph.features, "toarray") else np.asarray(graph.features)
    degree = torch.from_numpy(graph.csr.degrees()).double()[:, None]
    chosen, labels = (torch.from_numpy(np.array(part)) for part in (graph.train_mask, graph.labels))
    vertices = torch.arange(graph.vertices)

    def forward(edges: tuple[torch.Tensor, torch.Tensor], epoch: int | None) -> torch.Tensor:
        rows = torch.from_numpy(features).double()
        for layer, parameters in zip(layers, values, strict=True):
            rows = _output(layer, parameters, rows, *edges, degree)
            if layer.dropped and epoch is not None:
                key = layer_key(dropout_seed(seed, epoch), layer.index)
                rows = rows * factors(vertices, rows.shape[1], key, layer.dropped, torch.float64)
        return rows

    losses, gradients = [], []
    for epoch in range(epochs):
        optimizer.zero_grad()
        scores = forward(kept_matrices(graph, artifact, seed, epoch, p, sampling), epoch)
        loss = functional.cross_entropy(scores[chosen], labels[chosen])
        loss.backward()
        losses.append(float(loss.detach()))
        gradients.append(torch.cat([value.grad.reshape(-1) for value in every if value.grad is not None]))
        optimizer.step()
    with torch.no_grad():
        scores = forward(kept_matrices(graph, artifact, seed, 0, 1.0, "fixed"), None)
    return SampledReference(losses, gradients, torch.cat([value.detach().reshape(-1) for value in every]), scores)


def _output(
    layer: LayerSpec, values: Values, rows: torch.Tensor, kept: torch.Tensor, scale: torch.Tensor, degree: torch.Tensor
) -> torch.Tensor:
    if layer.kind == "gat":
        found = _attend(layer, values, rows @ values["weight"], kept) + values["bias"]
    elif layer.kind == "gcn":
        root = (degree + 1).rsqrt()
        found = (root * (scale @ (root * rows)) + root * root * rows) @ values["weight"] + values["bias"]
    elif layer.kind == "sage":
        mean = scale @ rows / degree.clamp(min=1)
        found = rows @ values["weight_self"] + mean @ values["weight_neighbor"] + values["bias"]
    else:
        inside = torch.relu((scale @ rows + rows) @ values["mlp.0.weight"].t() + values["mlp.0.bias"])
        found = inside @ values["mlp.2.weight"].t() + values["mlp.2.bias"]
    return {"none": lambda x: x, "relu": torch.relu, "elu": functional.elu}[layer.follows](found)


def _attend(layer: LayerSpec, values: Values, rows: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    part, edges = layer.width_out // layer.heads, kept + torch.eye(len(kept), dtype=torch.float64)
    found = []
    for head in range(layer.heads):
        mine = rows[:, head * part : (head + 1) * part]
        source, target = (values[f"attention_{end}"].reshape(layer.heads, part)[head] for end in ("source", "target"))
        scores = functional.leaky_relu((mine @ target)[:, None] + (mine @ source)[None, :], 0.2)
        found.append(torch.softmax(scores.masked_fill(edges == 0, -torch.inf), 1) @ mine)
    return torch.cat(found, 1)
