"""Rows less their mean that stay sparse: operations, layers and gradients give what they give for dense rows."""

import numpy as np
import pytest
import torch
from layer_cases import CASES, adjacency, graph, layer, randn, run, split
from scipy import sparse

from executor.kernels.edges.sparse import SparseRows, from_scipy
from executor.layers.affine import affine, product
from executor.minibatch.data import _put_rows
from executor.state.task import load_task
from simgnn.graph.graph import CentredRows
from simgnn.partition.local.shards import Shard

CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def counts(rows: int, columns: int) -> torch.Tensor:
    """Mostly zeros, but what is not shares a large part."""
    return torch.where(randn(rows, columns) > 0.8, randn(rows, columns, seed=1).abs() + 5, 0)


def extended(rows: torch.Tensor, often: torch.Tensor) -> torch.Tensor:
    """CSR rows with what tells how often the mean is taken off, beside them."""
    return from_scipy(sparse.csr_array(torch.cat((rows, often[:, None]), 1).numpy()), torch.float64)


def layer_of(kind: str, order: str):
    options = {"heads": 1, "prepared_width": 5} if kind == "gat" else {}
    return layer(kind, 40, 5, order, sparse_input=True, centred_input=True, **options)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("shape", [(40, 90), (5, 3), (4, 1)])
def test_products_and_their_transpose(shape, compiled, monkeypatch):
    monkeypatch.setattr(SparseRows, "_compiled", compiled)
    x, often = counts(*shape), randn(shape[0], seed=3)
    mean = x.mean(0)
    rows, dense = SparseRows(extended(x, often), mean), x - often[:, None] * mean
    weight, gradient = randn(shape[1], 13), randn(shape[0], 13, seed=2)
    torch.testing.assert_close(rows.times(weight), dense @ weight, **CLOSE)
    torch.testing.assert_close(rows.transposed_times(gradient), dense.T @ gradient, **CLOSE)
    assert rows.transposed_times(gradient).shape == weight.shape


def test_a_matrix_without_the_column_beside_it_is_no_centred_one():
    with pytest.raises(AssertionError, match="a column beside"):
        SparseRows(from_scipy(sparse.csr_array(np.eye(3)), torch.float64), torch.zeros(3, dtype=torch.float64))


def test_gradients_of_weights_by_finite_differences():
    x = counts(7, 6)
    rows = SparseRows(extended(x, torch.ones(7, dtype=torch.float64)), x.mean(0))
    weight, bias = randn(6, 3).requires_grad_(), randn(3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda weight: product(rows, weight), (weight,))
    assert torch.autograd.gradcheck(lambda weight, bias: affine([(rows, weight)], bias), (weight, bias))


@pytest.mark.parametrize(("kind", "order"), CASES)
@pytest.mark.parametrize("complete", [True, False], ids=["edge-cut", "vertex-cut"])
def test_layers_give_what_they_give_for_dense_rows(kind, order, complete):
    csr, made = graph(), layer_of(kind, order)
    x = counts(30, 40)
    mean = x.mean(0)
    local, degree = split(csr, 18)
    over = adjacency(local, degree, complete=complete)
    ones = torch.ones(30, dtype=torch.float64)
    dense_out = run(made, over, (x - mean)[:18], (x - mean)[18:])
    made.mean = mean
    sparse_out = run(made, over, extended(x[:18], ones[:18]), extended(x[18:], ones[18:]))
    torch.testing.assert_close(sparse_out, dense_out, **CLOSE)
    inputs = list(made.parameters())
    for got, wanted in zip(_gradients(sparse_out, inputs), _gradients(dense_out, inputs), strict=True):
        torch.testing.assert_close(got, wanted, **CLOSE)


def test_attention_prepares_centred_rows():
    made, x = layer_of("gat", "transform-first"), counts(12, 40)
    dense = made.prepare(x - x.mean(0))
    made.mean = x.mean(0)
    torch.testing.assert_close(made.prepare(extended(x, torch.ones(12, dtype=torch.float64))), dense, **CLOSE)


def _gradients(out: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return list(torch.autograd.grad((out * randn(*out.shape, seed=9)).sum(), inputs))


@pytest.mark.parametrize("sparse_input", [True, False])
def test_a_rank_gets_its_shard_as_the_program_was_planned(sparse_input):
    rows = sparse.csr_array(counts(6, 4).numpy())
    centred, mask = CentredRows.of(rows), np.ones(6, bool)
    shard = Shard(centred, np.zeros(6, np.int64), mask, mask, mask)
    task = load_task(shard, torch.float64, torch.device("cpu"), 6, 2, False, sparse_input)
    assert (task.feature_mean is not None) == sparse_input
    if sparse_input:
        assert task.features.layout == torch.sparse_csr
        weight = randn(4, 3)
        found = SparseRows(task.features, task.feature_mean).times(weight)
        torch.testing.assert_close(found, torch.from_numpy(centred.toarray()) @ weight, **CLOSE)
    else:
        torch.testing.assert_close(task.features, torch.from_numpy(centred.toarray()), **CLOSE)


def test_a_store_of_input_rows_holds_dense_ones():
    rows = sparse.csr_array(counts(9, 4).numpy())
    centred, held = CentredRows.of(rows), np.zeros((9, 4))
    _put_rows(held, np.array([7, 1, 3, 8, 0]), centred[2:7])
    np.testing.assert_allclose(held[[7, 1, 3, 8, 0]], centred.toarray()[2:7], rtol=0, atol=1e-10)
