"""The Numba product against dense arithmetic: dtypes, index types, widths around register blocks, scalings, halos."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy import sparse

from executor.kernels.edges.spmm import spmm
from executor.kernels.launch import balanced_rows
from executor.world.environment import threads_per_rank

TOLERANCE = {np.float32: 2e-5, np.float64: 1e-12}
WIDTHS = (1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 40, 47, 100, 256, 300, 513)


def random_csr(rows: int, columns: int, seed: int, density: float = 0.2) -> sparse.csr_array:
    matrix = sparse.csr_array(sparse.random(rows, columns, density, random_state=seed, format="csr"))
    matrix.data[:] = np.random.default_rng(seed).random(matrix.nnz)
    matrix.sort_indices()
    return matrix


@pytest.mark.parametrize(("dtype", "index"), [(np.float32, np.int32), (np.float64, np.int32), (np.float32, np.int64)])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_width_and_type_equals_the_dense_product(dtype, index, width):
    n, h = 37, 11
    matrix = random_csr(n, n + h, width)
    pattern = (matrix.toarray() != 0).astype(dtype)
    rng = np.random.default_rng(width)
    x = rng.standard_normal((n + h, width)).astype(dtype)
    source, destination, own = (rng.random(k).astype(dtype) for k in (n + h, n, n))
    expected = destination[:, None] * (own[:, None] * x[:n] + pattern @ (source[:, None] * x))
    for threads in (1, 2, 3):
        out = np.full((n, width), np.nan, dtype)
        spmm(
            matrix.indptr.astype(np.int64), matrix.indices.astype(index), x[:n].copy(), out,
            balanced_rows(matrix.indptr, threads), halo=x[n:].copy(),
            source_scale=source, destination_scale=destination, own_scale=own,
        )  # fmt: skip
        np.testing.assert_allclose(out, expected, atol=TOLERANCE[dtype], rtol=0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scaled", [False, True])
def test_edge_values_multiply_source_scales(dtype, scaled):
    matrix = random_csr(29, 23, 5)
    rng = np.random.default_rng(0)
    x, source = rng.standard_normal((23, 20)).astype(dtype), rng.random(23).astype(dtype)
    out = np.empty((29, 20), dtype)
    spmm(
        matrix.indptr.astype(np.int64), matrix.indices, x, out, balanced_rows(matrix.indptr, 2),
        values=matrix.data.astype(dtype), source_scale=source if scaled else None,
    )  # fmt: skip
    expected = matrix.toarray() @ (x * source[:, None] if scaled else x)
    np.testing.assert_allclose(out, expected, atol=TOLERANCE[dtype], rtol=0)


def test_rows_without_edges_are_zero_or_their_own_term():
    indptr, indices = np.array([0, 0, 2, 2], np.int64), np.array([0, 2], np.int32)
    x = np.arange(12, dtype=np.float64).reshape(3, 4) + 1
    out = np.empty_like(x)
    spmm(indptr, indices, x, out, balanced_rows(indptr, 2))
    np.testing.assert_array_equal(out, [np.zeros(4), x[0] + x[2], np.zeros(4)])
    spmm(indptr, indices, x, out, balanced_rows(indptr, 2), own_scale=np.array([2.0, 0.0, 1.0]))
    np.testing.assert_array_equal(out, [2 * x[0], x[0] + x[2], x[2]])


def test_an_own_scale_of_zero_reads_nothing_of_the_row():
    x = np.array([[np.nan], [1.0]])
    out = np.empty_like(x)
    spmm(np.array([0, 1, 2]), np.array([1, 1], np.int32), x, out, np.array([0, 2]), own_scale=np.zeros(2))
    np.testing.assert_array_equal(out, [[1.0], [1.0]])


def test_no_rows_and_no_columns():
    empty = np.zeros(1, np.int64)
    spmm(empty, np.empty(0, np.int32), np.empty((0, 4)), np.empty((0, 4)), balanced_rows(empty, 2))
    spmm(np.zeros(4, np.int64), np.empty(0, np.int32), np.empty((3, 0)), np.empty((3, 0)), np.array([0, 3]))


def test_a_part_of_the_pointers_gives_a_part_of_the_rows():
    matrix = random_csr(31, 31, 9)
    pattern = (matrix.toarray() != 0).astype(np.float64)
    x = np.random.default_rng(1).standard_normal((31, 6))
    pointers = matrix.indptr.astype(np.int64)[10:]
    out = np.empty((21, 6))
    spmm(pointers, matrix.indices, x, out, balanced_rows(pointers - pointers[0], 2))
    np.testing.assert_allclose(out, (pattern @ x)[10:], atol=1e-12)


def test_results_do_not_depend_on_the_number_of_threads():
    matrix = random_csr(200, 200, 3, 0.1)
    x = np.random.default_rng(2).standard_normal((200, 33), dtype=np.float32)
    results = []
    for threads in (1, 2, 5):
        out = np.empty_like(x)
        spmm(matrix.indptr.astype(np.int64), matrix.indices, x, out, balanced_rows(matrix.indptr, threads))
        results.append(out)
    assert all(np.array_equal(results[0], other) for other in results[1:])


def test_kernels_may_be_called_from_several_threads_at_once():
    matrix = random_csr(300, 300, 3, 0.1)
    x = np.random.default_rng(2).standard_normal((300, 40), dtype=np.float32)
    pointers, bounds = matrix.indptr.astype(np.int64), balanced_rows(matrix.indptr, 2)

    def product() -> np.ndarray:
        out = np.empty_like(x)
        for _ in range(20):
            spmm(pointers, matrix.indices, x, out, bounds)
        return out

    with ThreadPoolExecutor(3) as pool:
        results = [future.result() for future in [pool.submit(product) for _ in range(6)]]
    assert all(np.array_equal(results[0], other) for other in results[1:])


def test_pieces_of_rows_cover_all_and_share_the_edges():
    degrees = np.r_[np.full(1000, 1), np.full(10, 500)]
    indptr = np.r_[0, np.cumsum(degrees)].astype(np.int64)
    bounds = balanced_rows(indptr, 4)
    assert bounds[0] == 0
    assert bounds[-1] == 1010
    work = np.diff(indptr[bounds] + 2 * bounds)
    assert work.max() <= work.mean() + 502
    assert np.all(np.diff(balanced_rows(np.array([0, 9]), 4)) >= 0)


def test_threads_are_shared_by_the_ranks_of_a_host():
    assert threads_per_rank(None, 10**6) == 1
    assert threads_per_rank(None, 1) >= 1
