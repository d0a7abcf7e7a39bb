"""Graphs with several types: HeteroData, DGL heterographs and ogbn-mag; one relation, or all types merged."""

import re
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from simgnn.errors import GraphError
from simgnn.graph.load import load_graph
from simgnn.graph.typed_graph import Relation, TypeChoice, TypedGraph
from tests.graph.test_ogb import packed

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")
X = np.arange(6, dtype=np.float32).reshape(3, 2)
MERGED = [[0, 0], [0, 0], *X.tolist()]


def typed(**paper):
    fields = {"features": X, "labels": np.array([0, 1, 1]), "train_mask": np.array([True, False, False])} | paper
    relations = {
        WRITES: Relation(np.array([0, 1]), np.array([2, 0])),
        CITES: Relation(np.array([0, 1]), np.array([1, 2]), np.array([0.5, 2.0])),
    }
    return TypedGraph("g", "here", {"author": 2, "paper": 3}, relations, {"author": {}, "paper": fields})


def hetero_data():
    from torch_geometric.data import HeteroData

    data = HeteroData()
    data["author"].num_nodes = 2
    data["paper"].x, data["paper"].y = torch.from_numpy(X), torch.tensor([0, 1, 1])
    data["paper"].train_mask = torch.tensor([True, False, False])
    data[WRITES].edge_index = torch.tensor([[0, 1], [2, 0]])
    data[CITES].edge_index, data[CITES].edge_weight = torch.tensor([[0, 1], [1, 2]]), torch.tensor([0.5, 2.0])
    return data


def dgl_heterograph():
    dgl = pytest.importorskip("dgl", reason="DGL is not installed (it ends at Python 3.11)")
    ends = {WRITES: (torch.tensor([0, 1]), torch.tensor([2, 0])), CITES: (torch.tensor([0, 1]), torch.tensor([1, 2]))}
    graph = dgl.heterograph(ends, num_nodes_dict={"author": 2, "paper": 3})
    graph.nodes["paper"].data["feat"], graph.nodes["paper"].data["label"] = torch.from_numpy(X), torch.tensor([0, 1, 1])
    graph.nodes["paper"].data["train_mask"] = torch.tensor([True, False, False])
    graph.edges[CITES].data["w"] = torch.tensor([0.5, 2.0])
    return graph


def check_cites(graph):
    assert graph.vertices == 3
    assert graph.csr.indices.tolist() == [1, 0, 2, 1]
    np.testing.assert_allclose(graph.csr.weights, [0.5, 0.5, 2, 2])
    np.testing.assert_array_equal(graph.features, X)
    assert graph.vertex_ids is None


def check_merged(graph):
    assert graph.csr.indptr.tolist() == [0, 1, 2, 4, 6, 8]
    assert graph.csr.indices.tolist() == [4, 2, 1, 3, 2, 4, 0, 3]
    np.testing.assert_array_equal(graph.features, MERGED)
    assert graph.labels.tolist() == [-1, -1, 0, 1, 1]
    assert graph.train_mask.tolist() == [False, False, True, False, False]
    assert graph.vertex_ids.tolist() == ["author/0", "author/1", "paper/0", "paper/1", "paper/2"]
    assert any("features of author are zeros" in note for note in graph.notes)


@pytest.mark.parametrize("form", ["HeteroData", "its to_dict()", "DGL"])
def test_frameworks(form, tmp_path):
    from simgnn.graph.readers.frameworks import from_dgl, from_pyg

    if form == "DGL":
        convert, data = from_dgl, dgl_heterograph()
    else:
        pytest.importorskip("torch_geometric", reason="PyTorch Geometric is not installed")
        convert, data = from_pyg, hetero_data()
    if form == "its to_dict()":
        data = data.to_dict()
    check_cites(convert(data, types=TypeChoice("paper,cites,paper")))
    check_cites(convert(data, types=TypeChoice("cites")))
    check_merged(convert(data, types=TypeChoice(homogeneous=True)))
    with pytest.raises(GraphError, match=r"^Data|^DGLGraph") as caught:
        convert(data)
    (told,) = caught.value.problems
    assert not re.search(r"\. [A-Z]", told)  # one sentence
    assert "graph.relation = '" in told
    assert "graph.homogeneous = true" in told
    assert "author,writes,paper" in told
    if form != "DGL":
        torch.save(data, tmp_path / "h.pt")
        check_cites(load_graph("h.pt", base=tmp_path, options={"relation": "cites"}))
        check_merged(load_graph("pyg:h.pt", base=tmp_path, options={"homogeneous": True}))


@pytest.fixture
def mag(tmp_path: Path) -> Path:
    folder = tmp_path / "dataset" / "ogbn_mag"
    raw = folder / "raw"
    packed(raw / "num-node-dict.csv.gz", "author,paper\n2,3\n")
    packed(raw / "triplet-type-list.csv.gz", "author,writes,paper\npaper,cites,paper\n")
    packed(raw / "relations" / "author___writes___paper" / "edge.csv.gz", "0,2\n1,0\n")
    packed(raw / "relations" / "paper___cites___paper" / "edge.csv.gz", "0,1\n1,2\n")
    packed(raw / "relations" / "paper___cites___paper" / "edge-feat.csv.gz", "0.5\n2\n")
    packed(raw / "node-feat" / "paper" / "node-feat.csv.gz", "0,1\n2,3\n4,5\n")
    packed(raw / "node-label" / "paper" / "node-label.csv.gz", "0\n1\n1\n")
    for part, ids in (("train", "0\n"), ("valid", "1\n"), ("test", "2\n")):
        packed(folder / "split" / "time" / "paper" / f"{part}.csv.gz", ids)
    return tmp_path


def test_mag(mag):
    check_cites(load_graph("ogb:ogbn-mag", base=mag, options={"relation": "paper,cites,paper"}))
    merged = load_graph("ogb:ogbn-mag", base=mag, options={"homogeneous": True})
    check_merged(merged)
    assert np.flatnonzero(merged.test_mask).tolist() == [4]
    with pytest.raises(GraphError, match=r"graph\.relation = 'author,writes,paper'"):
        load_graph("ogb:ogbn-mag", base=mag)


def test_a_relation_between_two_types_has_the_vertices_of_both():
    graph = typed().chosen(TypeChoice("writes"), True)
    assert graph.vertex_ids.tolist() == ["author/0", "author/1", "paper/0", "paper/1", "paper/2"]
    assert graph.edges == 4
    assert graph.csr.weights is None
    np.testing.assert_array_equal(graph.features, MERGED)


def test_sparse_features_and_several_labels():
    several = np.array([[1, 0], [1, 1], [0, 1]])
    graph = typed(features=sparse.csr_array(X), labels=several, train_mask=None).chosen(TypeChoice("writes"), True)
    np.testing.assert_array_equal(graph.features.toarray(), MERGED)
    assert graph.labels[2:].tolist() == several.tolist()
    assert not (graph.train_mask | graph.validation_mask | graph.test_mask)[:2].any()
    assert (graph.train_mask | graph.validation_mask | graph.test_mask)[2:].all()


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        (
            TypeChoice("site"),
            r"graph\.relation: got 'site', expected a relation of here: author,writes,paper, paper,cites",
        ),
        (TypeChoice("author,write,paper"), r"did you mean 'author,writes,paper'"),
        (TypeChoice("cites", homogeneous=True), r"graph\.homogeneous: got true with graph\.relation"),
    ],
)
def test_choices_that_name_nothing_are_refused(choice, told):
    with pytest.raises(GraphError, match=told):
        typed().chosen(choice, True)


def test_what_cannot_be_merged_is_refused():
    merge = TypeChoice(homogeneous=True)
    other = typed()
    other.fields["author"]["features"] = np.ones((2, 3), np.float32)
    with pytest.raises(GraphError, match="equally wide; got author 3, paper 2"):
        other.chosen(merge, True)
    other.fields["author"]["features"], other.fields["author"]["labels"] = np.ones((2, 2)), np.array([0, 1])
    with pytest.raises(GraphError, match="labels of several types"):
        other.chosen(merge, True)
    outside = typed()
    outside.relations[WRITES] = Relation(np.array([0, 5]), np.array([0, 0]))
    with pytest.raises(GraphError, match=r"author,writes,paper: sources must lie in 0\.\.1, the vertices of 'author'"):
        outside.chosen(merge, True)


def test_one_type_takes_no_choice(tmp_path):
    torch.save({"edge_index": torch.tensor([[0], [1]])}, tmp_path / "g.pt")
    with pytest.raises(GraphError, match=r"graph\.relation does not apply"):
        load_graph("g.pt", base=tmp_path, options={"relation": "cites"})
    (tmp_path / "g.csv").write_text("0,1\n")
    with pytest.raises(GraphError, match=r"graph\.homogeneous does not apply"):
        load_graph("g.csv", base=tmp_path, options={"homogeneous": True})
