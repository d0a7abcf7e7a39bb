"""Starting the executor: only ours, every line told, nothing left behind."""

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from simgnn.api import executor_process
from simgnn.errors import BackendError, ConfigError, SimgnnError


def test_the_executor_that_is_found_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    executor_process.check_executor()


@pytest.mark.parametrize("shape", ["executor.py", "executor/__init__.py"])
def test_another_package_of_that_name_is_refused(shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / shape).parent.mkdir(exist_ok=True)
    (tmp_path / shape).write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "executor", raising=False)
    with pytest.raises(BackendError, match=r"got the package 'executor' at .*, expected simgnn's own"):
        executor_process.check_executor()


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in the executor's place, so that its ways to end can be chosen."""
    folder = tmp_path / "stand_in"
    folder.mkdir()
    monkeypatch.setattr(executor_process, "PACKAGE", "stand_in")
    monkeypatch.setattr(executor_process, "check_executor", lambda: None)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return folder / "__main__.py"


def test_every_line_is_told_as_it_comes(stand_in: Path, tmp_path: Path) -> None:
    stand_in.write_text(
        "import sys\nprint('epoch 1/2: loss 3')\nprint('to error', file=sys.stderr)\nprint(sys.argv[1:])\n"
    )
    told: list[str] = []
    executor_process.start_executor(tmp_path / "run", ["--resume"], told.append)
    assert "epoch 1/2: loss 3" in told
    assert "to error" in told
    assert str(["run", str(tmp_path / "run"), "--resume"]) in told


def test_a_failure_is_told_with_the_last_words(stand_in: Path, tmp_path: Path) -> None:
    stand_in.write_text("print('rank 1 ran out of memory')\nraise SystemExit(7)\n")
    with pytest.raises(BackendError, match=r"status 7.*\n.*rank 1 ran out of memory"):
        executor_process.start_executor(tmp_path, [], lambda line: None)


def test_an_executor_that_was_killed_is_told_so(stand_in: Path, tmp_path: Path) -> None:
    stand_in.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    with pytest.raises(BackendError, match="the executor was killed by SIGKILL"):
        executor_process.start_executor(tmp_path, [], lambda line: None)


@pytest.mark.parametrize(("status", "kind"), [(1, BackendError), (2, ConfigError)])
def test_the_reason_that_the_executor_gives_is_the_message(
    status: int, kind: type[SimgnnError], stand_in: Path, tmp_path: Path
) -> None:
    text = f"print('epoch 1/2')\nprint('executor: error: rank 1 was killed')\nraise SystemExit({status})\n"
    stand_in.write_text(text)
    told: list[str] = []
    with pytest.raises(kind) as caught:
        executor_process.start_executor(tmp_path, [], told.append)
    assert str(caught.value) == "run: rank 1 was killed"
    assert told == ["epoch 1/2"]


@pytest.mark.skipif(sys.platform == "win32", reason="process groups")
def test_an_interruption_ends_the_children_too(stand_in: Path, tmp_path: Path) -> None:
    stand_in.write_text(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print('child', child.pid, flush=True)\ntime.sleep(60)\n"
    )
    pids: list[int] = []

    def tell(line: str) -> None:
        if line.startswith("child "):
            pids.append(int(line.split()[1]))
            raise KeyboardInterrupt

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        executor_process.start_executor(tmp_path, [], tell)
    assert time.monotonic() - begun < executor_process.GRACE_S
    for _ in range(100):
        if not _alive(pids[0]):
            break
        threading.Event().wait(0.05)
    assert not _alive(pids[0])


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # an orphan that nobody has waited for yet is still listed, as a zombie
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("epoch 3/20: loss 1.25", (3, 20, "loss 1.25")),
        ("[rank 0] epoch 20/20", (20, 20, "")),
        ("epoch three", None),
        ("checkpoint after epoch 3", None),
    ],
)
def test_progress_lines_are_recognised(line: str, found: tuple[int, int, str] | None) -> None:
    assert executor_process.epoch_of(line) == found
