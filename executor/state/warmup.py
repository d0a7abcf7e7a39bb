"""Run every kernel of a model once on a handful of rows, before memory and time are measured.

Kernels are compiled, or read from Numba's cache, at their first call, and torch imports a part of itself at the first
backward: about 100 MB and a second that belong neither to the memory nor to the first epoch of a training run.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from executor.kernels.dropout import drop_out
from executor.kernels.rows import add_rows, gather_rows
from executor.state.model import LayerNetwork
from executor.state.optimizer import FlatOptimizer
from executor.state.task import Task
from simgnn.graph.build import is_symmetric
from simgnn.graph.csr import CSR
from simgnn.model.spec import BUILT_IN_LAYERS, LayerSpec
from simgnn.partition.local.edge_cut import LocalGraph
from simgnn.program.kinds import Segment

OWNED, HALO = 4, 2


def warm_up(
    layers: Sequence[LayerSpec],
    classes: int,
    multilabel: bool,
    settings: Mapping[str, Any],
    dtype: torch.dtype,
    device: torch.device,
    draws: bool = False,
) -> None:
    """Train these layers for one epoch on four owned and two halo rows. A user's own layers are not called; only
    torch operations such as layers use are. ``draws``: halo rows are drawn, whose edges are then selected."""
    warm_up_torch(layers, dtype, device)
    is_symmetric(ring(OWNED))  # as on a rank that needs no halo row; the graph below has some
    leaf = torch.zeros(1, requires_grad=True)
    torch.autograd.backward([leaf * 1], [torch.ones(1)])
    if any(layer.kind not in BUILT_IN_LAYERS for layer in layers):
        return
    mean = torch.zeros(layers[0].width_in, dtype=dtype, device=device) if layers[0].centred_input else None
    # a ring of four owned vertices, two of which also have an in-edge from a halo row
    indptr = np.array([0, 3, 5, 8, 10], dtype=np.int64)
    indices = np.array([1, 3, 4, 0, 2, 1, 3, 5, 0, 2], dtype=np.int32)
    degree = np.array([3, 2, 3, 2, 1, 1], dtype=np.int64)
    owned, halo_ids = np.arange(OWNED, dtype=np.int64), np.arange(OWNED, OWNED + HALO, dtype=np.int64)
    weights, sums = (np.ones(len(indices)), degree.astype(np.float64)) if layers[0].weighted else (None, None)
    local = LocalGraph(0, owned, halo_ids, CSR(indptr, indices, OWNED + HALO, weights), degree, {}, {}, sums)
    network = LayerNetwork(layers, local, 0, dtype, device, mean)
    optimizer = FlatOptimizer(network.layers, settings)
    rows, halo = (_features(layers[0], count, dtype, device) for count in (OWNED, HALO))
    with torch.enable_grad():
        for layer in layers:
            rows = _layer(network, layer, rows, halo)
            halo = torch.zeros(HALO, layer.width_out, dtype=dtype, device=device, requires_grad=True)
    if draws:
        network.kept_halo(torch.zeros(1, dtype=torch.int64, device=device))
    labels = torch.zeros((OWNED, classes) if multilabel else (OWNED,), dtype=dtype if multilabel else torch.int64)
    every = torch.arange(OWNED, device=device)
    task = Task(rows.detach(), labels.to(device), (every, every, every), OWNED, classes, multilabel)
    gradient, _ = task.loss(rows.detach())
    torch.autograd.backward([rows], [gradient])
    task.evaluate(rows.detach())
    optimizer.step()
    packed = gather_rows(gradient, every)
    add_rows(gradient, every, packed, [OWNED])


def warm_up_torch(layers: Sequence[LayerSpec], dtype: torch.dtype, device: torch.device) -> None:
    """Run once the three matrix products of a linear layer and its backward, and dropout if a layer has it."""
    torch.manual_seed(0)
    rows, inner, outer = 1024, 256, 256  # large enough that BLAS's packing buffers hardly grow afterwards
    left = torch.zeros(rows, inner, dtype=dtype, device=device)
    right = torch.zeros(inner, outer, dtype=dtype, device=device)
    product = torch.mm(left, right)
    torch.mm(product, right.t(), out=left)
    torch.mm(left.t(), product, out=right)
    if any(layer.dropped for layer in layers):
        drop_out(torch.ones(1, 1, dtype=dtype, device=device), torch.zeros(1, dtype=torch.int64), 0, 1)


def ring(vertices: int) -> CSR:
    """Return a ring graph with read-only arrays, as a run maps them from files: Numba compiles separately for these."""
    near = np.array([[(v - 1) % vertices, (v + 1) % vertices] for v in range(vertices)], np.int32)
    pointers, sources = np.arange(0, 2 * vertices + 1, 2, dtype=np.int64), np.sort(near, 1).reshape(-1)
    for array in (pointers, sources):
        array.setflags(write=False)
    return CSR(pointers, sources, vertices)


def _layer(network: LayerNetwork, layer: LayerSpec, rows: torch.Tensor, halo: torch.Tensor) -> torch.Tensor:
    def run(segment: Segment, *arguments: torch.Tensor) -> Any:
        return network.segment(layer.index, segment)(*arguments)

    prepared = run(Segment.PREPARE, rows, halo) if layer.has_prepare else (rows, halo)
    if layer.attends:
        prepared = (*prepared, run(Segment.MAXIMUM, *prepared))
    summed = run(Segment.AGGREGATE, *prepared)
    found: torch.Tensor = run(Segment.UPDATE, summed, *([rows] if layer.uses_own_rows else []))
    return found


def _features(layer: LayerSpec, rows: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if not layer.sparse_input:
        return torch.zeros(rows, layer.width_in, dtype=dtype, device=device)
    pointers, columns = torch.arange(rows + 1, dtype=torch.int32), torch.zeros(rows, dtype=torch.int32)
    values = torch.ones(rows, dtype=dtype)
    width = layer.width_in + layer.centred_input
    return torch.sparse_csr_tensor(pointers, columns, values, size=(rows, width)).to(device)
