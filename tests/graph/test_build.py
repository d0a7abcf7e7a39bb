"""Edges to CSR: against scipy, and every bad list of edges."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from simgnn.errors import GraphError
from simgnn.graph.build import assemble_edges, index_dtype, is_symmetric, transpose_csr
from simgnn.graph.csr import CSR


@st.composite
def edge_lists(draw):
    vertices = draw(st.integers(1, 12))
    pair = st.tuples(st.integers(0, vertices - 1), st.integers(0, vertices - 1))
    edges = draw(st.lists(pair, max_size=60))
    dtype = draw(st.sampled_from([np.int32, np.int64, np.uint32, np.uint8]))
    return vertices, np.array(edges, dtype).reshape(-1, 2).T


def by_scipy(source, target, vertices, symmetrise):
    matrix = sparse.coo_array((np.ones(len(source)), (target.astype(int), source.astype(int))), (vertices, vertices))
    matrix = matrix.tolil()
    matrix.setdiag(0)
    matrix = sparse.csr_array(matrix)
    if symmetrise:
        matrix = matrix + matrix.T
    matrix.eliminate_zeros()
    matrix.sort_indices()
    return matrix


@given(edge_lists(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_build_is_what_scipy_makes_of_it(edges, symmetrise):
    vertices, (source, target) = edges
    built = assemble_edges(source, target, vertices, symmetrise)
    expected = by_scipy(source, target, vertices, symmetrise)
    np.testing.assert_array_equal(built.csr.indptr, expected.indptr)
    np.testing.assert_array_equal(built.csr.indices, expected.indices)
    assert built.csr.indptr.dtype == np.int64
    assert built.csr.indices.dtype == np.int32
    pattern = sparse.csr_array(expected != 0)
    assert built.symmetric == ((pattern != pattern.T).nnz == 0)
    assert built.self_loops == np.count_nonzero(source == target)
    assert built.self_loops + built.duplicates + built.csr.edges - built.reversed_edges == len(source)
    assert is_symmetric(built.csr) == built.symmetric


@given(edge_lists())
@settings(max_examples=60, deadline=None)
def test_transpose_twice_is_the_graph_itself(edges):
    vertices, (source, target) = edges
    csr = assemble_edges(source, target, vertices, symmetrise=False).csr
    other = transpose_csr(csr)
    expected = sparse.csr_array((np.ones(csr.edges), csr.indices, csr.indptr), (vertices, vertices)).T.tocsr()
    np.testing.assert_array_equal(other.indptr, expected.indptr)
    np.testing.assert_array_equal(other.indices, expected.indices)
    again = transpose_csr(other)
    np.testing.assert_array_equal(again.indices, csr.indices)
    np.testing.assert_array_equal(again.indptr, csr.indptr)


def test_transpose_of_a_rectangle():
    csr = CSR(np.array([0, 2, 3]), np.array([0, 3, 3], np.int32), 4)
    other = transpose_csr(csr)
    assert (other.rows, other.columns) == (4, 2)
    assert other.indptr.tolist() == [0, 1, 1, 1, 3]
    assert other.indices.tolist() == [0, 0, 1]


def test_what_was_mended_is_told():
    built = assemble_edges([0, 0, 1, 2, 2], [1, 1, 0, 2, 0], 4)
    assert built.csr.indptr.tolist() == [0, 2, 3, 4, 4]
    assert built.csr.indices.tolist() == [1, 2, 0, 0]
    assert built.notes == (
        "1 self loops dropped (the layers add their own)",
        "1 duplicate edges dropped",
        "1 reverse edges added (symmetrised)",
    )


def test_no_edges_and_isolated_vertices_are_fine():
    csr = assemble_edges([], [], 3).csr
    assert csr.indptr.tolist() == [0, 0, 0, 0]
    assert csr.edges == 0
    assert csr.indices.dtype == np.int32


def test_row_is_the_destination():
    csr = assemble_edges([0], [1], 2, symmetrise=False).csr
    assert csr.indptr.tolist() == [0, 0, 1]
    assert csr.indices.tolist() == [0]


@pytest.mark.parametrize(
    ("source", "target", "vertices", "told"),
    [
        ([], [], None, "at least 1 vertex"),
        ([], [], 0, "at least 1 vertex"),
        ([0, 5], [1, 0], 3, r"got the vertex id 5, expected 0\.\.2"),
        ([0], [-1], 3, "0 or more; got -1"),
        ([0, 1], [1], 3, "one length; got 2 and 1"),
        ([0.5], [1.0], 3, "must be integers"),
        ([[0, 1]], [[1, 0]], 3, "one dimension"),
        ([0], [10**15], None, "renumber the vertices from 0"),
        (np.array([2**63], np.uint64), [1], None, r"below 2\*\*63"),
    ],
)
def test_bad_edges_are_refused(source, target, vertices, told):
    with pytest.raises(GraphError, match=told):
        assemble_edges(source, target, vertices)


def test_ids_are_wide_only_when_they_must_be():
    assert index_dtype(2**31 - 1) is np.int32
    assert index_dtype(2**31) is np.int64


def test_wide_ids_are_refused_before_memory_is_asked_for():
    with pytest.raises(GraphError, match=r"0\.\.9"):
        assemble_edges(np.array([2**40]), np.array([1]), 10)
