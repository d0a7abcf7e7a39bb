"""From an experiment to a plan on disk."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from simgnn.errors import BackendError, ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.experiment.schema import Experiment
from simgnn.partition.local.shards import shard_artifact
from simgnn.partition.statistics.file import save_stats
from simgnn.planner.directory import check_free, differences, write_run_directory
from simgnn.planner.prepare import Prepared, prepare
from simgnn.program.storage import load_program, program_digest
from simgnn.progress import Progress

SMALL = ["graph.vertices=300", "graph.edges=1500", "graph.classes=3", "graph.feature_width=8", "model.hidden=4"]


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    return prepare(load_experiment("vanilla", SMALL, ranks=2, epochs=3))


def test_preparing_twice_gives_the_same_program_and_reuses_the_partition(prepared: Prepared) -> None:
    again = prepare(load_experiment("vanilla", SMALL, ranks=2, epochs=3))
    assert program_digest(again.planned.program) == program_digest(prepared.planned.program)
    assert again.partition is not None
    assert not again.partition.made


@pytest.mark.parametrize(("system", "kind"), [("vanilla", "random"), ("cdfgnn", "ebv")])
def test_sparse_features_less_their_mean_are_prepared_alike_anew_and_from_statistics(
    system: str, kind: str, tmp_path: Path
) -> None:
    draw = np.random.default_rng(0)
    ring = np.stack((np.arange(60), np.roll(np.arange(60), 1)))
    ends = np.concatenate((ring, ring[::-1]), axis=1)
    edges = sparse.csr_array((np.ones(120), (ends[0], ends[1])), shape=(60, 60))
    features = sparse.random_array((60, 20), density=0.2, format="csr", dtype=np.float32, rng=draw)
    np.savez(
        tmp_path / "ring.npz", indptr=edges.indptr, indices=edges.indices, labels=draw.integers(0, 3, 60),
        feat_indptr=features.indptr, feat_indices=features.indices, feat_data=features.data, feat_shape=[60, 20],
    )  # fmt: skip
    options = [f"partition.kind={kind}", "model.hidden=4", f"graph.source={tmp_path / 'ring.npz'}"]
    found, files = [], []
    for name in ("one", "other"):
        prepared = prepare(load_experiment(system, [*options, "graph.centre=true"], ranks=2), cache=tmp_path / name)
        found.append((prepared.stats.digest, program_digest(prepared.planned.program)))
        assert prepared.graph is not None
        assert prepared.partition is not None
        files.append(shard_artifact(prepared.graph, prepared.partition, "float32", tmp_path / name).folder.files)
    assert found[0] == found[1]
    assert files[0] == files[1]
    assert "rank-1/features_mean" in files[0]
    plain = prepare(load_experiment(system, options, ranks=2), cache=tmp_path / "one")
    assert program_digest(plain.planned.program) != found[0][1]
    save_stats(prepared.stats, tmp_path / "ring.toml")
    again = prepare(load_experiment(system, [*options[:2], f"graph.source=stats:{tmp_path / 'ring.toml'}"]))
    assert program_digest(again.planned.program) == found[0][1]


def test_the_cluster_comes_from_the_profile_where_the_experiment_names_none() -> None:
    told: list[str] = []
    found = prepare(load_experiment("vanilla", SMALL), default_cluster=(2, 2), progress=Progress(told.append))
    assert found.experiment.rank_hosts() == (0, 0, 1, 1)
    assert any("metis into 4" in text for text in told)
    stated = prepare(load_experiment("vanilla", [*SMALL, "cluster.hosts=3"]), default_cluster=(2, 2))
    assert stated.experiment.rank_hosts() == (0, 0, 1, 1, 2, 2)


def test_more_ranks_than_vertices_are_refused_before_anything_is_divided() -> None:
    told: list[str] = []
    with pytest.raises(ConfigError, match=r"cluster\.ranks_per_host: got 301 ranks in all, expected at most 300"):
        prepare(load_experiment("vanilla", SMALL, ranks=301), progress=Progress(told.append))
    assert not any("partition" in text for text in told)


def test_the_run_directory_holds_the_resolved_experiment_and_the_plan(prepared: Prepared, tmp_path: Path) -> None:
    directory = write_run_directory(prepared, tmp_path / "deep" / "run", None, shards=tmp_path)
    experiment = Experiment.from_table(tomllib.loads((directory / "experiment.toml").read_text()))
    assert experiment == prepared.experiment
    assert program_digest(load_program(directory / "plan")) == program_digest(prepared.planned.program)
    plan = json.loads((directory / "plan" / "plan.json").read_text())
    assert plan["program_digest"] == program_digest(prepared.planned.program)
    assert plan["ranks"] == 2
    assert plan["train"]["epochs"] == 3
    assert [layer["index"] for layer in plan["layers"]] == [1, 2]
    assert tomllib.loads((directory / "plan" / "resolved.toml").read_text())
    assert [path.name for path in directory.parent.iterdir()] == ["run"]


def test_a_run_directory_is_replaced_only_when_forced(prepared: Prepared, tmp_path: Path) -> None:
    directory = write_run_directory(prepared, tmp_path / "run", None)
    (directory / "result.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"not empty.*--force"):
        write_run_directory(prepared, directory, None)
    assert (directory / "result.json").exists()
    write_run_directory(prepared, directory, None, force=True)
    assert not (directory / "result.json").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_what_fails_half_way_leaves_nothing(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*arguments: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("simgnn.planner.directory.save_program", full_disk)
    with pytest.raises(OSError, match="no space left"):
        write_run_directory(prepared, tmp_path / "run", None)
    assert list(tmp_path.iterdir()) == []


def test_a_foreign_folder_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not an earlier run directory"):
        check_free(tmp_path, force=True)
    check_free(tmp_path / "new", force=False)


def test_resuming_tells_what_differs(prepared: Prepared, tmp_path: Path) -> None:
    directory = write_run_directory(prepared, tmp_path / "run", None)
    assert differences(load_experiment("vanilla", SMALL, epochs=3), directory) == []
    changed = differences(load_experiment("vanilla", [*SMALL, "model.hidden=5"], epochs=3), directory)
    assert changed == [("model.hidden", 4, 5)]


def test_a_statistics_file_is_planned_like_its_graph(prepared: Prepared, tmp_path: Path) -> None:
    save_stats(prepared.stats, tmp_path / "small.toml")
    overrides = [f"graph.source=stats:{tmp_path / 'small.toml'}", "model.hidden=4"]
    table = tmp_path / "e.toml"
    table.write_text("[train]\nepochs = 3\n")
    found = prepare(load_experiment(table, overrides))
    assert found.experiment.ranks == 2
    assert found.graph is None
    assert program_digest(found.planned.program) == program_digest(prepared.planned.program)
    with pytest.raises(ConfigError, match="holds a partition into 2: use --ranks 2"):
        prepare(load_experiment(table, overrides, ranks=3))
    with pytest.raises(ConfigError, match="not trained on"):
        prepare(load_experiment(table, overrides), need_graph=True)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("no_such_package.at_all:Layer", "cannot import 'no_such_package.at_all'"),
        ("json:NoSuchLayer", "module 'json' has no class 'NoSuchLayer'"),
        ("json:JSONDecoder", "missing: prepare, aggregate, update"),
    ],
)
def test_a_layer_that_is_not_there_is_told_before_the_graph_is_read(
    kind: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> None:
        raise AssertionError("the graph was read first")

    monkeypatch.setattr("simgnn.planner.prepare.read_graph", read)
    with pytest.raises(ConfigError, match=expected):
        prepare(load_experiment("vanilla", [f"model.kind={kind}"], ranks=2))


def test_a_disk_without_room_for_the_run_directory_is_named(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(program: object, folder: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("simgnn.planner.directory.save_program", full)
    out = tmp_path / "run"
    with pytest.raises(BackendError, match=rf"--out: {out} cannot be written \(No space left .*bytes are free there"):
        write_run_directory(prepared, out, None)
    assert not list(tmp_path.iterdir()), "nothing half-written"
