"""``stats:`` files of summary numbers with counted tables: other shares of ranks are accepted, other totals are not."""

import json
from pathlib import Path

import pytest

from simgnn.errors import ConfigError
from simgnn.partition.statistics.file import load_stats

GRAPH = """
[graph]
name = "papers100M"
vertices = 1000
edges = 9001
feature_width = 128
classes = 172
train_vertices = 11
validation_vertices = 5
"""
SUMMARY = GRAPH + "feature_nonzeros = 5000\n[partition]\nkind = 'KIND'\nranks = 2\nreplication_factor = 1.5\n"
OWNED, MASTERS = (SUMMARY.replace("KIND", kind) for kind in ("edge-cut", "vertex-cut"))
COUNTED = {
    "masters": (MASTERS, "shared_masters = [251, 249]"),
    "masters of a fuller rank": (MASTERS + "vertex_imbalance = 1.1\n", "shared_masters = [400, 550]"),
    "labels of a fuller rank": (
        OWNED.replace("vertices = 11", "vertices = 995") + "vertex_imbalance = 1.1\n",
        "train_rows = [445, 550]",
    ),
    "edges": (OWNED, "block_edges = [[4000, 700], [301, 4000]]"),
    "features": (OWNED, "feature_nonzeros = [2700, 2300]"),
    "sums of features": (
        OWNED,
        "neighbor_feature_nonzeros = [6000, 2000]\naggregated_feature_nonzeros = [6500, 2200]",
    ),
}


def write(folder: Path, text: str) -> Path:
    path = folder / "stats.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("table", COUNTED)
def test_counted_tables_of_summary_numbers_need_not_be_even(table: str, tmp_path: Path) -> None:
    """Ranks and pairs have other numbers than their even shares; totals are the same."""
    text, counted = COUNTED[table]
    stats = load_stats(write(tmp_path, f"{text}[partition.tables]\n{counted}\n"))
    name, _, numbers = counted.splitlines()[0].partition(" = ")
    assert stats.tables[name].tolist() == json.loads(numbers)


CONTRADICTIONS = {
    "block_edges = [[1, 1], [1, 1]]": r"block_edges: add up to 4, expected graph\.edges = 9001",
    "feature_nonzeros = [1, 1]": r"feature_nonzeros: add up to 2, expected graph\.feature_nonzeros = 5000",
    "train_rows = [5, 5]": r"train_rows: add up to 10, expected graph\.train_vertices = 11",
    "degrees = [[1, 1000]]": r"degrees: add up to 1000 vertices and 1000 edges, expected 1000 and 9001",
}


@pytest.mark.parametrize("table", CONTRADICTIONS)
def test_tables_that_contradict_totals_are_rejected(table: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"partition\.tables\.{CONTRADICTIONS[table]}"):
        load_stats(write(tmp_path, f"{OWNED}[partition.tables]\n{table}\n"))


def test_sparse_tables_of_dense_features_are_refused(tmp_path: Path) -> None:
    text = GRAPH + "[partition]\nranks = 2\nhalo_rows = 3\n[partition.tables]\nfeature_nonzeros = [2, 3]\n"
    with pytest.raises(ConfigError, match=r"feature_nonzeros: .*graph\.feature_nonzeros is missing"):
        load_stats(write(tmp_path, text))


def test_hops_between_hosts_are_not_bound_by_even_shares(tmp_path: Path) -> None:
    """Rank 0 is master of all three rows that each other one gets."""
    text = GRAPH + "[partition]\nkind = 'vertex-cut'\nranks = 4\nhosts = [0, 0, 1, 1]\nhalo_rows = [0, 3, 3, 3]\n"
    hops = """[partition.tables]
shared_masters = [3, 0, 0, 0]
"mirrors/across" = [[0, 2, 3]]
"mirrors/within" = [[0, 1, 3], [2, 3, 3]]
"mirrors/across/hosts" = [[0, 2, 2, 3]]
"""
    stats = load_stats(write(tmp_path, text + hops))
    assert stats.halo.matrix(4)[0].tolist() == [0, 1, 1, 1]
