"""Features, labels and splits in files of their own; ids of vertices that are names."""

import gzip

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from simgnn.errors import GraphError
from simgnn.graph.load import load_graph
from simgnn.graph.readers import text_table
from simgnn.graph.store import graph_digest, open_graph, save_graph

EDGES = "source,target\nann,bob\nbob,carl\ncarl,dora\n"
NODES = "id,x,y,venue,split\ndora,3,30,b,test\ncarl,2,20,a,val\nann,0,0,a,train\nbob,1,10,b,train\n"
PATH_INDICES = [1, 0, 2, 1, 3, 2]
FEATURES = [[0, 0], [1, 10], [2, 20], [3, 30]]


def load(folder, source="e.csv", **options):
    return load_graph(source, base=folder, options=options)


def whole(folder, **options):
    return load(folder, features="n.csv", labels="n.csv", splits="n.csv", label_column="venue", **options)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "e.csv").write_text(EDGES)
    (tmp_path / "n.csv").write_text(NODES)
    return tmp_path


def check(graph):
    assert graph.csr.indices.tolist() == PATH_INDICES
    np.testing.assert_array_equal(graph.features, np.array(FEATURES, np.float32))
    assert graph.labels.tolist() == [0, 1, 0, 1]
    assert graph.classes == 2
    masks = graph.train_mask, graph.validation_mask, graph.test_mask
    assert [np.flatnonzero(mask).tolist() for mask in masks] == [[0, 1], [2], [3]]


def test_names_are_joined_by_id_in_sorted_order(folder):
    graph = whole(folder)
    check(graph)
    assert graph.vertex_ids.tolist() == ["ann", "bob", "carl", "dora"]
    assert graph.class_names == ("a", "b")
    # another order of lines is the same graph
    lines = NODES.splitlines()
    (folder / "n.csv").write_text("\n".join([lines[0], *lines[:0:-1]]))
    (folder / "e.csv").write_text("target,source\nbob,ann\ndora,carl\ncarl,bob\n")
    assert graph_digest(whole(folder)) == graph_digest(graph)


def test_ids_and_names_of_classes_are_kept_and_counted(folder, tmp_path_factory):
    graph = whole(folder)
    saved = tmp_path_factory.mktemp("saved") / "g"
    save_graph(graph, saved)
    again = open_graph(saved)
    assert again.vertex_ids.tolist() == graph.vertex_ids.tolist()
    assert again.class_names == graph.class_names
    assert graph_digest(again) == graph_digest(graph)
    (folder / "e.csv").write_text(EDGES.replace("dora", "dana"))
    (folder / "n.csv").write_text(NODES.replace("dora", "dana"))
    assert graph_digest(whole(folder)) != graph_digest(graph)


@pytest.mark.parametrize("kind", ["parquet", "tsv", "csv.gz", "list.parquet"])
def test_every_format_of_tables_gives_the_same_graph(folder, kind):
    table = {"paper": [13, 12, 10, 11], "a": [3, 2, 0, 1], "b": [30.0, 20.0, 0.0, 10.0], "kind": [1, 0, 0, 1]}
    part = ["test", "validation", "train", "train"]
    if "parquet" in kind:
        columns = {**table, "part": pa.array(part).dictionary_encode()}
        if kind == "list.parquet":
            pairs = [[float(a), b] for a, b in zip(columns.pop("a"), columns.pop("b"), strict=True)]
            columns["vector"] = pa.array(pairs, pa.list_(pa.float64(), 2))
        pq.write_table(pa.table(columns), folder / f"nodes.{kind}")
        pq.write_table(pa.table({"citing": [10, 11, 12], "cited": [11, 12, 13]}), folder / f"edges.{kind}")
    else:
        mark = "\t" if kind == "tsv" else ","
        rows = [[*table, "part"], *zip(*table.values(), part, strict=True)]
        text = "".join(mark.join(map(str, row)) + "\n" for row in rows)
        edges = f"citing{mark}cited\n10{mark}11\n11{mark}12\n12{mark}13\n"
        for name, content in (("nodes", text), ("edges", edges)):
            data = content.encode()
            (folder / f"{name}.{kind}").write_bytes(gzip.compress(data) if kind.endswith("gz") else data)
    files = dict.fromkeys(("features", "labels", "splits"), f"nodes.{kind}")
    columns = {"id_column": "paper", "label_column": "kind", "split_column": "part"}
    graph = load(folder, f"edges.{kind}", source_column="citing", target_column="cited", **files, **columns)
    check(graph)
    assert graph.vertex_ids.tolist() == [10, 11, 12, 13]
    assert graph.class_names == ()


def test_rows_in_order_belong_to_the_numbers(tmp_path):
    (tmp_path / "e.csv").write_text("0,1\n1,2\n2,3\n")
    np.save(tmp_path / "x.npy", np.array(FEATURES, np.float16))
    (tmp_path / "y.txt").write_text("0\n1\n0\n1\n")
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "train.csv").write_text("0\n1\n")
    np.save(tmp_path / "s" / "valid.npy", np.array([2]))
    np.save(tmp_path / "s" / "test.npy", np.array([False, False, False, True]))
    graph = load(tmp_path, features="x.npy", labels="y.txt", splits="s")
    check(graph)
    assert graph.features.dtype == np.float16
    assert graph.vertex_ids is None
    files = {"train": "s/train.csv", "validation": "s/valid.npy", "test": "s/test.npy"}
    again = load(tmp_path, features="x.npy", labels="y.txt", splits=files)
    assert graph_digest(again) == graph_digest(graph)
    # the same by ids that are the numbers
    (tmp_path / "n.csv").write_text("node,a,b,label\n2,2,20,0\n0,0,0,0\n3,3,30,1\n1,1,10,1\n")
    joined = load(tmp_path, features="n.csv", labels="n.csv", splits=files, feature_columns=["a", "b"])
    np.testing.assert_array_equal(joined.features, np.array(FEATURES, np.float32))
    assert joined.vertex_ids is None
    # vertices without edges have rows, too
    np.save(tmp_path / "x.npy", np.zeros((6, 2), np.float32))
    assert load(tmp_path, features="x.npy").vertices == 6
    np.save(tmp_path / "x.npy", np.zeros((3, 2), np.float32))
    with pytest.raises(
        GraphError, match=r"x\.npy: features must have one row a vertex, shape \[4, width\]; got \[3, 2\]"
    ):
        load(tmp_path, features="x.npy")


def test_side_files_complete_graphs_of_other_formats(tmp_path):
    np.savez(tmp_path / "g.npz", indptr=np.array([0, 1, 2, 2]), indices=np.array([1, 0]))
    np.save(tmp_path / "x.npy", np.ones((3, 2)))
    (tmp_path / "y.csv").write_text("id,label\n2,1\n0,0\n")
    graph = load(tmp_path, "g.npz", features="x.npy", labels="y.csv", splits={"train": 0.5, "test": 0.5})
    assert graph.labels.tolist() == [0, -1, 1]
    assert graph.train_mask.sum() == graph.test_mask.sum() == 1
    assert graph.validation_mask is None
    assert not (graph.train_mask | graph.test_mask)[1]
    np.savez(tmp_path / "h.npz", indptr=np.array([0, 1, 2, 2]), indices=np.array([1, 0]), feat=np.ones((3, 1)))
    with pytest.raises(GraphError, match=r"graph\.features: 'h\.npz' has features of its own"):
        load(tmp_path, "h.npz", features="x.npy")


def test_shares_are_drawn_by_seed_from_labelled_vertices(tmp_path):
    options = {"vertices": 400, "edges": 900, "splits": {"train": 0.5, "validation": 0.25, "test": 0.125}}
    graph = load(tmp_path, "synthetic:communities", **options)
    assert [int(m.sum()) for m in (graph.train_mask, graph.validation_mask, graph.test_mask)] == [200, 100, 50]
    assert not (graph.train_mask & graph.validation_mask).any()
    again = load(tmp_path, "synthetic:communities", **options)
    np.testing.assert_array_equal(graph.train_mask, again.train_mask)
    other = load(tmp_path, "synthetic:communities", **options | {"splits": {**options["splits"], "seed": 1}})
    assert (graph.train_mask != other.train_mask).any()


def test_names_without_a_header_and_numbers_as_names(tmp_path):
    (tmp_path / "e.csv").write_text("ann,bob\nbob,carl\n")
    with pytest.raises(GraphError, match=r"state graph\.source_column and graph\.target_column by number"):
        load(tmp_path)
    named = load(tmp_path, source_column=1, target_column=2)
    assert named.vertex_ids.tolist() == ["ann", "bob", "carl"]
    (tmp_path / "n.csv").write_text("0,07\n07,x\n")
    with pytest.raises(GraphError, match=r"graph\.ids = 'names'"):
        load(tmp_path, "n.csv")
    assert load(tmp_path, "n.csv", ids="names").vertex_ids.tolist() == ["0", "07", "x"]
    (tmp_path / "far.csv").write_text("5,7000000000\n7000000000,12\n")
    assert load(tmp_path, "far.csv").vertex_ids.tolist() == [5, 12, 7_000_000_000]
    np.save(tmp_path / "e.npy", np.array([[5, 90], [90, 12]]))
    assert load(tmp_path, "e.npy").vertices == 91
    assert load(tmp_path, "e.npy", ids="names").vertex_ids.tolist() == [5, 12, 90]


def test_several_columns_of_zeros_and_ones_are_several_labels(folder):
    (folder / "l.csv").write_text("id,red,big\nann,1,1\nbob,0,1\ncarl,0,0\ndora,1,0\n")
    graph = load(folder, labels="l.csv")
    assert graph.multilabel
    assert graph.labels.tolist() == [[True, True], [False, True], [False, False], [True, False]]


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("n.csv", NODES.replace("bob,1,10", "bob,1,nan"), r"n\.csv: features must be finite; vertex 1 has nan"),
        ("n.csv", NODES.replace("bob,1,10", "bob,1,1e400"), r"n\.csv: features must be finite; vertex 1 has inf"),
        (
            "n.csv",
            NODES.replace("bob,1,10", "bob,1,n/a?"),
            r"n\.csv: column 'y', row 4: got 'n/a\?', expected a number: .*\(graph\.feature_columns\)$",
        ),
        ("n.csv", NODES.replace("bob,1,10", "bob,1"), r"n\.csv: not a readable table \(CSV parse error"),
        ("n.csv", NODES.replace("id,x", "who,x"), r"column 'who', row 1: .*state graph\.id_column = \"who\"$"),
        ("n.csv", NODES.replace("bob,", "eve,"), "1 vertices have no row, such as 'bob'"),
        ("n.csv", NODES + "bob,1,10,b,train\n", "the id 'bob' is in several rows"),
        ("n.csv", NODES.replace("bob,1", ",1"), "row 4 has no id"),
        ("n.csv", NODES.replace("bob,1", "b" * 300 + ",1"), "an id has 300 characters"),
        ("n.csv", NODES.replace("venue", "x"), "several columns are called 'x'"),
        ("n.csv", NODES.replace(",a,val", ",7,val"), "holds numbers and words, such as '7' and 'b'"),
        ("n.csv", NODES.replace("val", "vale"), r"n\.csv: row 2: got 'vale'"),
        ("n.csv", NODES.replace("train", ""), "no vertex is in the part train"),
        ("n.csv", NODES.replace("0,a,train", "0,,train"), "the vertex 'ann' has no label"),
        ("n.csv", "", r"n\.csv: is empty"),
        ("n.csv", "\0\xff", r"n\.csv: "),
    ],
)
def test_faults_of_tables_are_told_with_file_and_id(folder, file, text, told):
    (folder / file).write_text(text)
    with pytest.raises(GraphError, match=told):
        whole(folder)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"features": "no.csv"}, r"graph\.features: 'no\.csv' not found"),
        ({"features": "x.npy"}, r"x\.npy has a row for each .* names, such as 'ann': write a table with a .* of ids"),
        (
            {"features": "u.csv", "feature_columns": ["a"]},
            r"u\.csv: which column holds the ids\? .*: state graph\.id_column; got the columns user, a$",
        ),
        (
            {"features": "u.csv", "feature_columns": ["a"], "ids": "names", "source": "f.csv"},
            r"graph\.ids = 'numbers'$",
        ),
        (
            {"features": "n.csv", "labels": "l.csv", "feature_columns": ["x"]},
            r"l\.csv: no id of l\.csv occurs in e\.csv: l\.csv has 'Ann', e\.csv has 'ann'; .*graph\.id_column",
        ),
        ({"features": "l.csv"}, r"l\.csv: no id of l\.csv occurs in e\.csv"),
        (
            {"features": "n.csv", "id_column": "key"},
            r"graph\.id_column: got 'key', expected a column of .*n\.csv: id, x",
        ),
        ({"features": "e.bin"}, r"graph\.features: cannot tell the format of 'e\.bin'"),
        ({"labels": "w.csv"}, r"which column holds the labels\? state graph\.label_column; got a, b"),
        ({"labels": "v.csv"}, r"which column holds the labels\? state graph\.label_column; got a, b"),
        ({"labels": "odd.csv"}, r"labels must be below 1,048,576"),
        ({"labels": "huge.csv"}, r"huge\.csv: labels must be whole numbers"),
        ({"splits": {"train": 0.5}}, r"graph\.splits: 'e\.csv' has no labels"),
        ({"labels": "y.csv", "splits": {"train": "t.csv"}}, r"t\.csv: got the id 'eve'"),
        ({"labels": "y.csv", "splits": {"train": "t2.csv", "test": "t2.csv"}}, "the vertex 'bob' is in several parts"),
        ({"labels": "y.csv", "splits": "x.npy"}, r"graph\.splits: got 'x\.npy', expected a table"),
        ({"source_column": "from"}, r"graph\.source_column: got 'from', expected a column of .*e\.csv: source, target"),
        ({"source_column": 1, "target_column": 9}, "expected two numbers from 1 to 2"),
        ({"ids": "numbers"}, r"e\.csv: not an edge list"),
        ({"vertices": 9}, r"graph\.vertices does not apply"),
    ],
)
def test_faults_of_options_are_told_with_the_key(folder, options, told):
    np.save(folder / "x.npy", np.ones((4, 1)))
    (folder / "e.bin").write_text("1")
    (folder / "y.csv").write_text("id,label\nann,0\nbob,1\ncarl,0\ndora,1\n")
    (folder / "odd.csv").write_text("id,label\nann,99999999\nbob,1\n")
    (folder / "huge.csv").write_text(f"id,label\nann,{'9' * 5000}\nbob,1e400\n")
    (folder / "w.csv").write_text("id,a,b\nann,0,3\nbob,1,1\n")
    (folder / "v.csv").write_text("id,a,b\nann,0,cat\nbob,1,dog\n")
    (folder / "t.csv").write_text("ann\neve\n")
    (folder / "t2.csv").write_text("id\nbob\n")
    (folder / "u.csv").write_text("user,a\nann,0\nbob,1\ncarl,0\ndora,1\n")
    (folder / "f.csv").write_text("5,70\n70,12\n")
    (folder / "l.csv").write_text("id,label_of\nAnn,0\nBob,1\n")
    with pytest.raises(GraphError, match=told):
        load(folder, **options)


def test_a_cell_that_is_no_number_is_found_in_later_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(text_table, "BLOCK_BYTES", 64)
    rows = [f"{k}, {k}.5 ,NA" for k in range(40)]
    rows[31] = "31,1_000,x"
    (tmp_path / "e.csv").write_text("0,1\n")
    (tmp_path / "n.csv").write_text("\n".join(["a,b,c", *rows]))
    with pytest.raises(GraphError, match=r"column 'b', row 32: got '1_000'"):
        load(tmp_path, features="n.csv")


def test_labels_of_vertices_without_edges_are_joined_by_the_features(folder):
    (folder / "n.csv").write_text("id,x\nann,0\nbob,1\ncarl,2\ndora,3\nzoe,4\n")
    (folder / "l.csv").write_text("id,label\nzoe,0\n")
    assert load(folder, features="n.csv", labels="l.csv").labels.tolist() == [-1, -1, -1, -1, 0]
