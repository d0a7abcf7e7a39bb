"""Layers on CUDA against the same layers on the CPU."""

import pytest
import torch
from layer_cases import CASES, adjacency, graph, layer, randn, run, split
from scipy import sparse

from executor.kernels.edges.sparse import from_scipy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here: cuSPARSE kernels are not executed"),
]


@pytest.mark.parametrize(("kind", "order"), CASES)
@pytest.mark.parametrize("sparse_input", [False, True])
def test_layer_and_gradients_equal_those_of_the_cpu(kind, order, sparse_input):
    local, degree = split(graph(), 18)
    made = layer(kind, 12, 5, order, sparse_input=sparse_input)
    twin = layer(kind, 12, 5, order, sparse_input=sparse_input).cuda()
    x = torch.where(randn(30, 12) > 0.5, randn(30, 12, seed=1), 0)
    parts = (x[:18].contiguous(), x[18:].contiguous())
    if sparse_input:
        parts = tuple(from_scipy(sparse.csr_array(part.numpy()), torch.float64) for part in parts)
    weights = randn(18, 5, seed=9)
    for module, device in ((made, "cpu"), (twin, "cuda")):
        rows = [part.to(device) for part in parts]
        if not sparse_input:
            rows = [part.detach().requires_grad_() for part in rows]
        out = run(module, adjacency(local, degree, device=device), *rows)
        (out * weights.to(device)).sum().backward()
        if module is made:
            expected, leaves = out, rows
        else:
            torch.testing.assert_close(out.cpu(), expected)
            if not sparse_input:
                for got, wanted in zip(rows, leaves, strict=True):
                    torch.testing.assert_close(got.grad.cpu(), wanted.grad)
    for got, wanted in zip(twin.parameters(), made.parameters(), strict=True):
        torch.testing.assert_close(got.grad.cpu(), wanted.grad)
