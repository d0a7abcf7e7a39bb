"""Calls of ``executor testbed``, which end when this process does."""

import subprocess
import sys
from collections.abc import Sequence

from simgnn.cli.executor_process import check_executor
from simgnn.errors import BackendError, ConfigError
from simgnn.parent_watch import with_lifeline


def call_testbed(*arguments: str, fine: Sequence[int] = (0,)) -> None:
    """One call of the testbed; its own words when it ends with a status that is not ``fine``."""
    process = start_testbed(*arguments)
    assert process.stdout is not None
    try:
        said = process.stdout.read()  # communicate() would end its standard input, and so the process
        process.wait()
    except BaseException:
        process.terminate()  # it ends its ranks before it ends
        process.wait()
        raise
    check_ended(process, said, arguments[0], fine)


def start_testbed(*arguments: str, holds: bool = False) -> "subprocess.Popen[str]":
    """A call that ends when this process does, however that ends; one that ``holds`` sees to that itself, and is out of
    the reach of Ctrl-C."""
    check_executor()
    return subprocess.Popen(
        [sys.executable, "-m", "executor", "testbed", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=None if holds else with_lifeline(),
        start_new_session=holds,
    )


def check_ended(process: "subprocess.Popen[str]", said: str, what: str, fine: Sequence[int] = (0,)) -> None:
    """Wait for the end of a call; :class:`ConfigError` where it was given wrong input, :class:`BackendError` where it
    failed otherwise, with its last words ``said``."""
    status = process.wait()
    if status not in fine:
        last = "\n".join(said.splitlines()[-10:])
        if status == ConfigError.exit_status:
            raise ConfigError(last.removeprefix("executor: error: "))
        raise BackendError(f"testbed {what}: ended with status {status}:\n{last}")
