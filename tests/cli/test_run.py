"""``simgnn run`` from the command line to the result: two real ranks over Gloo."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from simgnn.cli.main import invoke
from simgnn.experiment.load import load_experiment
from simgnn.locks import locked_folder
from simgnn.record.result import read_result
from simgnn.record.rundir import RunDirectory, read_table
from simgnn.tomlfile import load_toml


def test_a_run_trains_and_leaves_a_complete_run_directory(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs" / "first"
    assert invoke(["run", str(small), "--ranks", "2", "--out", str(out), "--json"]) == 0
    told = capsys.readouterr()
    printed = json.loads(told.out)
    result = read_result(RunDirectory(out).result)
    assert printed["directory"] == str(out)
    assert (printed["status"], printed["backend"], printed["ranks"]) == ("ok", "executor", 2)
    assert result.loss is not None
    assert len(result.loss) == 4
    assert result.loss[-1] < result.loss[0]
    assert load_experiment(out / "experiment.toml").ranks == 2
    assert set(read_table(RunDirectory(out).trace)["rank"].to_pylist()) == {0, 1}
    assert told.err == ""
    # both ranks share this machine's memory, with their idle processes
    [peak] = result.memory
    assert (peak.place, peak.ranks, peak.capacity_bytes) == ("device", [0, 1], psutil.virtual_memory().total)
    assert result.idle_memory_bytes is not None
    assert result.peak_memory_bytes is not None
    assert sum(peak.parts.values()) == peak.peak_bytes >= sum(result.idle_memory_bytes) + sum(result.peak_memory_bytes)
    # no number without a counter, and no lack of one without its reason
    assert printed["energy"][0]["part"] == "device"
    assert (result.energy_J is None) == (result.energy[0].status == "unavailable")
    assert result.energy[0].source
    # a second run into the same folder is refused, and nothing of the first is touched
    assert invoke(["run", str(small), "--ranks", "2", "--out", str(out)]) == 2
    assert "--force" in capsys.readouterr().err
    # nor is it resumed without more epochs, and no process is started to find that out
    assert invoke(["run", str(small), "--ranks", "2", "--out", str(out), "--resume"]) == 2
    told = capsys.readouterr()
    assert "finished run of 4 epochs" in told.err
    assert "--epochs above 4" in told.err
    assert "starts" not in told.err
    assert read_result(RunDirectory(out).result) == result


def test_a_run_can_be_prepared_for_torchrun(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", str(small), "--set", "cluster.hosts=2", "--set", "cluster.ranks_per_host=2", "--prepare"]
    assert invoke([*arguments, "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().err
    assert "--nnodes 2" in told
    assert "--nproc-per-node 2 -m executor run" in told
    assert not (tmp_path / "out" / "result.json").exists()


def test_a_run_in_progress_is_neither_replaced_nor_resumed(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    arguments = ["run", str(small), "--ranks", "1", "--out", str(out)]
    assert invoke([*arguments, "--prepare"]) == 0
    before = sorted(out.rglob("*"))
    with locked_folder(out, "--out"):
        for option in ("--force", "--resume"):
            capsys.readouterr()
            assert invoke([*arguments, option]) == 2
            assert f"is in use by process {os.getpid()}" in " ".join(capsys.readouterr().err.split())
    assert sorted(out.rglob("*")) == before


def test_resuming_needs_the_same_experiment_and_a_checkpoint(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert invoke(["run", str(small), "--resume"]) == 2
    assert "--resume: got no --out" in capsys.readouterr().err
    assert invoke(["run", str(small), "--resume", "--out", out]) == 2
    assert "is not a run directory" in capsys.readouterr().err
    assert invoke(["run", str(small), "--ranks", "2", "--prepare", "--out", out]) == 0
    assert "--resume" not in capsys.readouterr().err
    # torchrun without it would begin anew, and remove the checkpoints
    assert invoke(["run", str(small), "--ranks", "2", "--prepare", "--resume", "--out", out]) == 0
    assert f"-m executor run {out} --resume" in capsys.readouterr().err.replace("\n", " ")
    assert invoke(["run", str(small), "--ranks", "3", "--epochs", "5", "--resume", "--out", out]) == 2
    told = capsys.readouterr().err
    assert "--resume: cluster.ranks_per_host: got 3, expected 2" in told
    assert "train.epochs" not in told, "more epochs are fine"
    longer = ["run", str(small), "--ranks", "2", "--epochs", "6", "--prepare", "--resume", "--out", out]
    assert invoke(longer) == 0
    assert load_toml(Path(out) / "experiment.toml")["train"]["epochs"] == 6
    assert invoke(["run", str(small), "--ranks", "2", "--epochs", "3", "--prepare", "--resume", "--out", out]) == 2
    assert "--resume: train.epochs: got 3, expected 6" in capsys.readouterr().err


def test_without_out_the_next_free_folder_is_taken(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert invoke(["run", str(small), "--ranks", "1", "--prepare", "--json"]) == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["small", "small-2"]


@pytest.mark.usefixtures("forked_ranks")
def test_prediction_and_run_of_one_experiment_compare_and_send_the_same_bytes(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predicted, measured = str(tmp_path / "sim"), str(tmp_path / "run")
    arguments = ["--ranks", "2", "--set", "train.eval_every=3", "--json"]
    assert invoke(["simulate", str(small), "--hardware", "cpu-100gbe-8", *arguments, "--out", predicted]) == 0
    assert invoke(["run", str(small), *arguments, "--out", measured]) == 0
    capsys.readouterr()
    assert invoke(["compare", predicted, measured, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["bytes_differ"], found["messages_differ"], found["epochs_compared"]) == (0, 0, 3)
    traffic = [read_result(RunDirectory(Path(side)).result).traffic for side in (predicted, measured)]
    assert traffic[0] is not None
    assert traffic[0].by_link
    assert traffic[0].model_copy(update={"by_link": []}) == traffic[1]
    both = tmp_path / "both.json"
    assert invoke(["compare", predicted, measured, "--trace", str(both)]) == 0
    assert "exchange" in capsys.readouterr().out
    named = {event["args"]["name"] for event in json.loads(both.read_text())["traceEvents"] if event["ph"] == "M"}
    assert {f"{label} rank {rank}" for label in ("predicted", "measured") for rank in (0, 1)} <= named
    assert invoke(["compare", predicted, str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(signal, "SIGTERM") or sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("sent", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL])
def test_ending_the_command_ends_its_ranks(small: Path, tmp_path: Path, sent: signal.Signals) -> None:
    """Also where it has no chance to end them."""
    out = tmp_path / "out"
    command = [sys.executable, "-m", "simgnn.cli.main", "run", str(small), "--ranks", "2", "--epochs", "1000000"]
    process = subprocess.Popen([*command, "--out", str(out)], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("simgnn: training: 1/") or "epoch" in line:
            break
    started = psutil.Process(process.pid).children(recursive=True)
    assert {child.pid for child in started} >= set(_ranks_of(out)) - {process.pid}
    assert len(started) == 3, "a launcher and two ranks"
    process.send_signal(sent)
    rest = process.stderr.read()
    assert process.wait(60) == (1 if sent == signal.SIGTERM else -sent)
    assert "Traceback" not in rest
    gone, alive = psutil.wait_procs(started, timeout=60)
    assert not alive
    assert len(gone) == 3
    assert _ranks_of(out) == []


def _ranks_of(directory: Path) -> list[int]:
    """Processes whose command line names the run directory."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        named = process.info["cmdline"] or []
        if str(directory) in named and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.info["pid"])
    return found


@pytest.mark.usefixtures("forked_ranks")
def test_several_labels_are_scored_by_micro_f1_and_named_so(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    several = ["--ranks", "1", "--set", "graph.multilabel=true", "--out", str(tmp_path / "several")]
    assert invoke(["run", str(small), *several]) == 0
    told = capsys.readouterr()
    assert "test micro-F1" in told.out
    assert "accuracy" not in told.out
    assert "validation micro-F1" in told.err
    path = RunDirectory(tmp_path / "several").result
    assert read_result(path).accuracy_metric == "micro_f1"
    older = json.loads(path.read_text())
    del older["accuracy_metric"]
    path.write_text(json.dumps(older))
    assert read_result(path).accuracy_metric == "accuracy"
