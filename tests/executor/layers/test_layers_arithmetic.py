"""Layers against their formulas, with gradients; halo rows, kernels, sparse and constant inputs change nothing."""

import tracemalloc

import numpy as np
import pytest
import torch
from layer_cases import CASES, adjacency, dense, graph, layer, randn, run, split
from scipy import sparse

from executor.kernels.edges.sparse import from_scipy
from executor.layers import aggregate, build_layers
from executor.layers.builtin import REMEMBERED
from simgnn.errors import ConfigError
from simgnn.model.spec import LayerSpec, parameter_shapes


def formula(made, matrix: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    degree = matrix.sum(1)
    named = dict(made.named_parameters())
    if made.spec.kind == "gcn":
        root = (degree + 1).rsqrt()
        weights = root[:, None] * (matrix + torch.eye(len(matrix), dtype=x.dtype)) * root
        out = weights @ x @ named["weight"] + named["bias"]
    elif made.spec.kind == "sage":
        mean = matrix @ x / degree.clamp(min=1)[:, None]
        out = x @ named["weight_self"] + mean @ named["weight_neighbor"] + named["bias"]
    else:
        total = x + matrix @ x
        inside = torch.relu(total @ named["mlp.0.weight"].t() + named["mlp.0.bias"])
        out = inside @ named["mlp.2.weight"].t() + named["mlp.2.bias"]
    return torch.relu(out) if made.spec.activation else out


def gradients(out: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return list(torch.autograd.grad((out * randn(*out.shape, seed=9)).sum(), inputs))


@pytest.mark.parametrize(("kind", "order"), CASES)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("activation", [True, False])
@pytest.mark.parametrize("kernel", ["numba", "torch"])
def test_layer_equals_its_formula_and_so_do_its_gradients(kind, order, symmetric, activation, kernel):
    csr, made = graph(symmetric=symmetric), layer(kind, 7, 5, order, activation=activation)
    x = randn(30, 7).requires_grad_()
    inputs = [x, *made.parameters()]
    out = run(made, adjacency(csr, kernel=kernel), x)
    expected = formula(made, dense(csr), x)
    torch.testing.assert_close(out, expected)
    for got, wanted in zip(gradients(out, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize(("kind", "order"), CASES)
@pytest.mark.parametrize("kernel", ["numba", "torch"])
def test_gradients_of_own_and_halo_rows_by_finite_differences(kind, order, kernel):
    local, degree = split(graph(14, density=0.3), 9)
    over, made = adjacency(local, degree, kernel=kernel), layer(kind, 4, 3, order, activation=False)
    own, halo = randn(9, 4).requires_grad_(), randn(5, 4, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda own, halo, *_: run(made, over, own, halo), (own, halo, *made.parameters()))


@pytest.mark.parametrize(("kind", "order"), CASES)
def test_halo_rows_in_a_second_tensor_change_nothing(kind, order):
    csr, made = graph(), layer(kind, 7, 5, order)
    x = randn(30, 7)
    local, degree = split(csr, 18)
    torch.testing.assert_close(run(made, adjacency(local, degree), x[:18], x[18:]), run(made, adjacency(csr), x)[:18])


@pytest.mark.parametrize(("kind", "order"), CASES)
def test_sparse_input_rows_give_what_dense_ones_give(kind, order):
    csr, made = graph(), layer(kind, 40, 5, order, sparse_input=True)
    x = torch.where(randn(30, 40) > 1, randn(30, 40, seed=1), 0)
    local, degree = split(csr, 18)
    over = adjacency(local, degree)

    def sparse_rows(rows: torch.Tensor) -> torch.Tensor:
        return from_scipy(sparse.csr_array(rows.numpy()), torch.float64)

    sparse_out, dense_out = run(made, over, sparse_rows(x[:18]), sparse_rows(x[18:])), run(made, over, x[:18], x[18:])
    torch.testing.assert_close(sparse_out, dense_out)
    inputs = list(made.parameters())
    for got, wanted in zip(gradients(sparse_out, inputs), gradients(dense_out, inputs), strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("scaling", ["sum", "mean", "gcn"])
def test_sums_of_sparse_rows_are_made_once_and_not_copied(scaling: str) -> None:
    """As large as they are, a copy would be the peak of a run: of what is sparse, sums have most."""
    local, degree = split(graph(400, density=0.05), 300)
    over = adjacency(local, degree)
    rows = sparse.random_array((400, 5000), density=0.01, format="csr", rng=np.random.default_rng(5))
    own, halo = (from_scipy(part, torch.float64) for part in (rows[:300], rows[300:]))
    over.scaling(scaling)
    tracemalloc.start()
    found = aggregate(over, own, halo, scaling)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    parts = found.values(), found.col_indices(), found.crow_indices()
    assert peak < 1.2 * sum(part.numel() * part.element_size() for part in parts)
    torch.testing.assert_close(found.to_dense(), aggregate(over, own.to_dense(), halo.to_dense(), scaling))


def test_a_constant_sparse_matrix_is_transposed_once_and_few_are_kept():
    made = layer("gcn", 6, 3, "transform-first")
    matrices = [torch.eye(6, dtype=torch.float64).to_sparse_csr() for _ in range(REMEMBERED + 2)]
    for matrix in matrices:
        assert made.operand(matrix) is made.operand(matrix.detach())
    assert len(made._constants) == REMEMBERED


def test_a_constant_aggregate_gets_no_gradient():
    csr, made = graph(), layer("gcn", 7, 5)
    constant = aggregate(adjacency(csr), randn(30, 7), scaling="gcn")
    assert not constant.requires_grad
    made.update(constant).sum().backward()
    assert made.weight.grad is not None


def test_gin_keeps_a_transpose_of_the_rows_that_it_multiplies_only():
    made = layer("gin", 6, 5, "aggregate-first", sparse_input=True)
    own, summed = (torch.eye(6, dtype=torch.float64).to_sparse_csr() for _ in range(2))
    torch.testing.assert_close(made.update(summed, own), made.update(*(2 * [torch.eye(6, dtype=torch.float64)])))
    assert len(made._constants) == 1


def test_symmetric_graph_without_halo_shares_its_arrays_with_the_transpose():
    assert (one := adjacency(graph())).transpose is one.structure
    assert (other := adjacency(graph(symmetric=False))).transpose is not other.structure


def test_float32_and_an_empty_rank():
    csr, degree = split(graph(), 0)
    over = adjacency(csr, degree, dtype=torch.float32)
    (made,) = build_layers([LayerSpec(1, "gcn", 7, 5)], seed=0)
    x = torch.randn(30, 7, requires_grad=True)
    out = made.update(made.aggregate(over, x[:0], x))
    assert out.shape == (0, 5)
    out.sum().backward()
    assert torch.equal(x.grad, torch.zeros(30, 7))


def test_parameters_start_alike_for_every_rank_and_dtype_and_have_the_specified_shapes():
    specs = [LayerSpec(k + 1, kind, 6, 4, hidden=5) for k, kind in enumerate(("gcn", "sage", "gin"))]
    one, again, double = build_layers(specs, 1), build_layers(specs, 1), build_layers(specs, 1, torch.float64)
    for a, b, c in zip(one.parameters(), again.parameters(), double.parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c.float())
    assert not torch.equal(one[0].weight, build_layers(specs, 2)[0].weight)
    assert one[0].weight.abs().max() <= (6 / 10) ** 0.5
    assert torch.count_nonzero(one[0].bias) == 0
    for made, spec in zip(one, specs, strict=True):
        assert [(name, tuple(p.shape)) for name, p in made.named_parameters()] == list(parameter_shapes(spec))


def test_unknown_scaling_is_refused():
    with pytest.raises(ConfigError, match="expected one of gcn, mean, sum"):
        aggregate(adjacency(graph()), randn(30, 2), scaling="max")
