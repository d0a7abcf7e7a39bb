"""Runs of ``simgnn run`` whose processes fork off one that has imported everything, in place of fresh interpreters.

A fresh rank takes three seconds of processor time to import torch. Tests of what a run computes and records fork;
tests of how processes start, end and use memory start fresh ones.
"""

import os
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import pytest

from simgnn.api import executor_process
from simgnn.process_end import LIFELINE
from tests.executor.harness import forking


class ForkedRank:
    """Stands in for :class:`subprocess.Popen` in a launcher that has imported what its ranks need."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            _become(command, env)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(15)

    def kill(self) -> None:
        self.send_signal(9)


class ForkedSession:
    """Stands in for what :func:`simgnn.api.executor_process.start_session` returns."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        ours, theirs = Pipe(duplex=False)
        given = dict(os.environ if environment is None else environment)
        given.pop(LIFELINE, None)
        self._process = forking().Process(target=_launch, args=(list(command), given, str(Path.cwd()), theirs))
        self._process.start()
        theirs.close()
        self.stdout: TextIO = os.fdopen(os.dup(ours.fileno()), errors="replace")
        ours.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("executor", timeout or 0.0)
        return int(self._process.exitcode)


def _launch(command: list[str], environment: Mapping[str, str], folder: str, output: Connection) -> None:
    """Be the launcher: lead a session, print into the pipe, fork the ranks."""
    from executor.launch import launcher

    os.setsid()
    for stream in (1, 2):
        os.dup2(output.fileno(), stream)
    output.close()
    os.chdir(folder)
    launcher.subprocess = SimpleNamespace(Popen=ForkedRank)  # type: ignore[assignment]
    _become(command, environment)


def _become(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Go on as ``python -m executor ...`` would, in this process."""
    from executor.__main__ import main

    words = list(command)[list(command).index("-m") :]
    assert words[:2] == ["-m", "executor"]
    os.environ.clear()
    os.environ.update(environment)
    status = 1
    try:
        status = main(words[2:])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


@pytest.fixture
def forked_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs of this test fork their processes."""
    real: Any = executor_process.start_session

    def start(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Any:
        if list(command[1:4]) == ["-P", "-m", "executor"] and command[4] in ("run", "export", "infer"):
            return ForkedSession(command, environment)
        return real(command, environment)

    monkeypatch.setattr(executor_process, "start_session", start)
