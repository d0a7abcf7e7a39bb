"""Aggregation and the affine segment, forward and backward: `pytest -n 0 tests/benchmarks --benchmark-only`."""

import numpy as np
import pytest
import torch

from executor.kernels.dropout import drop_out
from executor.kernels.edges.aggregation import KERNELS
from executor.layers import LocalAdjacency
from executor.layers.affine import affine
from executor.layers.tape import Tape
from simgnn.graph.load import load_graph

VERTICES, EDGES = 20_000, 200_000


@pytest.mark.parametrize("kernel", sorted(KERNELS))
@pytest.mark.parametrize("width", [16, 128])
def test_aggregate(benchmark, kernel: str, width: int) -> None:
    graph = load_graph("synthetic:communities", options={"vertices": VERTICES, "edges": EDGES})
    adjacency = LocalAdjacency(graph.csr, np.diff(graph.csr.indptr), kernel=kernel)
    aggregation, rows = adjacency.aggregation("gcn"), torch.randn(VERTICES, width)
    summed = benchmark(aggregation.forward, rows, None)
    assert summed.shape == (VERTICES, width)


@pytest.mark.parametrize("width", [16, 128])
def test_affine_forward_and_backward(benchmark, width: int) -> None:
    rows, incoming = torch.randn(VERTICES, 128), torch.randn(VERTICES, width)
    weight, bias = torch.nn.Parameter(torch.randn(128, width)), torch.nn.Parameter(torch.zeros(width))

    def both() -> torch.Tensor | None:
        with torch.no_grad():
            tape = Tape([rows])
            tape.end([affine([(rows, weight)], bias, activation="relu", call=tape)])
            return tape.backward([incoming])[0]

    assert benchmark(both).shape == rows.shape


@pytest.mark.parametrize("width", [16, 256])
@pytest.mark.parametrize("what", ["dropout", "one pass in place"])
def test_dropout_beside_a_pass(benchmark, what: str, width: int) -> None:
    """Predictions take the two for equally long; on one thread: `OMP_NUM_THREADS=1`."""
    rows, vertices = torch.ones(VERTICES, width), torch.arange(VERTICES)
    run, arguments = {"dropout": (drop_out, (rows, vertices, 7, 1)), "one pass in place": (rows.mul_, (1.0,))}[what]
    found = benchmark(run, *arguments)  # one element in 65,536 is dropped, so that rows stay numbers
    assert found.shape == (VERTICES, width)
