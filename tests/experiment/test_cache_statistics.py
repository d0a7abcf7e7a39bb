"""Caches of halo rows from a statistics file: programs are those of the graph for every capacity, and files without the
table, or with an impossible one, are refused."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from simgnn.api.partition import make_partitions
from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.experiment.schema import Experiment
from simgnn.hardware.profile.profile import load_profile
from simgnn.partition.statistics.file import load_partitions, load_stats, save_stats
from simgnn.partition.statistics.halo_rows import HALO_VERTICES
from simgnn.planner.prepare import Prepared, prepare
from simgnn.program.storage import program_digest

CACHED = ["freshness.kind=refresh-interval", "freshness.refresh_interval=2", "model.hidden=8", "train.epochs=4"]
WIDE = ["graph.classes=4", "graph.feature_width=12"]
GRAPHS = {
    "communities": ["graph.source=synthetic:communities", "graph.vertices=600", "graph.edges=4000", *WIDE],
    "rmat": ["graph.source=synthetic:rmat", "graph.vertices=700", "graph.edges=5000", *WIDE],
    "cora": ["graph.source={data}/cora.npz"],
}
CAPACITIES = [(0, 0), (17, 0), (0.2, 0.5), (0, 40), (0.05, 0.0), (1.0, 1.0), (10**6, 3)]
RULES = [[], ["freshness.order=low"], ["freshness.global_rank=uncovered"], ["freshness.top_k=9"]]
PARTITIONS = {
    "metis": (["partition.kind=metis", "partition.balance=['vertices']"], 1),
    "random": (["partition.kind=random"], 1),
    "two hosts": (["partition.kind=random"], 2),
    "apart": (["partition.kind=metis", "partition.inter_machine=gradients"], 2),
    "rapa": (["partition.kind=rapa"], 1),
}
FEW = {("rmat", 3, "random"), ("communities", 4, "two hosts")}
PROFILE = "mixed-pcie3-8"


def cases() -> list[object]:
    found: list[object] = []
    for graph, ranks, partition in product(GRAPHS, (2, 3, 4), PARTITIONS):
        if ranks % PARTITIONS[partition][1] == 0:
            slow = () if (graph, ranks, partition) in FEW else pytest.mark.slow
            found.append(pytest.param(graph, ranks, partition, marks=slow))
    return found


def experiment_of(settings: list[str], ranks: int, hosts: int) -> Experiment:
    return load_experiment("vanilla", [*CACHED, *settings], hardware=PROFILE).with_cluster(hosts, ranks // hosts)


def with_caches(experiment: Experiment, device_rows: float, host_rows: float, rule: list[str]) -> Experiment:
    """The experiment with other caches; nothing else changes, so the partition stays."""
    placement = {"kind": "device", "device_rows": device_rows, "host_rows": host_rows}
    freshness = experiment.freshness.model_dump() | dict(one.removeprefix("freshness.").split("=") for one in rule)
    freshness["top_k"] = int(freshness["top_k"])
    return experiment.model_copy(
        update={
            "placement": type(experiment.placement).model_validate(placement),
            "freshness": type(experiment.freshness).model_validate(freshness),
        }
    )


@pytest.mark.parametrize(("graph", "ranks", "partition"), cases())
def test_programs_are_those_of_the_graph(
    graph: str, ranks: int, partition: str, data_dir: Path, tmp_path: Path
) -> None:
    source = [one.format(data=data_dir) for one in GRAPHS[graph]]
    divided, hosts = PARTITIONS[partition]
    whole, file = experiment_of([*source, *divided], ranks, hosts), tmp_path / "stats.toml"
    make_partitions([whole], file, False, None)
    read = experiment_of([f"graph.source=stats:{file}", divided[0]], ranks, hosts)
    numbers = load_partitions(file)[0].tables[
        HALO_VERTICES
    ]  # of RAPA the file also holds the parts that it starts from
    assert sorted(set(numbers.tolist())) == list(range(len(set(numbers.tolist())))), "no id of the graph is in it"
    profile = load_profile(PROFILE) if partition == "rapa" else None
    rules = RULES if ranks == 4 else RULES[:2]
    sizes = set()
    for (device_rows, host_rows), rule in product(CAPACITIES, rules):
        found: list[Prepared] = []
        for experiment in (whole, read):
            found.append(prepare(with_caches(experiment, device_rows, host_rows, rule), profile=profile))
        counted, told = (one.planned.program for one in found)
        for name, route in counted.sizes.routes.items():
            np.testing.assert_array_equal(told.sizes.routes[name].matrix(ranks), route.matrix(ranks), err_msg=name)
        assert program_digest(told) == program_digest(counted), (device_rows, host_rows, rule)
        sizes.add(program_digest(counted))
    if partition == "apart" and ranks == 2:
        assert len(sizes) == 1, "a rank alone on its host has no halo rows"
    elif ranks == 2 or partition == "apart":
        assert len(sizes) == len(CAPACITIES), "every halo row is one rank's, so that no rule differs"
    else:
        assert len(sizes) > len(CAPACITIES), "capacities and rules choose other rows"
    assert not found[1].estimated


def small_stats(tmp_path: Path, freshness: tuple[str, ...] = tuple(CACHED[:2])) -> Path:
    file, settings = tmp_path / "stats.toml", [*GRAPHS["communities"], "partition.kind=random", *freshness]
    make_partitions([load_experiment("vanilla", settings, ranks=3)], file, False, None)
    return file


def test_a_file_without_the_table_is_refused(tmp_path: Path) -> None:
    file = small_stats(tmp_path, ())
    assert HALO_VERTICES not in load_stats(file).tables, "nobody asked for it"
    read = experiment_of([f"graph.source=stats:{file}", "partition.kind=random"], 3, 1)
    prepare(with_caches(read, 0, 0, []))
    with pytest.raises(ConfigError) as refused:
        prepare(with_caches(read, 5, 0, []))
    (problem,) = refused.value.problems
    assert problem.startswith("freshness.kind: got 'refresh-interval'")
    assert "simgnn partition EXPERIMENT --set freshness.kind=refresh-interval --stats FILE" in problem


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda table: table[:-1], "got numbers of shape"),
        (lambda table: np.where(np.arange(len(table)) == 1, table[0], table), "a vertex twice in its halo"),
        (lambda table: table + 10**6, "expected numbers below graph.vertices"),
        (lambda table: table[::-1], "have different owners"),
        (lambda table: table.astype(float) / 2, "expected whole numbers"),
    ],
)
def test_an_impossible_table_is_refused(change, told: str, tmp_path: Path) -> None:
    stats = load_stats(small_stats(tmp_path))
    tables = {**stats.tables, HALO_VERTICES: change(stats.tables[HALO_VERTICES])}
    save_stats(replace(stats, tables=tables, origin=None), tmp_path / "changed.toml")
    with pytest.raises(ConfigError, match=rf"tables\.{HALO_VERTICES}: .*{told}"):
        load_stats(tmp_path / "changed.toml")


def test_a_halo_that_is_too_large_to_list_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simgnn.api.partition.MOST_ROWS_IN_FILE", 10)
    said: list[str] = []
    file = tmp_path / "stats.toml"
    make_partitions([experiment_of([*GRAPHS["communities"], "partition.kind=random"], 3, 1)], file, False, said.append)
    assert HALO_VERTICES not in load_stats(file).tables
    assert any("halo rows are more than the 10 that a file lists: caches" in line for line in said)
