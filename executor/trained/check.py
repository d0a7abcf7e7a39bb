"""Checks an exported model: on a random graph its scores must be those of the executor's own layers."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import torch

from executor.layers.build import build_layers
from executor.layers.builtin import GCN
from executor.layers.local import LOOPED_MEAN, LocalAdjacency
from executor.layers.user import UserLayer
from executor.state.buffers import TORCH_TYPES
from executor.trained.weights import load_layers
from simgnn.errors import BackendError
from simgnn.graph.build import assemble_edges
from simgnn.graph.weights import weighted_degrees
from simgnn.record.trained import FEATURE_MEAN, VERTEX_VECTORS, ModelFile

VERTICES, EDGES = 64, 200
BOUND = {"float32": 1e-5, "float64": 1e-12}
"""Largest difference of scores, relative to the greatest score."""


def check_export(path: Path, described: ModelFile, weights: dict[str, torch.Tensor]) -> float:
    """Load the exported module ``path`` and return the largest difference of its scores on a random graph, relative to
    the greatest score. Raises :class:`BackendError` if it is above ``BOUND``."""
    vectors = weights.get(VERTEX_VECTORS)
    vertices = VERTICES if vectors is None else len(vectors)
    draw = np.random.default_rng(0)
    ends = draw.integers(0, vertices, size=(2, EDGES))
    x = torch.from_numpy(draw.standard_normal((vertices, described.inputs.feature_width), dtype=np.float32))
    of_edges = draw.exponential(size=EDGES) if described.weighted else None
    given = [x, torch.from_numpy(ends), *([] if of_edges is None else [torch.from_numpy(of_edges)])]
    with torch.no_grad():
        found = _loaded(path)(*given)
        expected = _scores(described, weights, x, ends, of_edges)
    error = float((found - expected).abs().max() / expected.abs().max().clamp(min=torch.finfo(expected.dtype).tiny))
    if not error <= BOUND[described.dtype]:
        raise BackendError(
            f"the exported module gives other scores than the trained layers: {error:.1e} off on a random graph, "
            f"expected at most {BOUND[described.dtype]:.0e}; a layer of your own must compute with 'csr' "
            "and rows alone. Otherwise please report it"
        )
    return error


def _loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load()


def _scores(
    described: ModelFile, weights: dict[str, torch.Tensor], x: torch.Tensor, ends: Any, of_edges: Any
) -> torch.Tensor:
    """Return the scores of all vertices by the executor's layers. ``x`` float32 [V, F_0]; ``ends`` [2, edges];
    ``of_edges`` [edges]: weights of edges, None if the model reads none."""
    inputs, dtype = described.inputs, TORCH_TYPES[described.dtype]
    graph = assemble_edges(ends[0], ends[1], len(x), inputs.symmetrised, weights=of_edges).csr
    adjacency = LocalAdjacency(graph, graph.degrees(), dtype=dtype, weighted_degree=weighted_degrees(graph))
    rows = x
    if inputs.centred:
        rows = rows.double() - weights[FEATURE_MEAN]
        rows = rows.to(torch.float32) if inputs.centred == "single" else rows
    rows = rows.to(dtype)
    if inputs.vector_width:
        rows = torch.cat((rows, weights[VERTEX_VECTORS]), 1)
    layers = build_layers(described.layers, 0, dtype)
    load_layers(list(layers), weights)
    layers.eval()
    for layer in layers:
        if inputs.sampled and isinstance(layer, GCN):
            layer.scaling = LOOPED_MEAN
        rows = _layer(layer, adjacency, rows)
    return rows


def _layer(layer: Any, adjacency: LocalAdjacency, rows: torch.Tensor) -> torch.Tensor:
    if isinstance(layer, UserLayer) and layer.spec.whole:
        found: torch.Tensor = layer(adjacency, rows)
        return found
    prepared = layer.prepare(rows) if layer.spec.has_prepare else rows
    if layer.spec.attends:
        summed = layer.aggregate(adjacency, prepared, layer.maximum(adjacency, prepared))
    else:
        summed = layer.aggregate(adjacency, prepared)
    updated: torch.Tensor = layer.update(summed, rows)
    return updated
