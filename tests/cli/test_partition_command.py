"""``simgnn partition`` tells how good an edge-cut and a vertex-cut are, in words and for machines."""

import json

import numpy as np
import pytest

from simgnn.cli.main import invoke
from simgnn.graph.load import load_graph
from simgnn.partition.partition import partitioned
from simgnn.partition.partitioners.ebv import Ebv
from simgnn.partition.statistics.count import partition_stats
from simgnn.partition.statistics.partition_stats import measure

GRAPH = {"vertices": 400, "edges": 2500, "classes": 4, "feature_width": 16}  # of the fixture "small"
CLUSTER = ["--set", "cluster.hosts=2", "--set", "cluster.ranks_per_host=2"]
EBV = ["--set", "partition.kind=ebv", *CLUSTER]


def test_a_vertex_cut_tells_replication_balance_and_connections(small, capsys) -> None:
    for gamma in (0.0, 0.1):
        assert invoke(["partition", str(small), *EBV, "--set", f"partition.gamma={gamma}", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        graph = load_graph("synthetic:communities", options=GRAPH)
        assert (graph.vertices, graph.edges) == (told["vertices"], told["edges"])
        hosts = np.array([0, 0, 1, 1])
        expected = measure(partition_stats(graph, partitioned(Ebv(gamma=gamma), graph, hosts, 0), hosts)).as_dict()
        assert {key: told[key] for key in expected} == expected
        assert told["inner_sum"] + told["outer_sum"] == 2 * told["copies"]


def test_the_table_names_what_it_tells(small, capsys) -> None:
    assert invoke(["partition", str(small), *EBV]) == 0
    text = capsys.readouterr().out
    for name in ("replication factor", "vertex imbalance", "edge imbalance", "mirrors", "connections inside hosts"):
        assert name in text
    assert "None" not in text
    assert "edge cut" not in text
    assert invoke(["partition", str(small), *CLUSTER]) == 0
    text = capsys.readouterr().out
    assert "edge cut" in text
    assert "halo rows" in text


def test_help_teaches_the_measures(capsys) -> None:
    assert invoke(["partition", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for name in ("replication factor", "imbalance", "connections", "partition.kind=ebv", "partition.gamma"):
        assert name in text


@pytest.mark.parametrize(("key", "value"), [("gamma", "1.0"), ("edge_order", "sorted"), ("master", "last")])
def test_bad_options_name_their_key(small, capsys, key: str, value: str) -> None:
    assert invoke(["partition", str(small), *EBV, "--set", f"partition.{key}={value}"]) == 2
    assert f"partition.{key}: got" in capsys.readouterr().err


def test_an_edge_list_is_a_source(tmp_path, capsys) -> None:
    np.save(tmp_path / "list.npy", np.random.default_rng(0).integers(0, 90, (800, 2)))
    arguments = ["partition", "vanilla", *EBV, "--set", f"graph.source={tmp_path / 'list.npy'}", "--json"]
    assert invoke(arguments) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["graph"], told["vertices"], told["kind"]) == ("list", 90, "vertex-cut")


def test_one_rank_and_a_graph_without_edges(small, tmp_path, capsys) -> None:
    one = ["partition", str(small), "--set", "partition.kind=ebv", "--ranks", "1", "--json"]
    np.save(tmp_path / "none.npy", np.empty((0, 2), np.int64))
    bare = ["--set", f"graph.source={tmp_path / 'none.npy'}", "--set", "graph.vertices=9"]
    for arguments in (one, ["partition", "vanilla", *EBV, *bare, "--json"]):
        assert invoke([*arguments, "--stats", str(tmp_path / "stats.toml")]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["replication_factor"], told["copies"], told["inner_sum"], told["outer_sum"]) == (1.0, 0, 0, 0)


def test_an_edge_cut_tells_its_balance_by_type_of_vertex(small, capsys) -> None:
    arguments = ["partition", str(small), *CLUSTER, "--set", "partition.kind=random"]
    assert invoke([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [entry["type"] for entry in told["types"]] == ["train", "validation", "test"]
    assert sum(entry["vertices"] for entry in told["types"]) == told["vertices"]
    assert sum(entry["edges"] for entry in told["types"]) == told["edges"]
    assert all(1 <= entry["vertex_imbalance"] <= 4 and 1 <= entry["edge_imbalance"] <= 4 for entry in told["types"])
    assert invoke(arguments) == 0
    assert "balance by type of vertex" in capsys.readouterr().out
    assert invoke(["partition", str(small), *EBV, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["types"] is None
