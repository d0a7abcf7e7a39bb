"""The .npz format: what it keeps, and every way in which a file can be bad."""

import json

import numpy as np
import pytest
from scipy import sparse

from simgnn.errors import GraphError
from simgnn.graph.load import load_graph
from simgnn.graph.readers.npz import read_npz


def write(path, arrays, **changes):
    np.savez_compressed(path, **{key: value for key, value in {**arrays, **changes}.items() if value is not None})
    return path


def test_everything_is_kept(tmp_path, arrays):
    path = write(tmp_path / "small.npz", arrays, node_year=np.arange(5))
    path.with_suffix(".json").write_text(json.dumps({"name": "tiny", "num_classes": 4, "labels_kind": "real"}))
    graph = load_graph("small.npz", base=tmp_path)
    assert (graph.name, graph.vertices, graph.edges, graph.classes, graph.multilabel) == ("tiny", 5, 6, 4, False)
    assert graph.features.dtype == np.float16
    np.testing.assert_array_equal(graph.features, arrays["feat"])
    np.testing.assert_array_equal(graph.csr.indices, arrays["indices"])
    np.testing.assert_array_equal(graph.validation_mask, arrays["val_mask"])
    assert graph.labels.dtype == np.int64
    assert graph.symmetric
    assert graph.notes == ()
    assert graph.facts().train_vertices == 2


def test_without_json_the_file_gives_the_name(tmp_path, arrays):
    graph = read_npz(write(tmp_path / "small.npz", arrays))
    assert (graph.name, graph.classes) == ("small", 3)


def test_several_labels_a_vertex(tmp_path, arrays):
    labels = np.array([[1, 0], [1, 1], [0, 0], [0, 1], [1, 0]], np.uint8)
    graph = read_npz(write(tmp_path / "small.npz", arrays, labels=labels))
    assert graph.multilabel
    assert graph.classes == 2
    assert graph.labels.dtype == np.bool_


def test_sparse_features_stay_sparse(tmp_path, arrays):
    matrix = sparse.csr_array(np.eye(5, 3, dtype=np.float32))
    parts = {
        "feat": None,
        "feat_data": matrix.data.astype(np.float16),
        "feat_indices": matrix.indices,
        "feat_indptr": matrix.indptr.astype(np.int64),
        "feat_shape": np.array(matrix.shape),
    }
    graph = read_npz(write(tmp_path / "small.npz", arrays, **parts))
    assert graph.sparse_features
    assert isinstance(graph.features, sparse.csr_array)
    assert graph.features.dtype == np.float32
    assert graph.facts().feature_nonzeros == 3
    parts["feat_data"] = np.array([1, np.inf, 1], np.float16)
    with pytest.raises(GraphError, match="vertex 1 has inf in column 1"):
        read_npz(write(tmp_path / "small.npz", arrays, **parts))
    with pytest.raises(GraphError, match="missing: feat_shape"):
        read_npz(write(tmp_path / "small.npz", arrays, **{**parts, "feat_shape": None}))
    with pytest.raises(GraphError, match=r"do not form a CSR matrix of shape \[5, 1\]"):
        read_npz(write(tmp_path / "small.npz", arrays, **{**parts, "feat_shape": np.array([5, 1])}))


def test_untidy_rows_are_mended_and_noted(tmp_path):
    indptr, indices = np.array([0, 4, 4, 5]), np.array([2, 1, 1, 0, 0])
    graph = read_npz(write(tmp_path / "untidy.npz", {"indptr": indptr, "indices": indices}))
    assert graph.csr.indptr.tolist() == [0, 2, 3, 4]
    assert graph.csr.indices.tolist() == [1, 2, 0, 0]
    assert [note.split()[1] for note in graph.notes] == ["self", "duplicate", "reverse"]
    directed = read_npz(tmp_path / "untidy.npz", symmetrise=False)
    assert not directed.symmetric
    assert directed.csr.indptr.tolist() == [0, 2, 2, 3]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"indptr": None}, "no array 'indptr'"),
        ({"indices": None}, "no array 'indices'"),
        ({"indptr": np.array([0, 1, 3, 5, 5, 5])}, "must start at 0 and end"),
        ({"indptr": np.array([0, 3, 1, 5, 6, 6])}, "must not decrease"),
        ({"indptr": np.array([0.0, 6.0])}, "must be integers"),
        ({"indptr": np.array([0]), "indices": np.empty(0, np.int32)}, "at least 1 vertex"),
        ({"indices": np.array([1, 0, 2, 1, 5, 2])}, r"0\.\.4; got 0\.\.5"),
        ({"indices": np.array([1, 0, 2, 1, -3, 2])}, r"0\.\.4; got -3"),
        ({"feat": np.zeros((4, 2), np.float32)}, r"\[5, width\]; got \[4, 2\]"),
        ({"feat": np.zeros((5, 0), np.float32)}, r"\[5, width\]"),
        ({"feat": np.array([["a"]] * 5)}, "must be numbers"),
        ({"labels": np.array([0, 1])}, r"one entry a vertex, \[5\]"),
        ({"labels": np.array([0, 1, 2, -5, 0])}, r"got -5\.\.2"),
        ({"labels": np.array([0.5, 1, 2, 0, 0])}, "whole numbers"),
        ({"labels": np.array([[2, 0]] * 5)}, "0 or 1"),
        ({"labels": None}, "masks without labels"),
        ({"labels": np.array([-1, 1, 2, 0, 0])}, "vertex 0 is in a mask but has no label"),
        ({"train_mask": np.array([True])}, "train_mask must have one entry a vertex"),
        ({"train_mask": np.array([3, 1, 0, 0, 0])}, "bool or 0/1"),
        ({"train_mask": np.array([True, True, True, False, False])}, "disjoint.*vertex 2"),
    ],
)
def test_bad_arrays_are_refused(tmp_path, arrays, changes, told):
    with pytest.raises(GraphError, match=told) as caught:
        read_npz(write(tmp_path / "bad.npz", arrays, **changes))
    assert "bad.npz" in str(caught.value)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_features_must_be_finite(tmp_path, arrays, value, dtype):
    features = np.zeros((5, 2), dtype)
    features[3, 1] = value
    with pytest.raises(GraphError, match=r"vertex 3 has .* in column 1"):
        read_npz(write(tmp_path / "bad.npz", arrays, feat=features))


def test_large_finite_features_are_not_mistaken_for_infinite(tmp_path, arrays):
    features = np.full((5, 2), 3e38, np.float32)
    np.testing.assert_array_equal(read_npz(write(tmp_path / "big.npz", arrays, feat=features)).features, features)


def test_float64_beyond_float32_is_refused(tmp_path, arrays):
    with pytest.raises(GraphError, match="vertex 0 has inf"):
        read_npz(write(tmp_path / "bad.npz", arrays, feat=np.full((5, 2), 1e300)))


def test_pickled_cut_off_and_foreign_files(tmp_path, arrays):
    pickled = tmp_path / "pickled.npz"
    np.savez(pickled, **{**arrays, "labels": np.array([0, "x", None, 1, 2], object)}, allow_pickle=True)
    with pytest.raises(GraphError, match="never loaded"):
        read_npz(pickled)
    whole = write(tmp_path / "whole.npz", arrays).read_bytes()
    for kept in (0, 10, len(whole) // 2, len(whole) - 10):
        (tmp_path / "cut.npz").write_bytes(whole[:kept])
        with pytest.raises(GraphError, match=r"cut\.npz"):
            read_npz(tmp_path / "cut.npz")
    broken = bytearray(whole)
    broken[60:90] = b"\xff" * 30
    (tmp_path / "broken.npz").write_bytes(bytes(broken))
    with pytest.raises(GraphError, match=r"broken\.npz"):
        read_npz(tmp_path / "broken.npz")
    np.save(tmp_path / "one.npy", np.arange(3))
    (tmp_path / "one.npy").rename(tmp_path / "one.npz")
    with pytest.raises(GraphError, match=r"not an \.npz archive"):
        read_npz(tmp_path / "one.npz")
    (tmp_path / "text.npz").write_text("not a zip")
    with pytest.raises(GraphError, match=r"not an \.npz archive"):
        read_npz(tmp_path / "text.npz")


@pytest.mark.parametrize(("place", "value", "told"), [(8, 1, "encrypted"), (10, 99, "compression"), (10, 14, "")])
def test_what_an_archive_tells_of_its_members_may_be_damaged(tmp_path, arrays, place, value, told):
    """A flag that they are encrypted, an unknown compression, and one that they do not have."""
    path = write(tmp_path / "told.npz", arrays)
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"PK\x01\x02") + place] = value
    path.write_bytes(bytes(raw))
    with pytest.raises(GraphError, match=rf"told\.npz: not a readable \.npz \(.*{told}.*write or fetch it again"):
        read_npz(path)


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_bad_json_is_named(tmp_path, arrays, text):
    path = write(tmp_path / "small.npz", arrays)
    path.with_suffix(".json").write_text(text)
    with pytest.raises(GraphError, match=r"small\.json"):
        read_npz(path)
