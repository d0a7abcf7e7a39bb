"""Damaged inputs of every kind are read or refused in words; the mutator repeats its draws and sees every fault."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.executor.forked import forked_ranks
from tools.mutate_inputs import attempt
from tools.mutate_inputs.__main__ import SHARES, counts, main
from tools.mutate_inputs.attempt import Limits
from tools.mutate_inputs.graph_inputs import side_inputs
from tools.mutate_inputs.inputs import KINDS
from tools.mutate_inputs.mutate import mutate

__all__ = ["forked_ranks"]


QUICK = ("toml", "side", "profile", "statistics")
"""Kinds whose inputs are made in little time; those of the others take runs, or libraries that load slowly."""


def tried(capsys: pytest.CaptureFixture[str], kinds: Sequence[str], *words: str) -> None:
    status = main([*words, "--kinds", *kinds])
    told = capsys.readouterr().out
    assert status == 0, told
    assert "FAULT" not in told
    for kind in kinds:
        assert f"\n| {kind} | " in told


def test_damaged_inputs_are_read_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    tried(capsys, QUICK, "--seed", "5", "--count", "60")


@pytest.mark.slow
@pytest.mark.usefixtures("forked_ranks")
def test_damaged_inputs_of_every_kind_are_read_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    tried(capsys, KINDS, "--seed", "5", "--count", "60")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_three_thousand_damaged_inputs_are_read_or_refused(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    tried(capsys, [kind], "--seed", "23", "--count", "3000", "--check-inputs")


def test_attempts_are_divided_among_all_kinds() -> None:
    assert set(SHARES) == set(KINDS)
    assert sum(counts(3000, KINDS).values()) == 3000
    assert min(counts(20, KINDS).values()) == 1


def test_draws_repeat(tmp_path: Path) -> None:
    made = []
    for number in range(60):
        done = []
        for again in range(2):
            root = tmp_path / f"{number}-{again}"
            source = next(side_inputs(root))
            path = source.damaged_files(source.folder)[number % 3 - 1]
            told = mutate(path, np.random.default_rng([3, number]))
            content = path.read_bytes() if path.is_file() and path.stat().st_size < 2**30 else b""
            done.append((path.name, told, content))
        assert done[0] == done[1]
        made.append(done[0])
    assert len({told for _, told, _ in made}) > 50


def allocate(words: Sequence[str]) -> int:
    """Take more than the limit of ``words`` at once."""
    return len(b"x" * (2 * int(words[0]))) % 2


def share_out(words: Sequence[str]) -> int:
    """Take more than the limit of ``words`` in several processes, each of which stays below it."""
    for _ in range(3):
        if not os.fork():
            held = b"x" * (int(words[0]) // 2)
            time.sleep(20.0)
            os._exit(len(held) % 2)
    time.sleep(20.0)
    return 0


def quit_at_once(words: Sequence[str]) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def divide(words: Sequence[str]) -> int:
    return len(words) // 0


def wait(words: Sequence[str]) -> int:
    time.sleep(30.0)
    return 0


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (divide, 'printed "Traceback'),
        (quit_at_once, "ended by SIGKILL"),
        (wait, "took more than 1 s"),
        (allocate, 'printed "Traceback'),
        (share_out, "of memory"),
        (lambda words: 1, "exit status 1"),
        (lambda words: 2, "refused without a word"),
        (lambda words: 3, ""),
        (lambda words: 0, ""),
    ],
)
def test_faults_are_seen(
    command: Callable[[Sequence[str]], int], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "invoke", command)
    room = psutil.Process().memory_info().rss + (200 << 20)
    found = attempt.attempt(
        (str(room),), tmp_path, {}, tmp_path / "output.txt", Limits(1.0 if command is wait else 25.0, room)
    )
    assert expected in found.fault
    assert bool(found.fault) == bool(expected)


def test_bad_arguments_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "toml"]) == 2
    assert "expected KIND:NUMBER" in capsys.readouterr().err
    assert main(["--out", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
