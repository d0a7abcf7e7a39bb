"""Edge lists (CSV, TSV, gzip), Parquet and Matrix Market."""

import gzip

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from scipy import sparse
from scipy.io import mmwrite

from simgnn.errors import GraphError
from simgnn.graph.load import load_graph
from simgnn.graph.readers import text_table

PATH_INDICES = [1, 0, 2, 1, 3, 2]


def load(path, **options):
    return load_graph(str(path), options=options)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain.csv", "0,1\n1,2\n2,3\n"),
        ("no_newline.csv", "0,1\n1,2\n2,3"),
        ("header.csv", "source,target\n0,1\n1,2\n2,3\n"),
        ("swapped.csv", "weight,dst,src\n.5,1,0\n.5,2,1\n.1,3,2\n"),
        ("quoted.csv", '"src","dst"\n0,1\n1,2\n2,3\n'),
        ("foreign_header.csv", "a,b\n0,1\n1,2\n2,3\n"),
        ("tabs.tsv", "0\t1\n1\t2\n2\t3\n"),
        ("snap.txt", "# Nodes: 4\n# FromNodeId\tToNodeId\n0\t1\n1\t2\n2\t3\n"),
        ("blank.txt", "% konect\n0 1\n1 2\n2 3\n"),
        ("middle.csv", "0,1\n# a comment\n1,2\n\n2,3\n% another\n"),
        ("windows.csv", "# c\r\nsource,target\r\n0,1\r\n\r\n1,2\r\n2,3\r\n"),
        ("mark.csv", "\ufeffsource,target\n0,1\n1,2\n2,3\n"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_edge_lists(tmp_path, name, text, packed):
    path = tmp_path / (name + ".gz" if packed else name)
    data = text.encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    graph = load(path)
    assert graph.csr.indices.tolist() == PATH_INDICES
    assert graph.vertices == 4
    assert graph.name == name.split(".")[0]
    assert (graph.features, graph.labels) == (None, None)


def test_many_blocks_give_the_same_graph(tmp_path, monkeypatch):
    pairs = np.random.default_rng(0).integers(0, 500, (5000, 2))
    lines = [f"{u},{v}\n" + ("# note\n" if k % 997 == 0 else "") for k, (u, v) in enumerate(pairs)]
    path = tmp_path / "many.csv"
    path.write_text("".join(lines))
    whole = load(path, vertices=500, symmetrise=False)
    monkeypatch.setattr(text_table, "BLOCK_BYTES", 1024)
    parts = load(path, vertices=500, symmetrise=False)
    np.testing.assert_array_equal(whole.csr.indices, parts.csr.indices)
    expected = sparse.csr_array((np.ones(5000), (pairs[:, 1], pairs[:, 0])), (500, 500))
    expected.setdiag(0)
    expected.eliminate_zeros()
    assert parts.edges == expected.nnz


def test_other_columns_are_noted_and_isolated_vertices_kept(tmp_path):
    path = tmp_path / "w.csv"
    path.write_text("source,target,weight\n0,1,0.5\n")
    graph = load(path, vertices=7)
    assert graph.vertices == 7
    assert any("weight" in note for note in graph.notes)


def test_an_empty_list_needs_the_number_of_vertices(tmp_path):
    path = tmp_path / "empty.csv"
    path.write_text("# nothing\n")
    with pytest.raises(GraphError, match=r"graph\.vertices"):
        load(path)
    assert load(path, vertices=3).edges == 0
    path.write_text("source,target\n")
    assert load(path, vertices=3).edges == 0
    with pytest.raises(GraphError, match="at least 1 vertex"):
        load(path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0,1\n1,x\n", "not an edge list"),
        ("0,1\n1\n", "not an edge list"),
        ("0,1\n1,\n", "not an edge list"),
        ("0,1\n1,2,3\n", "not an edge list"),
        ("0,1\n1.5,2\n", "not an edge list"),
        ("0,1\n1,99999999999999999999\n", "not an edge list"),
        ("one column\n"[:3] + "\n", "expected two columns"),
        ("0,1\n1,-2\n", "0 or more"),
    ],
)
def test_bad_edge_lists(tmp_path, text, told):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(GraphError, match=told) as caught:
        load(path)
    assert "bad.csv" in str(caught.value)


def test_ids_beyond_the_stated_vertices(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text("0,9\n")
    with pytest.raises(GraphError, match=r"0\.\.3"):
        load(path, vertices=4)


def test_cut_off_and_binary_files(tmp_path):
    whole = gzip.compress(b"".join(b"%d,%d\n" % (k, k + 1) for k in range(5000)))
    (tmp_path / "cut.csv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(GraphError, match="cut off"):
        load(tmp_path / "cut.csv.gz")
    (tmp_path / "no.csv.gz").write_bytes(b"not gzip at all")
    with pytest.raises(GraphError, match="not a readable file"):
        load(tmp_path / "no.csv.gz")
    (tmp_path / "no.csv").write_bytes(b"\xff\xfe\x00,\x01")
    with pytest.raises(GraphError, match="not text"):
        load(tmp_path / "no.csv")


@pytest.mark.parametrize("names", [("source", "target"), ("src", "dst")])
def test_parquet(tmp_path, names):
    table = pa.table({names[0]: [0, 1, 2], names[1]: [1, 2, 3], "weight": [1.0, 2.0, 3.0]})
    pq.write_table(table, tmp_path / "g.parquet", row_group_size=2)
    graph = load(tmp_path / "g.parquet")
    assert graph.csr.indices.tolist() == PATH_INDICES
    assert any("weight" in note for note in graph.notes)
    assert load(tmp_path / "g.parquet", vertices=9).vertices == 9
    pq.write_table(table.replace_schema_metadata({"vertices": "6"}), tmp_path / "g.parquet")
    assert load(tmp_path / "g.parquet").vertices == 6


@pytest.mark.parametrize(
    ("columns", "metadata", "told"),
    [
        ({"a": [1], "b": [2]}, {}, "expected columns source and target"),
        ({"src": [0.5], "dst": [1.0]}, {}, "must hold integers"),
        ({"src": [0, None], "dst": [1, 2]}, {}, "1 empty values"),
        ({"src": [0], "dst": [1]}, {"vertices": "many"}, "whole number"),
        ({"src": [0], "dst": [9]}, {"vertices": "3"}, r"0\.\.2"),
    ],
)
def test_bad_parquet(tmp_path, columns, metadata, told):
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), tmp_path / "bad.parquet")
    with pytest.raises(GraphError, match=told):
        load(tmp_path / "bad.parquet")


def test_cut_off_parquet(tmp_path):
    pq.write_table(pa.table({"src": [0], "dst": [1]}), tmp_path / "g.parquet")
    whole = (tmp_path / "g.parquet").read_bytes()
    for kept in (0, 5, len(whole) - 6):
        (tmp_path / "cut.parquet").write_bytes(whole[:kept])
        with pytest.raises(GraphError, match="not a readable Parquet file"):
            load(tmp_path / "cut.parquet")


def test_matrix_market(tmp_path):
    path = tmp_path / "g.mtx"
    mmwrite(path, sparse.coo_array((np.ones(3), ([0, 1, 2], [1, 2, 3])), (5, 5)))
    graph = load(path)
    assert graph.csr.indices.tolist() == PATH_INDICES
    assert graph.vertices == 5
    assert graph.csr.weights is None
    packed = tmp_path / "h.mtx.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert load(packed).csr.indices.tolist() == PATH_INDICES
    assert load(packed).name == "h"
    directed = load(path, symmetrise=False)
    assert directed.csr.indptr.tolist() == [0, 0, 1, 2, 3, 3]
    (tmp_path / "s.mtx").write_text("%%MatrixMarket matrix coordinate pattern symmetric\n4 4 3\n2 1\n3 2\n4 3\n")
    assert load(tmp_path / "s.mtx").csr.indices.tolist() == PATH_INDICES
    assert load(tmp_path / "s.mtx").notes == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("%%MatrixMarket matrix array real general\n2 2\n1\n2\n3\n4\n", "'coordinate'"),
        ("%%MatrixMarket matrix coordinate pattern general\n2 3 1\n1 3\n", "square; got 2 x 3"),
        ("%%MatrixMarket matrix coordinate pattern general\n4 4 3\n2 1\n", "not a readable Matrix Market"),
        ("%%MatrixMarket matrix coordinate pattern general\n2 2 1\n7 1\n", "not a readable Matrix Market"),
        ("hello\n", "not a readable Matrix Market"),
        ("", "not a readable Matrix Market"),
    ],
)
def test_bad_matrix_market(tmp_path, text, told):
    (tmp_path / "bad.mtx").write_text(text)
    with pytest.raises(GraphError, match=told):
        load(tmp_path / "bad.mtx")
