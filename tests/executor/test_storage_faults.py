"""The disk of a run fills up, or its directory is deleted: one message, a result if there is room, and a way on."""

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from executor.launch.launcher import _reason
from executor.recording.disk import StorageError, storage_fault, writing
from executor.recording.failure import LostPeerError, explained, failure_of, write_failure
from executor.world.environment import NO_STORAGE
from simgnn.api import train
from simgnn.errors import BackendError
from tests.executor.forked import ForkedSession
from tests.executor.harness import run_ranks
from tests.executor.runs import prepared_run, small_graph, train_in_process
from tools.faults.disturb import mounted

LIMIT_S = 120
LONG = ["train.epochs=1000000", "train.eval_every=10", "train.checkpoint_every=10", "train.timeout=20"]


def _ended(folder: Path, *arguments: str, during: Any = None) -> tuple[int, str]:
    """Exit status of a run, and what it printed. ``during`` is called when it trains."""
    command = [sys.executable, "-m", "executor", "run", str(folder), *arguments]
    run = ForkedSession(command, {**os.environ, "OMP_NUM_THREADS": "1"})
    said = []
    for line in run.stdout:
        said.append(line)
        if during is not None and line.startswith("epoch"):
            during()
            during = None
    return run.wait(LIMIT_S), "".join(said)


def _messages(said: str) -> list[str]:
    return [line for line in said.splitlines() if "executor: error" in line]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, with little room."""
    with ExitStack() as stack:
        try:
            disk = stack.enter_context(mounted(tmp_path / "disk", 400 << 10))
        except BackendError as error:
            pytest.skip(str(error))
        yield disk


def _grow(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=64m", folder], check=True)


def test_a_full_disk_is_named_and_the_run_goes_on_when_there_is_room(small_disk: Path, tmp_path: Path) -> None:
    made = prepared_run(small_graph(), tmp_path / "made" / "run", 2, *LONG)
    folder = small_disk / "run"
    shutil.move(made, folder)
    status, said = _ended(folder)
    assert status == 1
    (message,) = _messages(said)
    assert "Traceback" not in said
    assert str(folder) in message
    assert " bytes are free there" in message
    assert message.endswith("Go on from its last checkpoint with --resume.")
    if (folder / "result.json").is_file():  # if there was room for it
        result = json.loads((folder / "result.json").read_text())
        assert result["status"] == "failed"
        assert message.endswith(result["message"])
    _grow(small_disk)
    trained = json.loads((folder / "checkpoint" / "latest.json").read_text())["epoch"]
    assert trained >= 10
    wanted = trained + 7
    _shorten(folder, wanted)
    status, said = _ended(folder, "--resume")
    assert status == 0, said
    whole = prepared_run(small_graph(), tmp_path / "whole" / "run", 2, *LONG[1:], f"train.epochs={wanted}")
    run_ranks(2, train_in_process, tmp_path / "ranks", [str(whole)], joined=False)
    ours, long = (json.loads((one / "result.json").read_text()) for one in (folder, whole))
    for field in ("loss", "accuracy", "bytes_sent", "messages", "status", "epochs"):
        assert ours[field] == long[field], field
    rows = list(csv.DictReader((folder / "losses.csv").open()))
    assert [int(row["epoch"]) for row in rows] == list(range(1, wanted + 1))


def _shorten(folder: Path, epochs: int) -> None:
    """Let the run end soon: this test need not wait for all of its epochs."""
    path = folder / "plan" / "plan.json"
    table = json.loads(path.read_text())
    table["train"]["epochs"] = epochs
    path.write_text(json.dumps(table))


def test_a_deleted_run_directory_is_named(tmp_path: Path) -> None:
    folder = prepared_run(small_graph(), tmp_path / "run", 2, *LONG)
    status, said = _ended(folder, during=lambda: shutil.rmtree(folder, ignore_errors=True))
    assert status == 1
    (message,) = _messages(said)
    assert "Traceback" not in said
    assert f"the run directory {folder} is gone" in message
    assert not folder.exists(), "nothing of it is created anew"


def _run(folder: Path) -> Path:
    (folder / "plan").mkdir(parents=True)
    (folder / "trace").mkdir()
    return folder


def test_an_error_of_writing_tells_file_reason_and_free_bytes_and_removes_the_draft(tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    draft.write_text("half")
    with (
        pytest.raises(
            StorageError, match=r"there cannot be written \(No space left on device\); [\d,]+ bytes are free"
        ),
        writing(tmp_path / "there", draft),
    ):
        raise OSError(28, "No space left on device")
    assert not draft.exists()
    with pytest.raises(RuntimeError, match="other"), writing(tmp_path / "there"):
        raise RuntimeError("other")


def test_what_is_lost_after_training_is_named_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The picture of a finished run is drawn by the process that started it."""

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    root = _run(tmp_path / "run")
    monkeypatch.setattr(train, "read_result", lambda path: SimpleNamespace(status="ok"))
    monkeypatch.setattr(train, "write_perfetto", full)
    with pytest.raises(BackendError, match=r"trace\.perfetto\.json cannot be written .* bytes are free there"):
        train.read_ended(root)
    shutil.rmtree(root)
    with pytest.raises(BackendError, match=f"the run directory {root} is gone"):
        train.read_ended(root)


@pytest.mark.parametrize("error", [LostPeerError("rank 0: lost contact"), StorageError("cannot be written")])
def test_every_rank_says_that_the_directory_is_gone_or_the_disk_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A rank that lost another one tells it too: that is why the other ended."""
    root = _run(tmp_path / "run")
    assert storage_fault(root) == ""
    assert explained(root, error) is error
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=4096))
    full = explained(root, error)
    assert isinstance(full, StorageError)
    assert full is error or "is full; 4,096 bytes are free there" in str(full)
    shutil.rmtree(root)
    assert str(explained(root, error)).startswith(f"the run directory {root} is gone")
    other = ValueError("a bug")
    assert explained(root, other) is other
    assert "is gone" in str(explained(root, other, launched=True))


@pytest.mark.parametrize("free", [4096, 1 << 30])
def test_a_rank_that_cannot_write_the_meeting_place_says_that_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    """As in ``--resume`` on a disk that is full still."""
    root = _run(tmp_path / "run")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    error = torch.distributed.DistStoreError("No space left on device")
    found = explained(root, failure_of("rank 0", error), launched=True)
    assert found is error if free > 4096 else "is full; 4,096 bytes are free there" in str(found)


def test_the_launcher_says_that_the_directory_is_gone_whatever_its_ranks_say(tmp_path: Path) -> None:
    """One that was about to read its plan found none: for that it ends with the status of bad input."""
    root = tmp_path / "run"
    plan: Any = SimpleNamespace(root=root, trace=root / "trace", checkpoints=root / "checkpoint", ranks=2)
    running: Any = [Mock(poll=Mock(return_value=code)) for code in (-15, 2)]
    assert _reason(plan, running, {1}).startswith(f"the run directory {root} is gone")


@pytest.mark.parametrize(
    ("codes", "noted", "told"),
    [
        ((NO_STORAGE, 1), StorageError("no room"), "no room. It has no checkpoint"),
        ((1, NO_STORAGE), None, "rank 1 could not write the run directory"),
        ((NO_STORAGE, -9), None, "rank 0 could not write the run directory"),
    ],
)
def test_the_launcher_says_so_without_a_note(
    codes: tuple[int, ...], noted: Exception | None, told: str, tmp_path: Path
) -> None:
    root = _run(tmp_path / "run")
    if noted is not None:
        write_failure(root / "trace", 0, noted)
    plan: Any = SimpleNamespace(root=root, trace=root / "trace", checkpoints=root / "checkpoint", ranks=2)
    running: Any = [Mock(poll=Mock(return_value=code)) for code in codes]
    assert _reason(plan, running, {0}).startswith(told)
