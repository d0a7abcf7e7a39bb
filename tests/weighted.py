"""A weighted graph as users list it, and PyTorch Geometric's layers over the same list, to check training against.

The reference shares neither edges nor arithmetic with simgnn: PyG merges duplicates, drops loops and sums.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from torch_geometric.nn import GCNConv, SimpleConv
from torch_geometric.utils import coalesce, remove_self_loops, scatter

from executor.layers import build_layers
from simgnn.graph.graph import Graph
from simgnn.graph.load import load_graph
from simgnn.model.spec import LayerSpec
from tests.executor.runs import small_graph

VERTICES = 60


def listed(seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Directed edges int64 [2, E] with repeats and self loops, and their weights; some are 0, few are whole numbers."""
    draw = np.random.default_rng(seed)
    pairs = draw.integers(0, VERTICES - 3, size=(2, 500))
    pairs[:, :20] = pairs[:, 20:40]
    pairs[1, 40:45] = pairs[0, 40:45]
    return pairs, np.where(draw.random(500) < 0.05, 0.0, draw.exponential(size=500))


def weighted_graph(folder: Path, sparse_features: bool = False) -> Graph:
    """The list read from a CSV file, with the features, labels and masks of another graph; float64 features."""
    pairs, weights = listed()
    rows = (f"{u},{v},{w!r}" for (u, v), w in zip(pairs.T.tolist(), weights.tolist(), strict=True))
    (folder / "weighted.csv").write_text("source,target,weight\n" + "\n".join(rows) + "\n")
    options = {"symmetrise": False, "vertices": VERTICES}
    found, data = load_graph(str(folder / "weighted.csv"), options=options), small_graph(VERTICES)
    features: Any = small_graph(VERTICES, sparse_features=True).features if sparse_features else data.features
    return replace(data, csr=found.csr, symmetric=False, features=features)


class PygModel(torch.nn.Module):
    """The layers of a plan, made of PyG's convolutions, over the listed edges."""

    def __init__(self, specs: Sequence[LayerSpec], parameters: Sequence[Mapping[str, torch.Tensor]]) -> None:
        super().__init__()
        pairs, weights = listed()
        merged = coalesce(torch.from_numpy(pairs), torch.from_numpy(weights), VERTICES, reduce="add")
        self.edges, self.weights = remove_self_loops(*merged)
        total = scatter(self.weights, self.edges[1], dim_size=VERTICES, reduce="sum")
        self.shares = self.weights / torch.where(total > 0, total, 1.0)[self.edges[1]]
        self.specs = list(specs)
        self.values = torch.nn.ParameterList(
            torch.nn.Parameter(value.detach().clone()) for layer in parameters for value in layer.values()
        )
        self.names = [list(layer) for layer in parameters]
        self.convolutions = [self._convolution(spec) for spec in specs]

    def _convolution(self, spec: LayerSpec) -> Any:
        if spec.kind == "gcn":
            return GCNConv(spec.width_in, spec.width_out, bias=False).double()
        return SimpleConv(aggr="sum")

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        values = iter(self.values)
        for spec, names, convolve in zip(self.specs, self.names, self.convolutions, strict=True):
            of = {name: next(values) for name in names}
            if spec.kind == "gcn":
                calls = {"lin.weight": of["weight"].t()}
                rows = torch.func.functional_call(convolve, calls, (rows, self.edges, self.weights)) + of["bias"]
            elif spec.kind == "sage":
                mean = convolve(rows, self.edges, self.shares)
                rows = rows @ of["weight_self"] + mean @ of["weight_neighbor"] + of["bias"]
            else:
                rows = rows + convolve(rows, self.edges, self.weights)
                rows = functional.linear(rows, of["mlp.0.weight"], of["mlp.0.bias"]).relu()
                rows = functional.linear(rows, of["mlp.2.weight"], of["mlp.2.bias"])
            rows = rows.relu() if spec.activation else rows
        return rows


def reference_model(specs: Sequence[LayerSpec], seed: int = 0) -> PygModel:
    """A model with the parameters with which a run of that seed begins."""
    layers = build_layers(specs, seed, torch.float64)
    return PygModel(specs, [dict(layer.named_parameters()) for layer in layers])


def dense_features(graph: Graph) -> torch.Tensor:
    """The graph's features, float64 [V, F]."""
    features: Any = graph.features
    return torch.from_numpy(np.asarray(features if isinstance(features, np.ndarray) else features.toarray())).double()
