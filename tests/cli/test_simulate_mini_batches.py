"""``simgnn simulate`` of mini-batch systems, from the command line to what a run directory tells."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

from simgnn.cli.main import invoke
from simgnn.experiment.load import load_experiment
from simgnn.record.result import read_result
from simgnn.record.rundir import RunDirectory, read_table

HARDWARE = ["--hardware", "p100-10gbe-4x2"]
SMALL = [
    *("--set", "graph.vertices=600", "--set", "graph.edges=4000", "--set", "graph.classes=4"),
    *("--set", "graph.feature_width=16", "--set", "model.hidden=8", "--set", "batching.batch_size=30"),
    *("--set", "cluster.hosts=2", "--set", "cluster.ranks_per_host=2", "--epochs", "3"),
]
RAPID = ["simulate", "rapidgnn", *HARDWARE, *SMALL, "--set", "batching.fanouts=[4, 3]"]


def simulated(out: Path, *more: str) -> RunDirectory:
    assert invoke([*RAPID, *more, "--out", str(out), "--json"]) == 0
    return RunDirectory(out)


def test_a_prediction_tells_times_bytes_and_the_resolved_cache(tmp_path: Path, capsys) -> None:
    run = simulated(tmp_path / "run")
    told = json.loads(capsys.readouterr().out)
    result = read_result(run.result)
    assert (told["status"], len(result.epoch_s)) == ("ok", 3)
    assert any("talk between hosts at once" in note for note in told["notes"]), "shipped profiles state no loads"
    assert result.energy_J is None  # the profile states no idle power, so nobody knows
    resolved = tomllib.loads((run.root / "plan" / "resolved.toml").read_text())
    assert resolved["placement.hot_rows"] > 0
    plan = json.loads((run.root / "plan" / "plan.json").read_text())
    assert plan["policies"]["placement"]["hot_rows"] == resolved["placement.hot_rows"]
    assert tomllib.loads(run.experiment.read_text())["placement"]["hot_rows"] == "auto"
    trace = read_table(run.trace)
    assert max(trace["step"].to_pylist()) > 0
    sent = np.array(result.bytes_sent)
    assert not sent[:2, :2].any()  # ranks of one host share memory
    assert sent[:2, 2:].any()


def test_more_hot_rows_pull_less_and_hold_more(tmp_path: Path) -> None:
    runs = [simulated(tmp_path / str(rows), "--set", f"placement.hot_rows={rows}") for rows in (0, 20, 200)]
    results = [read_result(run.result) for run in runs]
    pulled = [int(np.sum(read_table(run.batches)["rows_pulled"].to_numpy())) for run in runs]
    assert pulled == sorted(pulled, reverse=True)
    assert len(set(pulled)) == 3
    held = [max(result.peak_memory_bytes or []) for result in results]
    assert held == sorted(held)


@pytest.mark.parametrize(("pull", "rows"), [("full", 100_000), ("delta", 20), ("once", 20)])
def test_sample_tells_what_is_sent_then(tmp_path: Path, capsys, pull: str, rows: int) -> None:
    """The table of ``simgnn sample`` and the traffic of a prediction: no difference, by rank pair, whatever a cache
    pulls; the payload that a result tells has the caches' rows."""
    filled = "placement.hot_scope=run" if pull == "once" else f"placement.pull={pull}"
    cache = ["--set", f"placement.hot_rows={rows}", "--set", filled]
    folder = ["--out", str(tmp_path / "batches")]
    sample = ["sample", "rapidgnn", *SMALL, "--set", "batching.fanouts=[4, 3]", *cache, *folder]
    assert invoke([*sample, "--json"]) == 0
    fetches = json.loads(capsys.readouterr().out)["fetches"]
    (told,) = fetches["sizes"]
    assert (fetches["pull"] == "delta") == (fetches["enough_hot_rows"] is None) == (pull == "delta")
    assert (fetches["hot_scope"] == "run") == (pull == "once")
    run = simulated(tmp_path / "run", *cache)
    sent = read_table(run.traffic).to_pandas().groupby(["target", "source"])["bytes"].sum().to_dict()
    pairs = told["rows_by_rank_and_sender"]
    assert {(one["rank"], one["sender"]): 64 * (one["pulled"] + one["cached"]) for one in pairs} == sent
    assert told["bytes_per_epoch"] * 3 == sum(sent.values())
    trace = read_table(run.trace).to_pandas()
    sums = trace[trace["step"] >= 0].groupby("epoch")["bytes_sent"].sum().tolist()
    result = read_result(run.result)
    assert result.payload_epochs == (1, 1)
    assert np.sum(result.bytes_sent) == sums[1] > 0
    if pull == "full":  # all rows are hot: batches pull none, and the last epoch fills no further cache
        assert told["rows_pulled"] == sums[2] == 0
        assert sum(sums) == 64 * told["rows_cached"]
    capsys.readouterr()
    assert invoke(sample) == 0
    text = " ".join(capsys.readouterr().out.split())
    words = {"full": "are pulled whole", "delta": "pull what the one before lacks", "once": "are filled once"}
    assert f"caches {words[pull]}" in text
    assert ("hot rows are enough" in text) == (pull != "delta")


def test_a_longer_run_begins_with_the_same_batches(tmp_path: Path) -> None:
    runs = [simulated(tmp_path / epochs, "--epochs", epochs, "--set", "placement.hot_rows=0") for epochs in ("2", "4")]
    short, long = (read_result(run.result) for run in runs)
    assert short.bytes_sent_first_epoch == long.bytes_sent_first_epoch


def test_online_sampling_is_priced_by_another_machine_and_too_many_ranks_are_refused(capsys) -> None:
    arguments = ["simulate", "distdgl", *HARDWARE, *SMALL, "--set", "model.layers=2", "--set", "partition.kind=random"]
    assert invoke([*arguments, "--set", "batching.fanouts=[4, 3]"]) == 0
    assert "has no measurement of sample, gather of the CPU beside a GPU" in " ".join(capsys.readouterr().err.split())
    assert invoke([*RAPID, "--set", "cluster.ranks_per_host=3"]) == 2
    told = capsys.readouterr().err
    assert "cluster.ranks_per_host: got 3 ranks on host" in told
    assert "graph:" not in told  # before minutes go into it


def test_a_window_hides_pulling(tmp_path: Path) -> None:
    """Of wide rows: pulls of narrow ones are so short that hiding them saves less than they slow small messages."""
    times, wide = [], ("--set", "graph.feature_width=1024")
    for window in ("1", "4"):
        run = simulated(tmp_path / window, *wide, "--set", f"schedule.window={window}")
        times.append(read_result(run.result).epoch_s_median)
    assert times[1] < times[0]


def test_a_graph_without_features_is_refused_before_batches_are_drawn(tmp_path: Path, capsys) -> None:
    np.save(tmp_path / "list.npy", np.random.default_rng(0).integers(0, 90, (800, 2)))
    bare = ["--set", f"graph.source={tmp_path / 'list.npy'}", "--set", "graph.classes=3"]
    assert invoke(["simulate", "rapidgnn", *HARDWARE, *bare, *SMALL[12:16], "--epochs", "2"]) == 2
    told = capsys.readouterr().err
    assert "has no features" in told
    assert "batches:" not in told


def test_a_statistics_file_gives_estimates_and_says_so(tmp_path: Path, capsys) -> None:
    file = tmp_path / "stats.toml"
    assert invoke(["partition", "rapidgnn", *SMALL[:8], *SMALL[12:16], "--stats", str(file)]) == 0
    source = ["--set", f"graph.source=stats:{file}", "--set", "model.hidden=8", "--set", "batching.batch_size=30"]
    arguments = ["simulate", "rapidgnn", *HARDWARE, *source, "--epochs", "3", "--set", "batching.fanouts=[4, 3]"]
    assert invoke([*arguments, "--out", str(tmp_path / "run"), "--json"]) == 0
    result = read_result(RunDirectory(tmp_path / "run").result)
    assert result.extrapolated[0] == "sizes of mini-batches"
    assert any("estimated from degrees" in note for note in result.notes)
    drawn = read_result(simulated(tmp_path / "drawn").result)
    assert np.sum(result.bytes_sent) == pytest.approx(np.sum(drawn.bytes_sent), rel=0.5)
    capsys.readouterr()
    assert invoke([*arguments, "--set", "placement.pull=delta"]) == 2
    assert "placement.pull: got 'delta' with a statistics file" in capsys.readouterr().err
    assert invoke([*arguments, "--set", "batching.storage=b"]) == 2
    assert "batching.storage: got" in capsys.readouterr().err


def test_batches_that_lie_in_a_folder_are_used(tmp_path: Path, capsys) -> None:
    folder = tmp_path / "batches"
    sample = ["sample", "rapidgnn", *SMALL, "--set", "batching.fanouts=[4, 3]", "--json"]
    assert invoke([*sample, "--out", str(folder)]) == 0
    digest = json.loads(capsys.readouterr().out)["digest"]
    files = {path: path.stat().st_mtime_ns for path in folder.rglob("*.npy")}
    stored = ["--set", f"batching.storage={folder}"]
    found = read_result(simulated(tmp_path / "stored", *stored).result)
    drawn = read_result(simulated(tmp_path / "drawn").result)
    assert found.digest == drawn.digest
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.npy")} == files
    capsys.readouterr()
    assert invoke([*sample, *stored]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["parts_made"], again["digest"], again["path"]) == (0, digest, str(folder))
    assert invoke([*RAPID, *stored, "--set", "batching.batch_size=20"]) == 2
    told = capsys.readouterr().err
    assert f"batching.storage: got {folder}, which holds batches made from other settings" in told
    assert "batch_size: there 30, here 20" in told
    (tmp_path / "mine.toml").write_text('extends = "rapidgnn"\n[batching]\nstorage = "batches"\n')
    assert load_experiment(tmp_path / "mine.toml").batching.storage == str(folder)


@pytest.mark.parametrize("place", ["file", "file/x"])
def test_a_folder_of_batches_that_cannot_be_made_is_told(tmp_path: Path, capsys, place: str) -> None:
    (tmp_path / "file").write_text("mine")
    assert invoke([*RAPID, "--set", f"batching.storage={tmp_path / place}"]) == 2
    assert f"batching.storage: got {tmp_path / place}" in capsys.readouterr().err


@pytest.mark.parametrize("hot_rows", ["0", "20"])
def test_rows_of_other_hosts_and_what_caches_save_are_told(tmp_path: Path, capsys, hot_rows: str) -> None:
    arguments = [*RAPID, "--set", f"placement.hot_rows={hot_rows}", "--out", str(tmp_path / "run")]
    assert invoke(arguments) == 0
    told = " ".join(capsys.readouterr().err.split())
    held = read_table(RunDirectory(tmp_path / "run").batches)
    hits, pulled = (int(np.sum(held[name].to_numpy())) for name in ("rows_hit", "rows_pulled"))
    assert f"rows of other hosts: {hits + pulled:,} in 3 epochs" in told
    assert (hits > 0) == (hot_rows != "0") == ("hot rows save" in told)
    if hits:
        assert f"save {hits:,} of them ({100 * hits / (hits + pulled):.1f} %)" in told
