"""graph.source and its options: where things are looked for, what is refused, what a stand-in is."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from simgnn.errors import GraphError
from simgnn.graph.generators.generate import generate
from simgnn.graph.generators.recipes import RMat
from simgnn.graph.graph import Graph
from simgnn.graph.load import load_graph, with_centred_features
from simgnn.graph.store import graph_digest, open_graph, save_graph


@pytest.fixture
def small(tmp_path, arrays):
    np.savez(tmp_path / "small.npz", **arrays)
    np.savez(tmp_path / "bare.npz", indptr=arrays["indptr"], indices=arrays["indices"])
    return tmp_path


def test_relative_paths_start_at_base_then_here(small, monkeypatch, tmp_path_factory):
    assert load_graph("small.npz", base=small).vertices == 5
    assert load_graph(str(small / "small.npz")).vertices == 5
    monkeypatch.chdir(small)
    assert load_graph("small.npz").vertices == 5
    assert load_graph("small.npz", base=tmp_path_factory.mktemp("other")).vertices == 5


def test_not_found_names_what_was_tried(tmp_path):
    with pytest.raises(GraphError, match=r"graph\.source: 'no\.npz' not found; tried .*no\.npz.*no\.npz") as caught:
        load_graph("no.npz", base=tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "synthetic:" in str(caught.value)


@pytest.mark.parametrize("name", ["g.xyz", "g", "g.npz.gz", "g.csv.bz2"])
def test_an_unknown_suffix_lists_the_known_ones(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(GraphError, match=r"known suffixes: \.npz, \.npy, \.csv"):
        load_graph(name, base=tmp_path)


@pytest.mark.parametrize(
    ("source", "options", "told"),
    [
        ("bare.npz", {"vertices": 9}, "graph.vertices does not apply to 'bare.npz'"),
        ("bare.npz", {"root": "x"}, "graph.root does not apply"),
        ("synthetic:rmat", {"root": "x"}, "graph.root does not apply"),
        ("synthetic:rmat", {"stand_in_features": 3}, "graph.stand_in_features does not apply"),
        ("bare.npz", {"centre": True}, "has no features to centre"),
        ("synthetic:rmat", {"centre": True}, "graph.centre does not apply"),
        ("small.npz", {"stand_in_features": 4}, "has features of its own"),
        ("small.npz", {"classes": 4}, "has labels of its own"),
        ("bare.npz", {"multilabel": True}, "state graph.classes"),
        ("stats:papers.toml", {}, "hold no graph"),
        ("synthetic:nothing", {}, "known: synthetic:communities, synthetic:rmat"),
    ],
)
def test_bad_options(small, source, options, told):
    with pytest.raises(GraphError) as caught:
        load_graph(source, base=small, options=options)
    assert told in str(caught.value)


def test_none_is_as_if_absent(small):
    assert load_graph("bare.npz", base=small, options={"vertices": None, "root": None}).labels is None


def test_stand_ins_are_marked(small):
    graph = load_graph("bare.npz", base=small, options={"stand_in_features": 3, "classes": 4}, seed=9)
    expected = np.random.default_rng(0).standard_normal((5, 3), dtype=np.float32)
    np.testing.assert_array_equal(graph.features, expected)
    assert graph.synthetic_features
    assert graph.synthetic_labels
    assert graph.classes == 4
    assert graph.train_mask.sum() == 3
    assert len(graph.notes) == 3
    several = load_graph("bare.npz", base=small, options={"classes": 4, "multilabel": True})
    assert several.labels.shape == (5, 4)
    assert not several.synthetic_features


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("chunk", [2, 65_536])
def test_columns_of_features_are_centred(tmp_path, arrays, monkeypatch, dense, chunk):
    monkeypatch.setattr("simgnn.graph.load.CHUNK_ROWS", chunk)
    monkeypatch.setattr("simgnn.graph.graph.CHUNK_ROWS", chunk)
    rows = np.array([[1, 3, 0], [0, 0, 0], [2, 0, -2], [0, 0.5, 0], [2, 4, 7]], np.float16)
    del arrays["feat"]
    if dense:
        arrays["feat"] = rows
    else:
        matrix = sparse.csr_array(rows.astype(np.float32))
        parts = {"feat_indptr": matrix.indptr, "feat_indices": matrix.indices, "feat_data": matrix.data}
        arrays |= {**parts, "feat_shape": np.array(matrix.shape)}
    np.savez(tmp_path / "g.npz", **arrays)
    plain = load_graph("g.npz", base=tmp_path)
    graph = load_graph("g.npz", base=tmp_path, options={"centre": True})
    assert graph.sparse_features != dense
    features = graph.features if dense else graph.features.toarray()
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, rows.astype(np.float64) - [1, 1.5, 1], rtol=1e-6)
    facts = graph.facts()
    assert (facts.feature_width, facts.centred_features) == (3, not dense)
    assert facts.feature_nonzeros == (None if dense else 8 + 5), "a one for each row beside its values"
    assert graph_digest(graph) != graph_digest(plain), "shards would be taken for those of the source"
    assert graph.notes == (*plain.notes, "features less the mean of their column")
    again = load_graph("g.npz", base=tmp_path, options={"centre": False})
    assert graph_digest(again) == graph_digest(plain)


def test_labels_without_a_split_get_one(tmp_path, arrays):
    labels = np.array([0, 1, -1, 0, 1])
    np.savez(tmp_path / "g.npz", indptr=arrays["indptr"], indices=arrays["indices"], labels=labels)
    graph = load_graph("g.npz", base=tmp_path)
    assert "no split in the source: seeded 60/20/20" in graph.notes
    assert not graph.synthetic_labels
    masks = graph.train_mask.astype(int) + graph.validation_mask + graph.test_mask
    assert masks.tolist() == [1, 1, 0, 1, 1]


def test_generators_take_the_seed_and_the_options():
    options = {"vertices": 300, "edges": 2000, "classes": 3, "feature_width": 5}
    graph = load_graph("synthetic:communities", options=options, seed=4)
    assert (graph.vertices, graph.classes, graph.features.shape) == (300, 3, (300, 5))
    assert graph_digest(graph) != graph_digest(load_graph("synthetic:communities", options=options, seed=5))
    directed = load_graph("synthetic:rmat", options={**options, "symmetrise": False})
    assert not directed.symmetric


@pytest.mark.parametrize("width", [0, 4])
def test_a_saved_folder_is_a_source(tmp_path, width):
    graph = generate(RMat(100, 400, feature_width=width), symmetrise=False)
    save_graph(graph, tmp_path / "saved")
    again = load_graph("saved", base=tmp_path, options={"symmetrise": False})
    assert isinstance(again.csr.indices, np.memmap)
    assert graph_digest(again) == graph_digest(graph)
    assert again.facts() == graph.facts()
    assert load_graph("saved", base=tmp_path).symmetric
    with pytest.raises(GraphError, match="exists already"):
        save_graph(graph, tmp_path / "saved")


def test_sparse_features_survive_a_folder(tmp_path):
    plain = generate(RMat(50, 100, classes=0, feature_width=0))
    graph = Graph("s", plain.csr, sparse.csr_array(np.eye(50, 7, dtype=np.float32)))
    save_graph(graph, tmp_path / "saved")
    again = open_graph(tmp_path / "saved")
    assert again.sparse_features
    assert graph_digest(again) == graph_digest(graph)


def test_centred_rows_survive_a_folder_and_are_centred_once(tmp_path):
    plain = generate(RMat(50, 100, classes=0, feature_width=0))
    rows = sparse.random_array((50, 9), density=0.3, format="csr", dtype=np.float32, rng=np.random.default_rng(0))
    graph = with_centred_features(Graph("c", plain.csr, sparse.csr_array(rows)), "c")
    save_graph(graph, tmp_path / "saved")
    again = load_graph("saved", base=tmp_path, options={"centre": True})
    assert graph_digest(again) == graph_digest(graph)
    assert again.facts() == graph.facts()
    np.testing.assert_allclose(again.features.mean, rows.toarray().mean(axis=0, dtype=np.float64), rtol=1e-14)
    other = replace(graph, features=replace(graph.features, mean=graph.features.mean + 1e-9))
    assert graph_digest(other) != graph_digest(graph)


def test_bad_folders(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(GraphError, match="not a folder of a saved graph"):
        load_graph("empty", base=tmp_path)
    graph = generate(RMat(50, 100))
    save_graph(graph, tmp_path / "g")
    facts = (tmp_path / "g" / "graph.json").read_text()
    (tmp_path / "g" / "graph.json").write_text(facts.replace("simgnn-graph-1", "other"))
    with pytest.raises(GraphError, match="expected format"):
        open_graph(tmp_path / "g")
    (tmp_path / "g" / "graph.json").write_text(facts)
    np.save(tmp_path / "g" / "indices.npy", graph.csr.indices[:-1])
    with pytest.raises(GraphError, match="indptr ends at"):
        open_graph(tmp_path / "g")
    (tmp_path / "g" / "indices.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(GraphError, match=r"indices\.npy: cannot be read"):
        open_graph(tmp_path / "g")
    (tmp_path / "g" / "indices.npy").unlink()
    with pytest.raises(GraphError, match=r"indices\.npy: cannot be read"):
        open_graph(tmp_path / "g")
