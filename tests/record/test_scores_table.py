"""The table of scores: vertices and classes by the names that the user gave them."""

import numpy as np

from simgnn.record.scores import scores_table

SCORES = np.array([[0.1, 0.9], [0.8, -0.2]])


def test_vertices_and_classes_have_their_names() -> None:
    table = scores_table(SCORES, False, np.array(["ann", "bob"]), ("red", "blue"))
    assert table.column_names == ["vertex", "class", "class_name", "score_0", "score_1"]
    assert table["vertex"].to_pylist() == ["ann", "bob"]
    assert table["class_name"].to_pylist() == ["blue", "red"]


def test_numbers_have_no_names() -> None:
    table = scores_table(SCORES, False, np.arange(2))
    assert table.column_names == ["vertex", "class", "score_0", "score_1"]
    assert table["class"].to_pylist() == [1, 0]
