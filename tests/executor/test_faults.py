"""How runs fail: a lost rank, a silent rank, a loss that is no number, Ctrl-C. One message, nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import psutil
import pyarrow.parquet as pq
import pytest

from executor.launch.launcher import MEETING, Seat, _reason, launch, run_plan, watch
from executor.recording.failure import LostPeerError, failure_of, read_failures, write_failure
from executor.recording.trace import read_part
from simgnn.errors import BackendError
from tests.executor.forked import ForkedSession
from tests.executor.minibatch.batch_runs import prepared_batches
from tests.executor.runs import prepared_run, small_graph

LIMIT_S = 120
SETTINGS = ["train.epochs=1000000", "train.eval_every=0", "train.timeout=6"]


def ended(folder: Path) -> tuple[int, str]:
    """Exit status of a run, and what it printed; its processes fork."""
    run = ForkedSession([sys.executable, "-m", "executor", "run", str(folder)], {**os.environ, "OMP_NUM_THREADS": "1"})
    said = run.stdout.read()
    return run.wait(LIMIT_S), said


class Running:
    """``python -m executor run DIR`` under way."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "executor", "run", str(folder), *arguments], env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            # whoever starts the tests in the background of a shell has Ctrl-C ignored, and children inherit that
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        self.ranks: list[psutil.Process] = []

    def until_training(self) -> None:
        """Wait for the first line about an epoch; note the ranks' processes."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if "epoch" in line:
                break
        self.ranks = psutil.Process(self.process.pid).children()
        assert len(self.ranks) == 2, self.process.stderr.read() if self.process.poll() is not None else "no ranks"

    def end(self) -> tuple[int, str, float]:
        """Exit status, what was said on stderr, and how long the end took."""
        begin = time.monotonic()
        _, said = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, said, time.monotonic() - begin


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Running]:
    """A long run of two ranks that trains."""
    running = Running(prepared_run(small_graph(), tmp_path / "run", 2, *SETTINGS))
    try:
        running.until_training()
        yield running
    finally:
        for rank in running.ranks:
            if rank.is_running():
                rank.kill()
        if running.process.poll() is None:
            running.process.kill()
        running.process.wait()


def _gone(ranks: list[psutil.Process]) -> bool:
    end = time.monotonic() + 5
    while time.monotonic() < end and any(r.is_running() and r.status() != psutil.STATUS_ZOMBIE for r in ranks):
        time.sleep(0.05)
    return not any(r.is_running() and r.status() != psutil.STATUS_ZOMBIE for r in ranks)


def _plan(root: Path) -> Any:
    """As much of a plan as the launcher needs to watch two ranks. Everything lies in ``root``."""
    (root / "plan").mkdir()
    return SimpleNamespace(root=root, trace=root, checkpoints=root, ranks=2, threads_per_rank=1, timeout=60.0)


def _messages(said: str) -> list[str]:
    return [line for line in said.splitlines() if "executor: error" in line]


def test_a_killed_rank_ends_the_run_with_one_message(started: Running) -> None:
    os.kill(started.ranks[1].pid, signal.SIGKILL)
    status, said, seconds = started.end()
    assert status == 1
    assert len(_messages(said)) == 1
    assert "Traceback" not in said
    killed = [rank for rank in range(2) if f"rank {rank} was killed by SIGKILL" in said]
    assert len(killed) == 1, said
    assert "the run has ended on all 2 ranks" in said
    assert seconds < 30
    assert _gone(started.ranks)
    result = json.loads((started.folder / "result.json").read_text())
    assert result["status"] == "failed"
    assert "SIGKILL" in result["message"]
    assert result["bytes_sent"] == result["messages"] == [], "a payload that no rank told is not zero"
    # a rank that lives long enough to note its end keeps its trace; a killed one what it had flushed
    assert len(read_part(started.folder / "trace" / f"rank-{1 - killed[0]}.arrow")[0])
    assert pq.read_table(started.folder / "trace.parquet").num_rows


@pytest.mark.slow
def test_a_silent_rank_ends_the_run_within_the_timeout(started: Running) -> None:
    os.kill(started.ranks[0].pid, signal.SIGSTOP)
    status, said, seconds = started.end()
    assert status == 1
    assert len(_messages(said)) == 1, said
    assert "lost contact with another rank" in said
    assert "did not answer" in said
    assert 4 < seconds < 40
    assert _gone(started.ranks)


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1])
def test_a_rank_stopped_before_the_ranks_have_met_is_told_in_the_same_words(which: int, tmp_path: Path) -> None:
    running = Running(prepared_run(small_graph(), tmp_path / "run", 2, *SETTINGS))
    launcher = psutil.Process(running.process.pid)
    while len(launcher.children()) < 2:
        time.sleep(0.01)
    running.ranks = launcher.children()
    os.kill(running.ranks[which].pid, signal.SIGSTOP)
    status, said, _ = running.end()
    assert status == 1
    assert len(_messages(said)) == 1, said
    assert "lost contact with another rank" in said
    assert f"rank {which} did not answer" in said
    assert _gone(running.ranks)


def test_ctrl_c_ends_all_ranks(started: Running) -> None:
    started.process.send_signal(signal.SIGINT)
    status, said, _ = started.end()
    assert status == 130
    assert said.strip() == "executor: interrupted; ending all ranks"
    assert _gone(started.ranks)


def test_ranks_end_with_their_launcher(started: Running) -> None:
    started.process.kill()
    assert _gone(started.ranks)


def test_what_a_killed_launcher_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    left = tmp_path / f"{MEETING}1"
    left.touch()
    write_failure(tmp_path, 0, LOST)
    assert run_plan(_plan(tmp_path), [sys.executable, "-c", ""]) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["plan"]


def test_a_loss_that_is_no_number_ends_the_run(tmp_path: Path) -> None:
    folder = prepared_run(
        small_graph(), tmp_path / "run", 2, "train.epochs=400", "train.optimizer=sgd", "train.weight_decay=1000000",
        "train.learning_rate=1000000", "train.dtype=float32",
    )  # fmt: skip
    status, said = ended(folder)
    assert status == 1
    assert len(_messages(said)) == 1, said
    assert "the loss of epoch" in said
    assert "lower train.learning_rate" in said
    assert "Traceback" not in said


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    status, said = ended(tmp_path)
    assert status == 2
    assert "is no run directory" in said
    assert "Traceback" not in said


def test_a_changed_program_is_refused(tmp_path: Path) -> None:
    folder = prepared_run(small_graph(), tmp_path / "run", 2)
    path = folder / "plan" / "plan.json"
    table = json.loads(path.read_text())
    path.write_text(json.dumps({**table, "program_digest": "0" * 64}))
    status, said = ended(folder)
    assert status == 2
    assert len(_messages(said)) == 1, said
    assert "the plan says 000000000000" in said


ENDS_SILENTLY = """
import os, sys
from executor.minibatch.input_rows import StagedRows
inputs = StagedRows.inputs
def ends(*arguments):
    return os._exit(7) if arguments[1].epoch == 2 else inputs(*arguments)
StagedRows.inputs = ends
from executor.__main__ import main
main(sys.argv[4:])
"""
"""Before ``python -m executor ...``: the same, but its thread that stages rows ends the process in the third epoch."""


@pytest.mark.slow
def test_a_rank_that_ends_without_a_word_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its peer tells that it lost contact: a consequence."""
    folder = prepared_batches(
        small_graph(), tmp_path / "run", 2, 1, "rapidgnn", "placement.hot_rows=5", "schedule.window=3",
        "train.checkpoint_every=1", "train.timeout=20",
    )  # fmt: skip
    interface = "lo" if sys.platform == "linux" else "lo0"
    prefixes: list[tuple[str, ...]] = [(), (sys.executable, "-c", ENDS_SILENTLY)]
    assert launch(folder, [], [Seat(prefix, rank, 2, 1, interface) for rank, prefix in enumerate(prefixes)]) == 1
    (line,) = _messages(capfd.readouterr().err)
    assert line.startswith("executor: error: rank 1 ended with exit status 7 and reported no reason")
    assert line.endswith("Go on from its last checkpoint with --resume.")
    result = json.loads((folder / "result.json").read_text())
    assert result["status"] == "failed"
    assert line.endswith(result["message"])
    ((_, kind, said),) = read_failures(folder / "trace")
    assert kind == "lost-peer"
    assert "GLHF" not in said
    assert said.isascii()


LOST = LostPeerError("rank 0: lost contact")
REASON = BackendError("the disk is gone")


@pytest.mark.parametrize(
    ("codes", "first", "notes", "told"),
    [
        ((1, 7), {1}, {0: LOST}, "rank 1 ended with exit status 7 and reported no reason"),
        ((1, 7), {0}, {0: LOST}, "rank 1 ended with exit status 7 and reported no reason"),
        ((1, 7), {1}, {0: REASON}, "the disk is gone"),
        ((1, 7), {1}, {1: REASON}, "the disk is gone"),
        ((3, 7), {1}, {}, "rank 1 ended with exit status 7"),
        ((3, -9), {1}, {}, "rank 1 was killed by SIGKILL"),
        ((-6, 7), {1}, {}, "rank 1 ended with exit status 7"),
        ((7, -9), {0, 1}, {}, "rank 1 was killed by SIGKILL"),
        ((0, 7), {1}, {}, "rank 1 ended with exit status 7"),
        ((1, -9), {0}, {0: LOST}, "rank 1 was killed by SIGKILL"),
        ((1, None), {0}, {0: LOST}, "rank 0: lost contact; rank 1 did not answer. It has no checkpoint"),
        ((1, 1), {0}, {0: LOST, 1: LOST}, "rank 0: lost contact"),
    ],
)
def test_the_reason_of_the_rank_that_ended_first_wins(
    codes: tuple[int | None, ...], first: set[int], notes: dict[int, Exception], told: str, tmp_path: Path
) -> None:
    for rank, error in notes.items():
        write_failure(tmp_path, rank, error)
    plan = _plan(tmp_path)
    running: Any = [Mock(poll=Mock(return_value=code)) for code in codes]
    assert _reason(plan, running, first).startswith(told)


def test_a_rank_that_stays_after_the_others_have_ended_is_silent(tmp_path: Path) -> None:
    """Stopped after the last meeting: no rank waits for it any more, only the launcher."""
    running: Any = [Mock(poll=Mock(return_value=code)) for code in (0, None)]
    assert watch(running, 0.1)
    plan = _plan(tmp_path)
    said = _reason(plan, running, set())
    assert said.startswith("other ranks ended more than 60 s (train.timeout) ago; rank 1 did not answer")
    running[1].poll.return_value = 0
    assert not watch(running, 0.1)


def test_what_gloo_advises_is_left_out() -> None:
    error = RuntimeError(
        "[/src/gloo/transport/tcp/pair.cc:547] Read error [127.0.0.1]:5902: Connection reset by peer. This is "
        "typically caused by a remote worker. Check the logs of the remote worker before reporting an error. GLHF! 🏖️"
    )
    assert str(failure_of("rank 0", error)) == (
        "rank 0: lost contact with another rank (Read error [127.0.0.1]:5902: Connection reset by peer. This is "
        "typically caused by a remote worker); it died, or was silent for longer than train.timeout"
    )
