"""Tables as users have them: names that look like comments or numbers, quoted separators, one file under two paths."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from simgnn.errors import GraphError
from simgnn.graph.load import load_graph


def load(folder, source="e.csv", **options):
    return load_graph(source, base=folder, options=options)


def write(folder, edges, people):
    (folder / "e.csv").write_text(edges)
    (folder / "p.csv").write_text(people)
    return load(folder, features="p.csv", labels="p.csv")


def test_names_that_begin_like_comments_are_kept(tmp_path):
    graph = write(
        tmp_path,
        "# all tags\nsource,target\n#red,bob\nbob,carl\n# a comment\n%blue,#red\n",
        "id,x,y\n#red,1,0\n# a comment\nbob,2,1\ncarl,3,0\n%blue,4,1\n",
    )
    assert graph.vertex_ids.tolist() == ["#red", "%blue", "bob", "carl"]
    assert graph.edges == 2 * 3
    assert graph.features.ravel().tolist() == [1, 4, 2, 3]
    (tmp_path / "n.csv").write_text("0,1\n#1,2\n")
    with pytest.raises(GraphError, match=r"n\.csv: not an edge list"):  # neither is left out without a word
        load(tmp_path, "n.csv")


def test_leading_zeros_are_those_of_the_table(tmp_path):
    graph = write(tmp_path, "source,target\n100,007\n007,7\n", "id,x,y\n100,1,0\n007,2,1\n7,3,0\n")
    assert graph.vertex_ids.tolist() == ["007", "100", "7"]
    assert graph.features.ravel().tolist() == [2, 1, 3]


def test_separators_between_quotation_marks_separate_nothing(tmp_path):
    people = 'id;"height, cm";y\n"Doe; J";1;0\nbob;2;1\n'
    graph = write(tmp_path, 'source,target\n"Doe; J",bob\n', people)
    assert graph.vertex_ids.tolist() == ["Doe; J", "bob"]
    assert graph.features.ravel().tolist() == [1, 2]


def test_labels_are_no_features_however_their_file_is_written(tmp_path):
    write(tmp_path, "source,target\n0,1\n", "id,x,y\n0,1,0\n1,2,1\n")
    for labels in ("p.csv", "./p.csv", f"../{tmp_path.name}/p.csv"):
        graph = load(tmp_path, features="p.csv", labels=labels)
        np.testing.assert_array_equal(graph.features, [[1], [2]])


@pytest.mark.parametrize("names", [("from", "to"), ("U", "V"), ("Source", "dst")])
def test_columns_of_parquet_have_the_names_of_text(tmp_path, names):
    pq.write_table(pa.table({names[1]: [1, 2], names[0]: [0, 1]}), tmp_path / "e.parquet")
    graph = load_graph("e.parquet", base=tmp_path, options={"symmetrise": False})
    assert graph.csr.indices.tolist() == [0, 1]
    assert graph.csr.indptr.tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize("stated", [{"feature_columns": ["x"]}, {"label_column": "y"}, {"split_column": 3}])
def test_a_column_of_a_file_without_columns_is_refused(tmp_path, stated):
    (tmp_path / "e.csv").write_text("0,1\n")
    np.save(tmp_path / "x.npy", np.ones((2, 1)))
    np.save(tmp_path / "y.npy", np.array([0, 1]))
    (key,) = stated
    with pytest.raises(GraphError, match=rf"graph\.{key}: got .*expected none: .* has none; remove it"):
        load(tmp_path, features="x.npy", labels="y.npy", splits={"train": 0.5, "test": 0.5}, **stated)


def test_labels_below_zero_and_huge_features_are_told_in_a_sentence(tmp_path, recwarn):
    (tmp_path / "e.csv").write_text("0,1\n")
    np.save(tmp_path / "x.npy", np.full((2, 3), 1e308))
    np.save(tmp_path / "y.npy", np.array([-5, -3]))
    with pytest.raises(GraphError, match=r"labels must be 0 or more \(-1 = no label\); got -5\.\.-3"):
        load(tmp_path, labels="y.npy")
    with pytest.raises(GraphError, match="features must be finite; vertex 0 has inf"):
        load(tmp_path, features="x.npy")
    assert not recwarn.list
