"""OGB node-property folders, text and binary, laid out as the ogb package leaves them."""

import gzip

import numpy as np
import pytest

from simgnn.errors import GraphError
from simgnn.graph.load import load_graph

PATH_INDICES = [1, 0, 2, 1, 3, 2]


def packed(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()))


def split(folder, scheme="time"):
    for part, ids in (("train", "0\n1\n"), ("valid", "2\n"), ("test", "3\n4\n")):
        packed(folder / "split" / scheme / f"{part}.csv.gz", ids)


@pytest.fixture
def text_folder(tmp_path):
    folder = tmp_path / "dataset" / "ogbn_arxiv"
    packed(folder / "raw" / "edge.csv.gz", "0,1\n1,2\n2,3\n")
    packed(folder / "raw" / "num-node-list.csv.gz", "5\n")
    packed(folder / "raw" / "num-edge-list.csv.gz", "3\n")
    packed(folder / "raw" / "node-feat.csv.gz", "0,1\n2,3\n4,5\n6,7.5\n-8e-1,9\n")
    packed(folder / "raw" / "node-label.csv.gz", "0\n1\n2\n0\n1\n")
    split(folder)
    return folder


def test_text_form(text_folder, tmp_path):
    graph = load_graph("ogb:ogbn-arxiv", base=tmp_path)
    assert (graph.name, graph.vertices, graph.classes) == ("ogbn-arxiv", 5, 3)
    assert graph.csr.indices.tolist() == PATH_INDICES
    assert graph.features.dtype == np.float32
    assert graph.features[3].tolist() == [6.0, 7.5]
    assert graph.labels.tolist() == [0, 1, 2, 0, 1]
    assert graph.test_mask.tolist() == [False, False, False, True, True]
    rooted = load_graph("ogb:ogbn-arxiv", options={"root": str(text_folder.parent)})
    np.testing.assert_array_equal(rooted.csr.indices, graph.csr.indices)
    assert load_graph("ogb:ogbn-arxiv", base=tmp_path, options={"symmetrise": False}).edges == 3


def test_the_folder_of_the_pyg_loader_is_found_too(text_folder, tmp_path):
    text_folder.rename(text_folder.with_name("ogbn_arxiv_pyg"))
    assert load_graph("ogb:ogbn-arxiv", base=tmp_path).vertices == 5


def test_several_labels_and_no_features(text_folder, tmp_path):
    (text_folder / "raw" / "node-feat.csv.gz").unlink()
    packed(text_folder / "raw" / "node-label.csv.gz", "0,1\n1,1\n0,0\n1,0\n1,1\n")
    graph = load_graph("ogb:ogbn-arxiv", base=tmp_path)
    assert graph.multilabel
    assert graph.classes == 2
    assert graph.features is None
    assert graph.facts().validation_vertices == 1


def test_binary_form(tmp_path):
    folder = tmp_path / "dataset" / "ogbn_papers100M"
    (folder / "raw").mkdir(parents=True)
    np.savez(
        folder / "raw" / "data.npz",
        edge_index=np.array([[0, 1, 2], [1, 2, 3]]),
        num_nodes_list=np.array([5]),
        num_edges_list=np.array([3]),
        node_feat=np.ones((5, 2), np.float16),
    )
    labels = np.array([[0], [1], [2], [np.nan], [np.nan]], np.float32)
    np.savez(folder / "raw" / "node-label.npz", node_label=labels)
    for part, ids in (("train", "0\n"), ("valid", "1\n"), ("test", "2\n")):
        packed(folder / "split" / "time" / f"{part}.csv.gz", ids)
    graph = load_graph("ogb:ogbn-papers100M", base=tmp_path)
    assert graph.csr.indices.tolist() == PATH_INDICES
    assert graph.features.dtype == np.float16
    assert graph.labels.tolist() == [0, 1, 2, -1, -1]
    np.savez(folder / "raw" / "data.npz", num_nodes_list=np.array([5]))
    with pytest.raises(GraphError, match="no array 'edge_index'"):
        load_graph("ogb:ogbn-papers100M", base=tmp_path)


def test_a_missing_set_says_where_it_was_looked_for(tmp_path):
    with pytest.raises(GraphError, match=r"ogbn_products.*graph\.root"):
        load_graph("ogb:ogbn-products", options={"root": str(tmp_path)})


def test_two_splits(text_folder, tmp_path):
    split(text_folder, "random")
    assert load_graph("ogb:ogbn-arxiv", base=tmp_path).facts().train_vertices == 2
    (text_folder / "split" / "time").rename(text_folder / "split" / "mine")
    with pytest.raises(GraphError, match=r"several splits \(mine, random\)"):
        load_graph("ogb:ogbn-arxiv", base=tmp_path)


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("raw/edge.csv.gz", None, "is missing"),
        ("raw/num-node-list.csv.gz", None, "is missing"),
        ("split/time/test.csv.gz", None, "is missing"),
        ("raw/edge.csv.gz", "0,1,2\n", "expected two columns; got 3"),
        ("raw/edge.csv.gz", "0,9\n", r"got the vertex id 9, expected 0\.\.4"),
        ("raw/edge.csv.gz", "0,x\n", "not a readable table"),
        ("raw/edge.csv.gz", "0,\n", "empty values"),
        ("raw/num-node-list.csv.gz", "5\n6\n", "expected one graph; got 2"),
        ("raw/node-feat.csv.gz", "1,2\n", r"\[5, width\]; got \[1, 2\]"),
        ("raw/node-feat.csv.gz", "0,1\n2,nan\n4,5\n6,7\n8,9\n", "vertex 1 has nan in column 1"),
        ("raw/node-label.csv.gz", "0\n1\n", r"one entry a vertex, \[5\]"),
        ("split/time/valid.csv.gz", "1\n", "disjoint.*vertex 1"),
        ("split/time/valid.csv.gz", "17\n", r"0\.\.4"),
    ],
)
def test_bad_folders(text_folder, tmp_path, file, text, told):
    (text_folder / file).unlink()
    if text is not None:
        packed(text_folder / file, text)
    with pytest.raises(GraphError, match=told):
        load_graph("ogb:ogbn-arxiv", base=tmp_path)


def test_no_edges_at_all_and_a_cut_off_table(text_folder, tmp_path):
    packed(text_folder / "raw" / "edge.csv.gz", "")
    assert load_graph("ogb:ogbn-arxiv", base=tmp_path).edges == 0
    path = text_folder / "raw" / "node-feat.csv.gz"
    packed(path, "".join(f"{k},{k * 7919 % 1009}\n" for k in range(3000)))
    path.write_bytes(path.read_bytes()[:900])
    with pytest.raises(GraphError, match="cut off"):
        load_graph("ogb:ogbn-arxiv", base=tmp_path)
