"""RAPA from a statistics file, without the graph: the file holds the parts that it starts from, so that other devices,
options, budgets and caches give the programs that they would give on the graph."""

import tomllib
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from simgnn.api.partition import make_partitions
from simgnn.errors import ConfigError, ShortMemoryError
from simgnn.experiment.load import load_experiment
from simgnn.experiment.schema import Experiment
from simgnn.hardware.profile.profile import load_profile
from simgnn.partition.statistics.file import load_partitions, save_partitions
from simgnn.partition.statistics.halo_rows import HALO_VERTICES, ROW_EDGES, ROW_NONZEROS, ROW_ORDER, rows_in_order
from simgnn.partition.statistics.partition_stats import DROPPED_EDGES, DROPPED_ROWS
from simgnn.planner.memory.program_memory import program_bytes
from simgnn.planner.prepare import Prepared, prepare
from simgnn.program.sizes import IntArray
from simgnn.program.storage import program_digest
from simgnn.tomlfile import write_toml

MODEL = ["model.hidden=8", "train.epochs=4"]
WIDE = ["graph.classes=4", "graph.feature_width=12"]
RAPA = "partition.kind=rapa"
CACHED = ["freshness.kind=refresh-interval", "freshness.refresh_interval=2"]
CAPACITIES = (["placement.device_rows=0.3", "placement.host_rows=0.5"], ["placement.device_rows=9"])
GRAPHS = {
    "communities": ["graph.source=synthetic:communities", "graph.vertices=600", "graph.edges=4000", *WIDE],
    "rmat": ["graph.source=synthetic:rmat", "graph.vertices=700", "graph.edges=5000", *WIDE],
    "cora": ["graph.source={data}/cora.npz"],
}
MADE_ON, OTHER = "mixed-pcie3-8", "cpu-100gbe-8"
TWO_HOSTS = "dgx-a100-2"
CHOICES = {
    "others": [], "sorted": ["partition.assign=sorted", "partition.eps_rel=0.001"], "auto": ["partition.alpha=auto"],
    "identity": ["partition.assign=identity", "partition.max_passes=1"], "edges": ["partition.alpha=0.9"],
}  # fmt: skip
FIRST = {("communities", 4, 2, "halo"), ("rmat", 3, 1, "halo"), ("cora", 2, 1, "halo"), ("rmat", 4, 2, "gradients")}


def experiment_of(settings: list[str], ranks: int, hosts: int = 1, hardware: str = MADE_ON) -> Experiment:
    return load_experiment("vanilla", [*MODEL, *settings], hardware=hardware).with_cluster(hosts, ranks // hosts)


def prepared(settings: list[str], ranks: int, hosts: int = 1, hardware: str = OTHER) -> Prepared:
    return prepare(experiment_of(settings, ranks, hosts, hardware), profile=load_profile(hardware))


def same(counted: Prepared, read: Prepared) -> None:
    """Both are the same partition, number by number but for what only the graph tells, and the same program."""
    assert counted.stats.rows.tolist() == read.stats.rows.tolist()
    assert counted.stats.edges.tolist() == read.stats.edges.tolist()
    for name, table in counted.stats.tables.items():
        if name == HALO_VERTICES:  # numbered otherwise
            table, found = (np.unique(one.stats.tables[name], return_inverse=True)[1] for one in (counted, read))
            np.testing.assert_array_equal(found, table)
        elif not name.startswith("locality") and name not in (
            "neighbor_feature_nonzeros",
            "aggregated_feature_nonzeros",
        ):
            np.testing.assert_array_equal(read.stats.tables[name], table, err_msg=name)
    assert program_digest(counted.planned.program) == program_digest(read.planned.program)
    assert counted.dropped_edges is not None
    assert read.dropped_edges is not None
    assert {**counted.dropped_edges, "status": None} == {**read.dropped_edges, "status": None}


def cases() -> list[object]:
    found: list[object] = []
    for graph, ranks, hosts, crosses in product(GRAPHS, (2, 3, 4), (1, 2), ("halo", "gradients")):
        if ranks % hosts == 0 and (hosts == 2 or crosses == "halo"):
            case = (graph, ranks, hosts, crosses)
            found.append(pytest.param(*case, marks=() if case in FIRST else pytest.mark.slow))
    return found


@pytest.mark.parametrize(("graph", "ranks", "hosts", "crosses"), cases())
def test_other_devices_options_and_caches_are_as_on_the_graph(
    graph: str, ranks: int, hosts: int, crosses: str, data_dir: Path, tmp_path: Path
) -> None:
    source, file = [one.format(data=data_dir) for one in GRAPHS[graph]], tmp_path / "stats.toml"
    crossing = [f"partition.inter_machine={crosses}"] if hosts > 1 else []
    made_on = MADE_ON if hosts == 1 else TWO_HOSTS
    make_partitions([experiment_of([*source, RAPA, *crossing], ranks, hosts, made_on)], file, False, None)
    numbers = {}
    for choice, options in CHOICES.items():
        settings = [RAPA, *crossing, *options]
        counted, read = (
            prepared([*where, *settings], ranks, hosts) for where in (source, [f"graph.source=stats:{file}"])
        )
        same(counted, read)
        numbers[choice] = counted.stats.tables[DROPPED_ROWS].tolist()
    if ranks // hosts > 1 and crosses == "halo":
        assert len({str(dropped) for dropped in numbers.values()}) > 1, "options choose other rows"
    for caches in CAPACITIES:
        settings = [RAPA, *crossing, *CACHED, *caches]
        same(*(prepared([*where, *settings], ranks, hosts) for where in (source, [f"graph.source=stats:{file}"])))


@pytest.fixture
def made(tmp_path: Path) -> Path:
    file = tmp_path / "stats.toml"
    make_partitions([experiment_of([*GRAPHS["rmat"], RAPA], 3)], file, False, None)
    return file


def test_a_budget_is_met_as_on_the_graph(made: Path) -> None:
    source = [f"graph.source=stats:{made}", RAPA, "partition.eps_rel=1.0", "partition.assign=identity"]
    whole = prepared([*source, "placement.device_bytes=10000000"], 3)
    assert whole.stats.tables[DROPPED_ROWS].sum() == 0
    needed = program_bytes(whole.planned.program, np.ones(3, np.bool_)).max()
    for share in (0.85, 0.95):
        settings = [RAPA, *source[2:], f"placement.device_bytes={int(share * needed)}"]
        counted, read = (prepared([*where, *settings], 3) for where in (GRAPHS["rmat"], source[:1]))
        same(counted, read)
        assert counted.stats.tables[DROPPED_ROWS].sum() > 0
    with pytest.raises(ShortMemoryError, match="without halos"):
        prepared([*source, "placement.device_bytes=10000"], 3)


def test_what_was_counted_from_the_graph_is_taken_where_it_fits(made: Path) -> None:
    own, start = load_partitions(made)
    assert own.made_by is not None
    assert start.made_by is not None
    assert (own.made_by["kind"], start.made_by["kind"], start.made_by["balance"]) == ("rapa", "metis", ["vertices"])
    source = f"graph.source=stats:{made}"
    read = prepared([source, RAPA], 3, hardware=MADE_ON)
    assert read.stats.digest == own.digest
    np.testing.assert_array_equal(read.stats.tables["locality/forward"], own.tables["locality/forward"])
    assert not [note for note in read.stats.notes if "locality" in note]
    other = prepared([source, RAPA], 3)
    assert any("counted before halo rows were dropped" in note and "locality" in note for note in other.stats.notes)
    assert other.stats.digest not in (own.digest, start.digest)
    assert ROW_ORDER not in other.stats.tables
    assert other.stats.origin is not None
    assert start.origin is not None
    assert other.stats.origin.graph == start.origin.graph
    assert not other.stats.origin.digests & start.origin.digests, "no recorded run is of this partition"
    # a file serves the parts themselves, and without a stated partition what was asked for when it was made
    assert prepared([source, "partition.kind=metis"], 3).stats.digest == start.digest
    table = tmp_toml(made, [source])
    assert (
        prepare(load_experiment(str(table), [], hardware=MADE_ON), profile=load_profile(MADE_ON)).stats.digest
        == own.digest
    )


def test_the_shipped_system_fits_its_caches_to_other_devices_as_on_the_graph(tmp_path: Path) -> None:
    source, file = GRAPHS["communities"], tmp_path / "stats.toml"
    make_partitions([load_experiment("capgnn", [*MODEL, *source], ranks=4, hardware=MADE_ON)], file, False, None)
    found = []
    for where in (source, [f"graph.source=stats:{file}"]):
        experiment = load_experiment("capgnn", [*MODEL, *where], ranks=4, hardware=OTHER)
        found.append(prepare(experiment, profile=load_profile(OTHER)))
    same(*found)
    assert found[0].planned.resolved == found[1].planned.resolved
    assert "placement.device_rows" in found[0].planned.resolved


def tmp_toml(made: Path, settings: list[str]) -> Path:
    path = made.with_name("plain.toml")
    path.write_text(f'[graph]\nsource = "{settings[0].partition("=")[2]}"\n[train]\nepochs = 2\n')
    return path


def test_order_and_edges_are_prefix_sums_of_the_halo(made: Path) -> None:
    start = load_partitions(made)[1]
    for rank in range(3):
        rows, edges = rows_in_order(start, rank)
        assert len(rows) == start.halo_rows()[rank]
        assert edges.min() >= 1
        assert edges.sum() == start.tables["cut_edges"][rank]


def test_parts_that_the_experiment_does_not_start_from_are_refused(made: Path, tmp_path: Path) -> None:
    source = f"graph.source=stats:{made}"
    for option, told in (("base=random", "kind = 'random'"), ("reorder=none", "reorder = 'none'")):
        with pytest.raises(ConfigError, match=r"partition\.kind: 'rapa' with these options starts from") as refused:
            prepared([source, RAPA, f"partition.{option}"], 3)
        assert told in str(refused.value)
    with pytest.raises(ConfigError, match=r"cluster\.hosts: got ranks on hosts \[0, 1, 2\]"):
        prepared([source, RAPA], 3, hosts=3)
    # without these parts, it serves the devices that it was made for
    alone = tmp_path / "alone.toml"
    save_partitions(load_partitions(made)[:1], alone)
    prepared([f"graph.source=stats:{alone}", RAPA], 3, hardware=MADE_ON)
    with pytest.raises(ConfigError, match="whose partition was made for rank 0"):
        prepared([f"graph.source=stats:{alone}", RAPA], 3)


@pytest.mark.parametrize(
    ("table", "change", "told"),
    [
        (ROW_EDGES, lambda edges: edges + 1, "add up to those of block_edges"),
        (ROW_ORDER, lambda order: order[::-1], "places 0, 1, 2"),
        (ROW_ORDER, lambda order: order[:-1], "got numbers of shape"),
        (ROW_NONZEROS, lambda none: none, "graph.feature_nonzeros is missing"),
    ],
)
def test_impossible_tables_are_refused(
    table: str, change: Callable[[IntArray], IntArray], told: str, made: Path, tmp_path: Path
) -> None:
    own, start = load_partitions(made)
    tables = {**start.tables, table: change(start.tables.get(table, start.tables[ROW_EDGES]))}
    changed = tmp_path / "changed.toml"
    save_partitions([own, replace(start, tables=tables, origin=None)], changed)
    with pytest.raises(ConfigError, match=rf"tables\.{table}: .*{told}"):
        load_partitions(changed)


def test_halos_that_are_too_large_to_list_leave_a_file_for_its_own_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simgnn.planner.fit_partition.MOST_ROWS_IN_FILE", 10)
    said: list[str] = []
    file = tmp_path / "stats.toml"
    make_partitions([experiment_of([*GRAPHS["rmat"], RAPA], 3)], file, False, said.append)
    assert [stats.made_by["kind"] for stats in load_partitions(file) if stats.made_by] == ["rapa"]
    assert any("that a file lists: it serves these devices only" in line for line in said)


def test_editing_is_noticed(made: Path) -> None:
    text = tomllib.loads(made.read_text())
    order = text["partition"][1]["tables"][ROW_ORDER]
    order[:2] = order[1::-1]  # another order, as possible as the one that was counted
    write_toml(made, text)
    with pytest.raises(ConfigError, match=r"counted_from\.numbers: the numbers of this file changed"):
        load_partitions(made)


def test_entries_of_sums_of_sparse_features_count_from_above(tmp_path: Path, data_dir: Path) -> None:
    """Which entries a sum over fewer rows lacks is not known without the graph."""
    source, file = [f"graph.source={data_dir}/cora.npz", "model.kind=gin"], tmp_path / "stats.toml"
    make_partitions([experiment_of([*source, RAPA], 2)], file, False, None)
    counted, read = (
        prepared([*where, RAPA], 2) for where in (source, [f"graph.source=stats:{file}", "model.kind=gin"])
    )
    assert counted.stats.tables[DROPPED_EDGES].tolist() == read.stats.tables[DROPPED_EDGES].tolist()
    assert counted.stats.tables[DROPPED_EDGES].sum() > 0
    for name in ("neighbor_feature_nonzeros", "aggregated_feature_nonzeros"):
        assert np.all(read.stats.tables[name] >= counted.stats.tables[name])
    assert any("entries of sums of sparse features" in note for note in read.stats.notes)
