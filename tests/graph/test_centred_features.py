"""Sparse rows less their mean: what is picked of them and what is made dense is what dense rows give."""

import numpy as np
import pytest
from scipy import sparse

from simgnn.graph.graph import CentredRows


def counts(rows: int, columns: int) -> sparse.csr_array:
    made = sparse.random_array((rows, columns), density=0.2, format="csr", rng=np.random.default_rng(rows))
    return sparse.csr_array(made + sparse.csr_array(np.outer(np.arange(rows) % 3, np.arange(columns) % 2)))


@pytest.mark.parametrize("chunk", [3, 1024])
@pytest.mark.parametrize("shape", [(17, 6), (5, 1), (1, 4)])
def test_rows_picked_and_made_dense(shape, chunk, monkeypatch):
    monkeypatch.setattr("simgnn.graph.graph.CHUNK_ROWS", chunk)
    plain = counts(*shape)
    dense = plain.toarray() - plain.toarray().mean(axis=0)
    centred = CentredRows.of(plain)
    assert centred.shape == shape
    np.testing.assert_allclose(centred.toarray(), dense, rtol=0, atol=1e-10)
    picked = np.arange(shape[0])[::-2]
    np.testing.assert_allclose(centred[picked].toarray(), dense[picked], rtol=0, atol=1e-10)
    np.testing.assert_allclose(centred[1:4].toarray(), dense[1:4], rtol=0, atol=1e-10)
    assert centred.toarray(np.float32).dtype == np.float32


def test_sums_of_rows_tell_how_often_the_mean_is_taken_off():
    plain = counts(17, 6)
    dense = plain.toarray() - plain.toarray().mean(axis=0)
    centred = CentredRows.of(plain)
    weights = np.random.default_rng(0).standard_normal((5, 17))
    summed = CentredRows(sparse.csr_array(sparse.csr_array(weights) @ centred.extended), centred.mean)
    np.testing.assert_allclose(summed.toarray(), weights @ dense, rtol=0, atol=1e-10)


def test_means_are_taken_in_float64():
    rows = sparse.csr_array(np.full((1 << 15, 1), 1e-4, dtype=np.float32) + np.float32(1))
    exact = rows.toarray().astype(np.float64).mean()
    assert CentredRows.of(rows).mean[0] == pytest.approx(exact, rel=1e-10)
