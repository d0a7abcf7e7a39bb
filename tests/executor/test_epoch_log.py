"""``losses.csv`` and event files hold every epoch once, with the numbers of the result, also of resumed runs."""

import csv
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from executor.rank.session import run_rank
from executor.recording.disk import StorageError
from executor.recording.epoch_log import EpochRow, LossFile
from executor.world.environment import LAUNCHER
from simgnn.api.extend import extend_run
from simgnn.cli.commands.run import check_log
from simgnn.cli.tables.console import Reporter
from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.record import logs
from tests.executor.harness import run_ranks
from tests.executor.runs import prepared_run, small_graph, train_in_process

STEP = ["train.learning_rate_schedule.kind=step", "train.learning_rate_schedule.step_size=2"]
SETTINGS = ["train.epochs=6", "train.eval_every=2", "train.checkpoint_every=2", *STEP]


def _rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "losses.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def _check(folder: Path, metric: str = "accuracy") -> None:
    rows, result = _rows(folder), json.loads((folder / "result.json").read_text())
    assert [int(row["epoch"]) for row in rows] == list(range(1, len(result["loss"]) + 1))
    assert [float(row["loss"]) for row in rows] == result["loss"]
    known = {each["epoch"]: each for each in result["accuracy"]}
    for row in rows:
        found = known.get(int(row["epoch"]))
        for split in ("train", "validation", "test"):
            text = row[f"{split}_{metric}"]
            assert (float(text) if text else None) == (None if found is None else found[split])
    assert [float(row["learning_rate"]) for row in rows[:6]] == pytest.approx([0.01, 0.01, 1e-3, 1e-3, 1e-4, 1e-4])
    seconds = [float(row["seconds"]) for row in rows]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0


def test_every_epoch_is_written_once(tmp_path: Path) -> None:
    """A run that ends by itself, one that breaks off between checkpoints, one that trains more epochs than planned."""
    names = ("whole", "broken", "longer")
    graphs = {name: small_graph(multilabel=name == "longer") for name in names}
    folders = [prepared_run(graphs[name], tmp_path / name, 1, *SETTINGS) for name in names]
    whole, broken, longer = map(str, folders)
    run_ranks(1, train_in_process, tmp_path / "first", [whole, longer], joined=False)
    run_ranks(1, train_in_process, tmp_path / "second", [broken], None, False, 5, joined=False)
    assert [int(row["epoch"]) for row in _rows(folders[1])][-1] == 4, "the last two have the same stop"
    with (folders[1] / "losses.csv").open("a") as file:
        file.write("5,0.1,,,,0.1,1.0\n6,0.1,")  # what a killed rank may have written after its last checkpoint
    more = load_experiment(folders[2] / "experiment.toml", ["train.epochs=9"])
    extend_run(folders[2], more, Reporter(quiet=True))
    run_ranks(1, train_in_process, tmp_path / "third", [broken, longer], None, True, joined=False)
    for folder, metric in zip(folders, ("accuracy", "accuracy", "micro_f1"), strict=True):
        _check(folder, metric)
    assert len(_rows(folders[2])) == 9
    told = [[row[key] for key in row if key != "seconds"] for folder in folders[:2] for row in _rows(folder)]
    assert told[:6] == told[6:]


def test_a_file_that_was_deleted_is_not_created_anew(tmp_path: Path) -> None:
    file = LossFile(tmp_path / "losses.csv", "accuracy")
    file.begin([])
    row = EpochRow(1, 0.5, None, None, None, 0.01, 0.1)
    file.add([row])
    (tmp_path / "losses.csv").unlink()
    with pytest.raises(StorageError, match=r"losses\.csv cannot be written \(No such file or directory\)"):
        file.add([row])


def _train_with_events(rank: int, ranks: int, folder: str, resume: bool) -> int:
    import os

    os.environ.update({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"})
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", LAUNCHER: "0"})
    os.environ["SIMGNN_RENDEZVOUS"] = f"{folder}/rendezvous-{resume}"
    return run_rank(Path(folder), "cpu", resume, "tensorboard")


def _events(folder: Path) -> list[Any]:
    """The events in the only event file of a folder: length (uint64), its checksum, the event, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    (path,) = folder.glob("events.out.tfevents.*")
    raw, found, at = path.read_bytes(), [], 0
    while at < len(raw):
        (length,) = struct.unpack_from("<Q", raw, at)
        found.append(Event.FromString(raw[at + 12 : at + 12 + length]))
        at += 16 + length
    return found


def test_events_are_those_of_the_csv(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    folder = prepared_run(small_graph(), tmp_path / "run", 1, *SETTINGS)
    assert run_ranks(1, _train_with_events, tmp_path / "first", str(folder), False, joined=False) == [0]
    assert len(_events(folder / "tensorboard")) == 7
    extend_run(folder, load_experiment(folder / "experiment.toml", ["train.epochs=8"]), Reporter(quiet=True))
    assert run_ranks(1, _train_with_events, tmp_path / "second", str(folder), True, joined=False) == [0]
    head, *events = _events(folder / "tensorboard")
    assert head.file_version == "brain.Event:2"
    rows = _rows(folder)
    assert [event.step for event in events] == [int(row["epoch"]) for row in rows] == list(range(1, 9))
    columns = {
        "loss/train": "loss", "learning_rate": "learning_rate",
        **{f"accuracy/{split}": f"{split}_accuracy" for split in ("train", "validation", "test")},
    }  # fmt: skip
    for event, row in zip(events, rows, strict=True):
        told = {value.tag: value.simple_value for value in event.summary.value}
        expected = {tag: float(row[name]) for tag, name in columns.items() if row[name]}
        assert told == pytest.approx(expected, rel=1e-6)
        assert event.wall_time - events[0].wall_time == pytest.approx(
            float(row["seconds"]) - float(rows[0]["seconds"]), abs=1e-3
        )


def test_a_log_without_its_package_is_refused_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    check_log(None)
    with pytest.raises(ConfigError, match=r"--log: got 'tensorbord', expected one of tensorboard .*did you mean"):
        check_log("tensorbord")
    monkeypatch.setattr(logs.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"--log: .*tensorboardX; install it: pip install 'simgnn\[tensorboard\]'"):
        check_log("tensorboard")
