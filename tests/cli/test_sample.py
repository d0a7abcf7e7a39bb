"""``simgnn sample`` writes batches, tells their statistics, and refuses what has no batches."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from simgnn.cli.main import invoke
from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.planner.make_plan import plan
from simgnn.planner.prepare import obtain_partition, read_graph

SEEDED = [
    *("--set", "batching.kind=seeded", "--set", "batching.batch_size=30", "--set", "batching.fanouts=[4, 3]"),
    *("--set", "partition.kind=random"),
]
CLUSTER = ["--set", "cluster.hosts=2", "--set", "cluster.ranks_per_host=2"]
TOGETHER = ["--set", "batching.batch_size=1000", "--set"]


def test_sampling_tells_sums_that_agree(small, tmp_path, capsys) -> None:
    arguments = ["sample", str(small), *SEEDED, *CLUSTER, "--out", str(tmp_path / "b"), "--json"]
    assert invoke(arguments) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["complete"]
    assert (told["ranks"], told["epochs"], told["fanouts"]) == (4, 4, [4, 3])
    assert sum(told["training_vertices"]) == 240  # 60 % of 400
    assert told["batches"] == told["epochs"] * sum(told["batches_per_epoch"])
    assert told["rows_by_hop"][0] == told["epochs"] * sum(told["training_vertices"])
    for hop in (0, 1):
        new = told["rows_by_hop"][hop + 1] - told["rows_by_hop"][hop]
        assert told["edges_by_hop"][hop] == new + told["duplicates_by_hop"][hop]
    pairs = told["rows_by_rank_and_owner"]
    assert sum(rows for _, _, rows in pairs) == told["input_rows"] == told["rows_by_hop"][-1]
    assert sum(rows for rank, owner, rows in pairs if rank != owner) == told["remote_rows"]
    assert sum(rows for rank, owner, rows in pairs if rank // 2 != owner // 2) == told["remote_rows_of_other_hosts"]
    assert sum(times * rows for times, rows in told["remote_row_frequencies"]) == told["remote_rows"]
    assert invoke([*arguments[:-1]]) == 0
    again = capsys.readouterr().out
    assert told["digest"] in again.replace("\n", "")
    for name in ("16 found", "fan-outs 4-3", "duplicates", "of 3", "share of all remote rows"):
        assert name in again


def test_the_digest_does_not_depend_on_python_hashes_or_processes(small, tmp_path, capsys) -> None:
    command = ["sample", str(small), *SEEDED, "--ranks", "2", "--epochs", "2", "--json", "--out"]
    start = [sys.executable, "-m", "simgnn.cli.main", *command, str(tmp_path / "one")]
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run(start, env=environment, capture_output=True, text=True, check=True)
    expected = json.loads(done.stdout)["digest"]
    assert invoke([*command, str(tmp_path / "two"), "--only-rank", "1"]) == 0
    half = json.loads(capsys.readouterr().out)
    assert (half["complete"], half["digest"]) == (False, None)
    assert invoke([*command, str(tmp_path / "two"), "--only-rank", "0"]) == 0
    assert json.loads(capsys.readouterr().out)["digest"] == expected


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        (["--set", "batching.kind=full"], "batching.kind: got 'full', expected seeded or sampled"),
        (["--set", "batching.fanouts=[4]"], "batching.fanouts: got 1 fan-outs [4], expected 2"),
        (["--set", "batching.fanouts=[4, 0]"], "batching.fanouts: got [4, 0], expected numbers 1..65536"),
        (["--set", "batching.batch_size=0"], "batching.batch_size: got 0, expected a whole number >= 1"),
        (["--set", "batching.global_batch=40"], "batching.global_batch: got 40 with batching.batch_size = 30"),
        ([*TOGETHER, "batching.global_batch=3"], "batching.global_batch: got 3 with 4 ranks, expected at least 4"),
        (["--set", "batching.kind=seeds"], "did you mean 'seeded'?"),
        (["--set", "partition.kind=ebv"], "partition.kind: got 'ebv', expected an edge-cut"),
        (["--set", "graph.source=stats:x.toml"], "expected a graph"),
        (["--only-rank", "4"], "--only-rank: got 4, expected a rank of 0..3"),
    ],
)
def test_bad_input_is_told_before_the_work(small, tmp_path, capsys, extra: list[str], told: str) -> None:
    batching = SEEDED if "batching.kind=full" not in extra else []
    if "graph.source=stats:x.toml" in extra:
        small.write_text('extends = "vanilla"')
    arguments = ["sample", str(small), *batching, *CLUSTER, *extra, "--out", str(tmp_path / "b")]
    assert invoke(arguments) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_out_is_needed_and_other_settings_are_refused(small, tmp_path, capsys) -> None:
    assert invoke(["sample", str(small), *SEEDED]) == 2
    assert "--out: missing" in capsys.readouterr().err
    arguments = ["sample", str(small), *SEEDED, "--epochs", "1", "--out", str(tmp_path / "b"), "--json"]
    assert invoke(arguments) == 0
    assert invoke([*arguments, "--set", "seed=3"]) == 2
    assert "seed: there 0, here 3" in capsys.readouterr().err
    assert invoke([*arguments, "--set", "seed=3", "--force"]) == 0


def test_a_graph_without_training_vertices_is_refused(tmp_path, capsys) -> None:
    np.save(tmp_path / "list.npy", np.random.default_rng(0).integers(0, 90, (800, 2)))
    bare = ["--set", f"graph.source={tmp_path / 'list.npy'}"]
    assert invoke(["sample", "vanilla", *SEEDED, *bare, "--out", str(tmp_path / "b")]) == 2
    assert "no training vertices" in capsys.readouterr().err
    assert (
        invoke(
            [
                "sample",
                "vanilla",
                *SEEDED,
                *bare,
                "--set",
                "graph.classes=3",
                "--epochs",
                "1",
                "--out",
                str(tmp_path / "c"),
            ]
        )
        == 0
    )


@pytest.mark.parametrize("kind", ["seeded", "sampled"])
def test_training_on_mini_batches_needs_a_store(small: Path, capsys, kind: str) -> None:
    batching = ["--set", f"batching.kind={kind}", "--set", "batching.fanouts=[4, 3]"]
    assert invoke(["simulate", str(small), *batching]) == 2
    told = capsys.readouterr().err
    assert f"communication.kind: got 'halo' with batching.kind = '{kind}', expected 'store'" in told
    assert f"placement.kind: got 'device' with batching.kind = '{kind}', expected 'store'" in told


def test_the_planner_needs_batches(small: Path) -> None:
    sampled = load_experiment(small, ["batching.kind=seeded", "partition.kind=random"], ranks=2, trains=False)
    artifact = obtain_partition(sampled, read_graph(sampled))
    with pytest.raises(ConfigError, match=r"batching\.kind: got 'seeded', expected 'full': no batches were drawn"):
        plan(sampled, artifact.stats)


def test_short_batches_may_be_dropped(small: Path, tmp_path: Path, capsys) -> None:
    drop = ["--set", "batching.last=drop", "--json"]
    arguments = ["sample", str(small), *SEEDED, *CLUSTER, "--out", str(tmp_path / "b")]
    assert invoke([*arguments, *drop, "--set", "batching.batch_size=25"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["batches_per_epoch"], told["rows_by_hop"][0]) == ([2] * 4, 4 * 4 * 50)  # of 60 vertices each
    assert invoke([*arguments, "--set", "batching.batch_size=25"]) == 2
    assert "last: there drop, here keep" in capsys.readouterr().err
    assert invoke([*arguments, *drop, "--set", "batching.batch_size=61"]) == 2
    told = capsys.readouterr().err
    assert "batching.last: got 'drop' with batching.batch_size = 61" in told
    assert "a rank has 60 vertices to train on" in told


def test_a_batch_of_all_ranks_is_divided(small: Path, tmp_path: Path, capsys) -> None:
    arguments = ["sample", str(small), *SEEDED, *CLUSTER, "--out", str(tmp_path / "b"), "--epochs", "1"]
    assert invoke([*arguments, *TOGETHER, "batching.global_batch=98", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["batch_size"], told["batches_per_epoch"]) == ([25, 25, 24, 24], [3] * 4)  # of 60 vertices each
    assert invoke([*arguments, *TOGETHER, "batching.global_batch=98"]) == 0
    assert "batch size 24 to 25" in " ".join(capsys.readouterr().out.split())


def test_learned_vectors_have_no_caches_to_tell_of(small: Path, tmp_path: Path, capsys) -> None:
    arguments = ["sample", str(small), *SEEDED, *CLUSTER, "--out", str(tmp_path / "b"), "--epochs", "1", "--json"]
    arguments += ["--set", "placement.kind=store", "--set", "placement.hot_rows=0"]
    arguments += ["--set", "placement.sparse_embedding=4"]
    assert invoke([*arguments, "--hot-rows", "0,10"]) == 2
    assert "--hot-rows: got 10 with placement.sparse_embedding = 4" in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "b").exists()
    for hot_rows in ("40", "auto"):
        assert invoke([*arguments, "--set", f"placement.hot_rows={hot_rows}"]) == 2
        told = " ".join(capsys.readouterr().err.split())
        assert f"placement.hot_rows: got {hot_rows} with placement.sparse_embedding = 4, expected 0" in told
        assert not (tmp_path / "b").exists()
    assert invoke([*arguments, "--hot-rows", "0"]) == 0
    fetches = json.loads(capsys.readouterr().out)["fetches"]
    assert [size["hot_rows"] for size in fetches["sizes"]] == [0]
    assert fetches["enough_hot_rows"] is None


def test_learned_vectors_are_sampled_as_they_are_trained(tmp_path: Path, capsys) -> None:
    """What a run refuses of a store, its dry run refuses too."""
    arguments = ["rapidgnn", "--ranks", "2", "--set", "placement.sparse_embedding=4"]
    told = []
    for command in ("sample", "simulate"):
        assert invoke([command, *arguments, "--out", str(tmp_path / "b")]) == 2
        told.append(" ".join(capsys.readouterr().err.split()))
        assert not (tmp_path / "b").exists()
    assert told[0] == told[1]
    assert "placement.hot_rows: got auto with placement.sparse_embedding = 4, expected 0" in told[0]
    assert "schedule.staged: got 'rows' with placement.sparse_embedding = 4, expected 'blocks'" in told[0]
