"""Stack distances against a plain LRU stack; reverse Cuthill-McKee; the digest."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from simgnn.graph.build import assemble_edges
from simgnn.graph.csr import CSR
from simgnn.graph.graph import Graph
from simgnn.graph.locality import BINS, reuse_profile, reverse_cuthill_mckee
from simgnn.graph.store import graph_digest


def by_stack(indices, bins):
    """The definition: a list with the row last read first."""
    stack, counts = [], np.zeros(bins)
    for row in indices:
        if row in stack:
            distance = stack.index(row) + 1
            counts[next(k for k in range(bins) if 2**k >= distance)] += 1
            stack.remove(row)
        stack.insert(0, row)
    return np.cumsum(counts) / max(len(indices), 1)


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n - 1), max_size=700))))
@settings(max_examples=60, deadline=None)
def test_reuse_profile_is_an_lru_stack(drawn):
    columns, stream = drawn
    csr = CSR(np.array([0, len(stream)]), np.array(stream, np.int32), columns)
    np.testing.assert_allclose(reuse_profile(csr), by_stack(stream, BINS))


def test_reuse_profile_by_hand():
    csr = CSR(np.array([0, 3, 6]), np.array([0, 0, 1, 2, 0, 3], np.int32), 4)
    # distances: 0 first, 0 at once (1), 1 first, 2 first, 0 after two others (3), 3 first
    assert reuse_profile(csr, 4).tolist() == pytest.approx([1 / 6, 1 / 6, 2 / 6, 2 / 6])


def test_reuse_profile_of_no_edges():
    assert not reuse_profile(CSR(np.zeros(4, np.int64), np.empty(0, np.int32), 3)).any()


def test_a_long_stream_renumbers_its_moments():
    stream = np.random.default_rng(0).integers(0, 70, 5000).astype(np.int32)
    csr = CSR(np.array([0, len(stream)]), stream, 70)
    np.testing.assert_allclose(reuse_profile(csr), by_stack(stream.tolist(), BINS))


def bandwidth(csr, order):
    place = np.empty(csr.rows, np.int64)
    place[order] = np.arange(csr.rows)
    row = np.repeat(np.arange(csr.rows), csr.degrees())
    return int(np.abs(place[row] - place[csr.indices]).max())


@pytest.mark.parametrize("symmetrise", [True, False])
def test_reverse_cuthill_mckee_narrows_a_shuffled_path(symmetrise):
    shuffled = np.random.default_rng(1).permutation(50)
    csr = assemble_edges(shuffled[:-1], shuffled[1:], 53, symmetrise).csr
    order = reverse_cuthill_mckee(csr)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(53))
    assert bandwidth(csr, order) == 1


def test_digest_is_of_arrays_not_of_names():
    features = np.arange(6, dtype=np.float32).reshape(3, 2)
    graph = Graph("a", assemble_edges([0, 1], [1, 2], 3).csr, features, np.array([0, 1, 0]), classes=2)
    digest = graph_digest(graph)
    assert digest == graph_digest(replace(graph, name="b", notes=("mended",)))
    assert len(digest) == 64
    changed = [
        replace(graph, csr=assemble_edges([0, 1], [1, 2], 4).csr),
        replace(graph, csr=assemble_edges([0, 2], [1, 0], 3).csr),
        replace(graph, features=features.astype(np.float16)),
        replace(graph, features=features + 1),
        replace(graph, features=sparse.csr_array(features)),
        replace(graph, labels=np.array([0, 1, 1])),
        replace(graph, train_mask=np.array([True, False, False])),
        replace(graph, test_mask=np.array([True, False, False])),
        replace(graph, classes=3),
    ]
    assert len({digest, *(graph_digest(other) for other in changed)}) == len(changed) + 1
