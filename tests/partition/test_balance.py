"""METIS by the work of an epoch: one weight a vertex, and what each rank then has."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

from simgnn.cli.main import invoke
from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.graph.graph import Graph, GraphFacts
from simgnn.graph.load import load_graph
from simgnn.partition.algorithms.metis import LARGEST_SUM, whole_numbers
from simgnn.partition.balance import rank_loads, vertex_work
from simgnn.partition.partition import partitioned
from simgnn.partition.partitioners.metis import Metis
from simgnn.planner.epoch_work import epoch_weights, with_weights
from tests.partition.partition_graphs import graph_of

RMAT = {"vertices": 4096, "edges": 60_000, "feature_width": 16, "classes": 4}


@pytest.fixture(scope="module")
def rmat() -> Graph:
    """A graph whose vertices have very different degrees."""
    return load_graph("synthetic:rmat", options=RMAT)


def weights(facts: GraphFacts, system: str = "vanilla", *settings: str) -> dict[str, float]:
    return epoch_weights(load_experiment(system, settings, trains=False), facts, lambda text: None)


def test_loads_by_hand() -> None:
    # 0 -> 1, 0 -> 2, 2 -> 1, 3 -> 2, 3 -> 1; rank 0 owns 0 and 1
    graph = graph_of(np.array([(0, 1), (0, 2), (2, 1), (3, 2), (3, 1)]), 4)
    object.__setattr__(graph, "train_mask", np.array([True, True, False, False]))
    given = {"vertices": 1.0, "edges": 0.5, "train": 2.0}
    degrees = graph.csr.degrees()
    assert vertex_work(graph, given).tolist() == (1 + 0.5 * degrees + [2, 2, 0, 0]).tolist()
    loads = rank_loads(graph, np.array([0, 0, 1, 1]), 2, given)
    sources = [set(graph.csr.indices[graph.csr.indptr[v] : graph.csr.indptr[v + 1]].tolist()) for v in range(4)]
    assert loads.vertices.tolist() == [2, 2]
    assert loads.edges.tolist() == [degrees[:2].sum(), degrees[2:].sum()]
    assert loads.halo_rows.tolist() == [
        len((sources[0] | sources[1]) - {0, 1}),
        len((sources[2] | sources[3]) - {2, 3}),
    ]
    assert loads.cut_edges == sum(len(s - {0, 1}) for s in sources[:2]) + sum(len(s - {2, 3}) for s in sources[2:])
    assert loads.imbalances()["work"] == pytest.approx(max(loads.work) * 2 / sum(loads.work))
    object.__setattr__(graph, "test_mask", None)
    with pytest.raises(ConfigError, match=r"partition\.weights\.test: .*has no test vertices"):
        vertex_work(graph, {"test": 1.0})


def test_whole_numbers_keep_proportions_within_metis_range() -> None:
    assert whole_numbers(np.array([1.0, 1.5, 0.5])).tolist() == [1000, 1500, 500]
    many = np.ones(2_000_000)
    many[0] = 1e-9
    found = whole_numbers(many)
    assert found.min() == 1
    assert found.sum() <= LARGEST_SUM + len(many)


def test_work_is_balanced_where_vertices_alone_are_not(rmat: Graph) -> None:
    hosts, work = np.zeros(16, np.int64), weights(rmat.facts())
    found = {
        name: rank_loads(rmat, partitioned(policy.weighed(lambda: work), rmat, hosts, 0).owner, 16, work).imbalances()
        for name, policy in Metis().alternatives()
    }
    assert list(found) == ["auto", "[vertices]", "[edges]"]
    assert found["auto"]["work"] < 1.1
    assert found["[vertices]"]["work"] > 1.2
    assert found["[edges]"]["work"] > 1.2
    assert found["[vertices]"]["edges"] > found["auto"]["edges"]


def test_parts_of_hosts_weigh_all_in_edges(rmat: Graph) -> None:
    """Of a host's part alone, a vertex with neighbours on the other host would weigh too little."""
    hosts, work = np.repeat([0, 1], 4), weights(rmat.facts())
    policy = Metis(across="hosts", imbalance=1.01).weighed(lambda: work)
    loads = rank_loads(rmat, partitioned(policy, rmat, hosts, 0).owner, 8, work)
    for host in (0, 1):
        own = loads.work[hosts == host]
        assert own.max() / own.mean() < 1.05


def test_weights_follow_the_layers(rmat: Graph) -> None:
    facts = rmat.facts()
    wide, narrow = (weights(facts, "vanilla", f"model.hidden={hidden}")["edges"] for hidden in (1024, 32))
    assert narrow > 2 * wide, "dense products grow with the square of the width, sums with the width"
    assert weights(facts, "vanilla", "model.kind=gat")["edges"] > weights(facts)["edges"], "attention works on edges"
    assert weights(facts, "vanilla", "model.kind=sage")["edges"] < weights(facts)["edges"], "two products a vertex"
    assert weights(facts)["vertices"] == 1.0


def test_weights_are_shares_of_flops_and_bytes_by_hand() -> None:
    """A GCN of one layer from 8 to 4 classes that sums its inputs in every epoch."""
    V, E, train = 1000, 10_000, 600
    facts = GraphFacts("g", V, E, 8, None, 4, False, train, 0, 0)
    found = weights(facts, "vanilla", "model.layers=1", "model.hoist=never", "model.order=aggregate-first")
    # two products [V, 8] x [8, 4], three ops of four passes over [V, 4], the loss, rows and pointers of the sum
    flops = 2 * (2 * V * 8 * 4) + 3 * V * 4 + train * 4
    moved = 2 * 4 * (V * 8 + V * 4) + 4 * 4 * V * 4 + 4 * train * 4 + 4 * V * 8 + 8 * V
    summed, read = 2 * E * 8, E * (4 * 8 + 4)
    edge = summed / (flops + summed) + read / (moved + read)
    assert found["edges"] == pytest.approx(edge / E / ((2 - edge) / V), rel=0.01)


def test_mini_batches_weigh_seeds_and_stored_rows() -> None:
    facts = GraphFacts("g", 1000, 10_000, 8, None, 4, False, 100, 0, 0)
    assert weights(facts, "rapidgnn") == {"vertices": 1.0, "train": 10.0}


def test_a_graph_that_cannot_be_trained_on_is_divided(rmat: Graph) -> None:
    bare = Graph(rmat.name, rmat.csr, symmetric=True)
    found = weights(bare.facts())
    assert found.keys() == {"vertices", "edges"}
    assert weights(Graph("alone", type(rmat.csr)(np.zeros(6, np.int64), np.zeros(0, np.int32), 5)).facts()) == {
        "vertices": 1.0
    }


@pytest.mark.parametrize(
    ("system", "settings"),
    [
        ("vanilla", ["schedule.kind=pipelined"]),
        ("vanilla", ["codec.kind=linear", "freshness.kind=adaptive-vertex", "freshness.epsilon=0.1"]),
        ("vanilla", ["model.kind=gin", "model.hoist=never"]),
        ("cagnet", ["partition.kind=metis"]),
        ("sancus", ["partition.kind=metis"]),
        ("cdfgnn", ["partition.kind=metis"]),
    ],
)
def test_every_full_graph_policy_has_weights(system: str, settings: list[str], rmat: Graph) -> None:
    assert weights(rmat.facts(), system, *settings)["edges"] > 0


def test_only_who_asks_gets_weights(rmat: Graph) -> None:
    for settings in (["partition.kind=random"], ['partition.balance=["edges"]'], ["partition.weights={edges=2.0}"]):
        experiment = load_experiment("vanilla", settings)
        assert with_weights(experiment, rmat.facts(), lambda text: None) is experiment
    experiment = with_weights(load_experiment("vanilla"), rmat.facts(), lambda text: None)
    assert isinstance(experiment.partition, Metis)
    assert experiment.partition.weights == weights(rmat.facts())
    with pytest.raises(ConfigError, match=r"partition\.weights: missing"):
        partitioned(Metis(), rmat, np.zeros(2, np.int64), 0)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("partition.balance=edgs", "did you mean 'edges'"),
        ("partition.balance=[]", "expected 'auto' or a list"),
        ('partition.balance=["edges","edges"]', "names a quantity twice"),
        ("partition.weights={edgs=3}", "for some of vertices, edges"),
        ("partition.weights={edges=0}", "numbers above 0"),
        ("partition.weights={}", "numbers above 0"),
    ],
)
def test_bad_balances_name_their_key(setting: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        load_experiment("vanilla", [setting])
    assert setting.partition("=")[0] in str(caught.value)


def test_weights_without_auto_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"partition\.weights: .*expected it only with 'auto'"):
        load_experiment("vanilla", ["partition.weights={edges=2.0}", 'partition.balance=["edges"]'])


def test_the_command_shows_what_other_choices_would_give(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sets = [f"graph.{key}={value}" for key, value in RMAT.items()]
    words = ["graph.source=synthetic:rmat", *sets]
    common = ["partition", "vanilla", "--ranks", "8", *(part for each in words for part in ("--set", each))]
    assert invoke([*common, "--json", "--stats", str(tmp_path / "s.toml")]) == 0
    auto, vertices, edges = json.loads(capsys.readouterr().out)["balances"]
    assert (auto["choice"], vertices["choice"], edges["choice"]) == ("auto", "[vertices]", "[edges]")
    assert auto["work"] < vertices["work"]
    assert {"vertices", "edges", "halo_rows", "work", "cut_edges"} < auto.keys()
    made_by = tomllib.loads((tmp_path / "s.toml").read_text())["partition"]["made_by"]
    assert made_by["balance"] == "auto"
    assert made_by["weights"]["vertices"] == 1.0
    assert invoke([*common, "--no-alternatives"]) == 0
    text = capsys.readouterr().out
    assert "fullest rank over the mean" in text
    assert "[edges]" not in text


def test_statistics_made_by_work_serve_other_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stats = tmp_path / "s.toml"
    small = ["--set", "graph.vertices=400", "--set", "graph.edges=2500"]
    assert invoke(["partition", "vanilla", *small, "--ranks", "2", "--no-alternatives", "--stats", str(stats)]) == 0
    for sets in ([], ["--set", "partition.balance=auto"]):
        words = ["simulate", "vanilla", "--set", f"graph.source=stats:{stats}", "--set", "model.hidden=32", *sets]
        assert invoke([*words, "--out", str(tmp_path / f"out{len(sets)}")]) == 0
    words = ["simulate", "vanilla", "--set", f"graph.source=stats:{stats}", "--set", 'partition.balance=["vertices"]']
    assert invoke([*words, "--out", str(tmp_path / "no")]) == 2
    assert "partition.balance: got ['vertices'], but the partition in" in " ".join(capsys.readouterr().err.split())
