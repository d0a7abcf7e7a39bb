"""Epilogues, rows added by index, sparse rows, kernels by name."""

import numpy as np
import pytest
import torch
from scipy import sparse

from executor.kernels.edges.aggregation import NumbaAggregation, TorchAggregation, kernel_named
from executor.kernels.edges.sparse import SparseRows, from_scipy, to_scipy
from executor.kernels.edges.structure import Scaling, Structure
from executor.kernels.epilogue import activation_backward, bias_activation
from executor.kernels.rows import add_rows, gather_rows
from simgnn.errors import ConfigError
from simgnn.graph.csr import CSR

DTYPES = [torch.float32, torch.float64]
FOLLOWS = {"relu": torch.relu, "none": lambda rows: rows, "elu": torch.nn.functional.elu}


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
@pytest.mark.parametrize("activation", ["relu", "none", "elu"])
@pytest.mark.parametrize("shape", [(2500, 7), (3, 300), (0, 4)])
def test_bias_and_activation_in_one_pass(dtype, activation, shape):
    rows, added, bias = (randn(*size, seed=k, dtype=dtype) for k, size in enumerate((shape, shape, shape[1:])))
    plain = rows + bias
    both = rows + bias + added
    follows = FOLLOWS[activation]
    torch.testing.assert_close(bias_activation(rows, bias, activation), follows(plain))
    torch.testing.assert_close(bias_activation(rows, bias, activation, added), follows(both))
    given = rows.clone()
    assert bias_activation(given, bias, activation, out=given) is given
    torch.testing.assert_close(given, follows(plain))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2500, 7), (1024, 32), (0, 4)])
def test_backward_of_bias_and_activation(dtype, shape):
    gradient, output = randn(*shape, dtype=dtype), randn(*shape, seed=1, dtype=dtype).relu()
    masked, sums = activation_backward(gradient, output)
    torch.testing.assert_close(masked, gradient * (output > 0))
    torch.testing.assert_close(sums, masked.sum(0), rtol=1e-5, atol=1e-4)
    same, sums = activation_backward(gradient, None)
    assert same is gradient
    torch.testing.assert_close(sums, gradient.sum(0), rtol=1e-5, atol=1e-4)


def test_nan_passes_through_every_pass():
    rows = torch.tensor([[float("nan"), -1.0]])
    out = bias_activation(rows, torch.zeros(2), "relu")
    assert torch.isnan(out[0, 0])
    assert out[0, 1] == 0
    masked, _ = activation_backward(torch.ones(1, 2), out)
    assert masked.tolist() == [[1.0, 0.0]]


def test_column_sums_do_not_depend_on_the_number_of_threads():
    gradient, before = randn(5000, 33, dtype=torch.float32), torch.get_num_threads()
    sums = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        sums.append(activation_backward(gradient, None)[1])
    torch.set_num_threads(before)
    assert torch.equal(*sums)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
def test_received_rows_add_up_in_the_order_of_senders(dtype):
    target, rows = randn(6, 5, dtype=dtype), randn(5, 5, seed=1, dtype=dtype)
    index = torch.tensor([0, 3, 3, 5, 0], dtype=torch.int32)
    expected = target.clone()
    for place, row in zip(index.tolist(), rows, strict=True):
        expected[place] += row
    assert add_rows(target, index, rows, [2, 0, 2, 1]) is target
    assert torch.equal(target, expected)
    assert torch.equal(gather_rows(target, index), target[index.long()])


def test_rows_that_are_not_there_are_refused():
    with pytest.raises(IndexError, match=r"0\.\.2"):
        add_rows(torch.zeros(3, 2), torch.tensor([3]), torch.ones(1, 2), [1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(40, 90), (5, 3), (4, 1)])
def test_sparse_rows_times_weights_and_their_transpose(dtype, shape):
    matrix = sparse.csr_array(sparse.random(*shape, 0.2, random_state=1, format="csr"))
    rows = SparseRows(from_scipy(matrix, dtype))
    weight, gradient = randn(shape[1], 13, dtype=dtype), randn(shape[0], 13, seed=2, dtype=dtype)
    dense = torch.from_numpy(matrix.toarray()).to(dtype)
    torch.testing.assert_close(rows.times(weight), dense @ weight)
    torch.testing.assert_close(rows.transposed_times(gradient), dense.T @ gradient)
    assert abs(to_scipy(rows.matrix) - matrix).max() < 1e-6


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", [NumbaAggregation, TorchAggregation])
@pytest.mark.parametrize("halo_rows", [0, 7])
@pytest.mark.parametrize("scaled", ["none", "some", "all"])
def test_each_kernel_aggregates_forward_and_backward(dtype, kernel, halo_rows, scaled):
    n, width = 19, 21
    pattern = sparse.csr_array(sparse.random(n, n + halo_rows, 0.2, random_state=4, format="csr"))
    pattern.sort_indices()
    structure = Structure.from_csr(CSR(pattern.indptr.astype(np.int64), pattern.indices, n + halo_rows))
    source, destination, own = (randn(k, seed=k, dtype=dtype).abs() + 0.1 for k in (n + halo_rows, n, n))
    scaling = {
        "none": Scaling(),
        "some": Scaling(destination=destination),
        "all": Scaling(source, destination, own),
    }[scaled]
    weights = torch.from_numpy((pattern.toarray() != 0).astype(np.float64)).to(dtype)
    if scaled == "all":
        weights = weights * source
        weights[:, :n] += torch.diag(own)
    if scaled != "none":
        weights = weights * destination[:, None]
    inner, halo = randn(n, width, seed=1, dtype=dtype), randn(halo_rows, width, seed=2, dtype=dtype)
    made = kernel(structure, structure.transposed(), scaling, None)
    torch.testing.assert_close(made.forward(inner, halo if halo_rows else None), weights @ torch.cat((inner, halo)))
    gradient = randn(n, width, seed=3, dtype=dtype)
    expected = weights.T @ gradient
    d_inner, d_halo = made.backward(gradient, True, halo_rows > 0)
    torch.testing.assert_close(d_inner, expected[:n])
    if halo_rows:
        torch.testing.assert_close(d_halo, expected[n:])
    assert made.backward(gradient, False, False) == (None, None)


def test_kernels_have_names():
    assert kernel_named(None, torch.device("cpu")) is NumbaAggregation
    assert kernel_named(None, torch.device("cuda")) is TorchAggregation
    assert kernel_named("torch", torch.device("cpu")) is TorchAggregation
    with pytest.raises(ConfigError, match="expected one of numba, torch"):
        kernel_named("fast", torch.device("cpu"))
    with pytest.raises(ConfigError, match="CPU only"):
        kernel_named("numba", torch.device("cuda"))
