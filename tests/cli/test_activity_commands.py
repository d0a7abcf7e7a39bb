"""What caches decided, from a run to a prediction elsewhere, as a user types it: cdfgnn and its pieces on other
systems."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simgnn.cli.main import invoke
from simgnn.record.activity import read_activity
from simgnn.record.result import read_result
from simgnn.record.rundir import RunDirectory, read_table
from simgnn.tomlfile import load_toml, write_toml
from tests.executor.runs import small_graph

EPOCHS = ("--epochs", "4", "--set", "model.hidden=8")


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """A graph in the format of the shared data."""
    made = small_graph(400)
    path = tmp_path / "small.npz"
    np.savez(
        path, indptr=made.csr.indptr, indices=made.csr.indices, feat=np.asarray(made.features, np.float32),
        labels=made.labels, train_mask=made.train_mask, val_mask=made.validation_mask, test_mask=made.test_mask,
    )  # fmt: skip
    return path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """What a command that succeeds prints as JSON."""
    assert invoke([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("forked_ranks")
def test_what_four_ranks_decided_is_priced_on_sixteen_gpus(
    graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded, source = str(tmp_path / "recorded"), ("--set", f"graph.source={graph}")
    run = printed(capsys, "run", "cdfgnn", *source, "--ranks", "4", *EPOCHS, "--out", recorded)
    assert (run["status"], run["ranks"]) == ("ok", 4)
    losses = read_result(RunDirectory(Path(recorded)).result).loss
    assert losses is not None
    assert losses[-1] < losses[0]
    arguments = ["simulate", "cdfgnn", *source, *EPOCHS, "--hardware", "a800-pcie-ib-2x8"]
    assert invoke([*arguments, "--json"]) == 2
    assert "depends on values that only training produces" in capsys.readouterr().err
    told = printed(capsys, *arguments, "--activity", recorded, "--out", str(tmp_path / "predicted"))
    assert (told["backend"], told["hosts"], told["ranks"]) == ("sim", 2, 16)
    assert told["transferred"]
    assert any("recorded on another partition (4 ranks)" in note for note in told["notes"])
    assert told["time_to_accuracy"]
    elsewhere = "the accuracy of recorded is that of training on another partition (4 ranks)"
    assert [note for note in told["notes"] if elsewhere in note]
    assert told["epoch_s_median"] > 0
    # on the cluster of the record nothing is carried over: the same bytes between each two ranks
    same = str(tmp_path / "same")
    told = printed(capsys, *arguments, "--ranks", "4", "--activity", recorded, "--out", same)
    assert not told["transferred"]
    assert told["time_to_accuracy"]
    assert not [note for note in told["notes"] if elsewhere in note]
    results = [read_result(RunDirectory(Path(folder)).result) for folder in (recorded, same)]
    for field in ("payload_epochs", "bytes_sent", "messages", "collective_bytes", "control_bytes"):
        assert getattr(results[0], field) == getattr(results[1], field), field
    # epochs send differently much: the mean of those between the first and the last is told, as the trace has it
    trace = read_table(RunDirectory(Path(recorded)).trace).to_pandas()
    sent = trace[trace["step"] >= 0].groupby(["rank", "epoch"])["bytes_sent"].sum().unstack()
    assert sent.sum()[1] != sent.sum()[2]
    assert np.sum(results[0].bytes_sent, axis=1).tolist() == sent[[1, 2]].mean(axis=1).tolist()


@pytest.mark.usefixtures("forked_ranks")
def test_the_same_partition_by_another_name_is_replayed_exactly(
    graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the graph, and statistics of its partition; by the folder that one is in."""
    recorded, copy, statistics = tmp_path / "recorded", tmp_path / "copy.npz", tmp_path / "statistics.toml"
    shutil.copy(graph, copy)
    source = ("--set", f"graph.source={graph}")
    printed(capsys, "run", "cdfgnn", *source, "--ranks", "2", *EPOCHS, "--out", str(recorded))
    run = read_result(RunDirectory(recorded).result)
    assert invoke(["partition", "cdfgnn", *source, "--ranks", "2", "--stats", str(statistics)]) == 0
    capsys.readouterr()
    monkeypatch.chdir(recorded)
    arguments = ["simulate", "cdfgnn", *EPOCHS, "--hardware", "a800-pcie-ib-2x8", "--ranks", "2", "--activity", "."]
    for other in (str(copy), f"stats:{statistics}"):
        out = tmp_path / f"predicted-{len(other)}"
        told = printed(capsys, *arguments, "--set", f"graph.source={other}", "--out", str(out))
        assert told["transferred"] is False
        assert read_result(RunDirectory(out).result).bytes_sent == run.bytes_sent
        assert len(told["time_to_accuracy"]) == len(run.accuracy or ())
        assert not [note for note in told["notes"] if "activity" in note]
        assert [note for note in told["notes"] if "the accuracy that the run recorded reached" in note]
    # a file that was changed is rejected until it no longer says where it is from
    text = statistics.read_text()
    assert text.count("classes = 5") == 1
    statistics.write_text(text.replace("classes = 5", "classes = 6"))
    assert invoke([*arguments, "--set", f"graph.source=stats:{statistics}"]) == 2
    assert "partition.counted_from.numbers" in capsys.readouterr().err
    changed = load_toml(statistics)
    del changed["partition"]["counted_from"]
    write_toml(statistics, changed)
    told = printed(capsys, *arguments, "--set", f"graph.source=stats:{statistics}")
    assert told["transferred"] is True
    assert told["time_to_accuracy"] is None
    assert [note for note in told["notes"] if "does not say which partition it was counted from" in note]


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.parametrize(
    ("system", "settings"),
    [
        ("vanilla", ["freshness.kind=adaptive-vertex", "codec.kind=linear", "codec.bits=8"]),
        ("sancus", ["freshness.rule=variation-gap", "freshness.bound_change=0.2", "codec.kind=linear"]),
    ],
)
def test_the_pieces_work_elsewhere(
    system: str, settings: list[str], graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The adaptive cache and the quantiser on vanilla's METIS edge-cut; skip-broadcast with codes on the wire."""
    recorded = tmp_path / "recorded"
    chosen = [part for value in (f"graph.source={graph}", *settings) for part in ("--set", value)]
    run = printed(capsys, "run", system, *chosen, "--ranks", "2", *EPOCHS, "--out", str(recorded))
    assert run["status"] == "ok"
    assert len(read_activity(RunDirectory(recorded).activity)) > 0
    arguments = ["simulate", system, *chosen, *EPOCHS, "--hardware", "a800-pcie-ib-2x8", "--activity", str(recorded)]
    assert printed(capsys, *arguments, "--ranks", "2")["transferred"] is False
    assert printed(capsys, *arguments)["transferred"] is True


def test_what_cannot_be_replayed_is_told_before_the_graph_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["simulate", "cdfgnn", "--set", f"graph.source={tmp_path / 'none.npz'}", "--hardware"]
    assert invoke([*arguments, "a800-pcie-ib-2x8", "--activity", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "--activity: got" in told
    assert "holds no result.json" in told
    assert "none.npz" not in told
