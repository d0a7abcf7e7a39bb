"""Run every kernel of a mini-batch once, on a handful of rows: see :mod:`executor.state.warmup`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from executor.handlers.segments import run_on_tape
from executor.kernels.rows import move_rows
from executor.state.model import SampledNetwork
from executor.state.optimizer import FlatOptimizer
from executor.state.task import Task
from executor.state.warmup import ring, warm_up_torch
from simgnn.graph.csr import CSR
from simgnn.model.spec import LayerSpec
from simgnn.partition.local.serving import Serving
from simgnn.program.kinds import Segment
from simgnn.sampling.draw.parted import HostStructure, Requester
from simgnn.sampling.draw.sampler import Sampler
from simgnn.sampling.draw.seeds import epoch_order

VERTICES = 6


def warm_up_batches(
    layers: Sequence[LayerSpec],
    classes: int,
    multilabel: bool,
    settings: Mapping[str, Any],
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Train one step on a batch of a ring of six vertices."""
    warm_up_torch(layers, dtype, device)
    graph, seeds = ring(VERTICES), np.array([0, 3])
    seeds.setflags(write=False)  # as those of a run are, which is mapped
    epoch_order(seeds, 0, 0, 0)
    batch = Sampler(graph, [1] * len(layers)).sample(seeds, 0)
    _draw_of_parts(graph)
    network = SampledNetwork(layers, 0, dtype, device)
    optimizer = FlatOptimizer(network.layers, settings, counted=True)
    assert optimizer.count is not None
    table = torch.zeros((VERTICES, layers[0].width_in), dtype=dtype)
    rows = torch.zeros((len(batch.vertices), layers[0].width_in), dtype=dtype, device=device)
    move_rows(table, np.asarray(batch.vertices), rows, np.arange(len(rows)))
    move_rows(table, None, rows, np.arange(len(rows)))
    with torch.no_grad():
        for layer, block in zip(layers, reversed(batch.blocks), strict=True):
            value = tuple(torch.from_numpy(part).to(device) for part in (block.indptr, block.sources))
            rows = _layer(network, layer, value, rows)
    every = torch.arange(len(rows), device=device)
    labels = torch.zeros((len(rows), classes) if multilabel else len(rows), dtype=dtype if multilabel else torch.int64)
    task = Task(table, labels.to(device), (every, every[:0], every[:0]), len(rows), classes, multilabel)
    task.batch_loss(rows, every)
    optimizer.count.fill_(len(rows))
    optimizer.step()


def _draw_of_parts(graph: CSR) -> None:
    """Draw one hop over a structure that this process holds alone."""
    structure = HostStructure.of(graph, np.zeros(VERTICES, np.int32), Serving((0,)), 0)
    requester = Requester(structure, np.zeros(1, np.int64), 1, (1,))
    requester.begin(np.array([0, 3]), 0)
    asked, none = requester.ask(), np.zeros(0, np.int64)
    requester.stitch(asked, requester.draw(asked), none.astype(np.int32), none)


def _layer(
    network: SampledNetwork, layer: LayerSpec, block: tuple[torch.Tensor, ...], rows: torch.Tensor
) -> torch.Tensor:

    def run(segment: Segment, *read: Any) -> torch.Tensor:
        function = network.segment(layer.index, segment)
        wanted = [isinstance(value, torch.Tensor) for value in read]
        (output,), tape = run_on_tape(function, list(read), wanted)
        tape.backward([torch.zeros_like(output)])
        return output

    prepared = run(Segment.PREPARE, rows) if layer.has_prepare else rows
    maxima = [network.segment(layer.index, Segment.MAXIMUM)(block, prepared)] if layer.attends else []
    summed = run(Segment.AGGREGATE, block, prepared, *maxima)
    return run(Segment.UPDATE, summed, *([rows] if layer.uses_own_rows else []))
