"""Starts the executor and its testbed as processes and reads their output; simgnn never imports them."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import simgnn
from simgnn.errors import BackendError, ConfigError, ShortMemoryError
from simgnn.process_end import with_lifeline

PACKAGE = "executor"
CHECKOUT = Path(simgnn.__file__).resolve().parent.parent
"""Folder that holds the packages of simgnn."""
GRACE_S = 15.0
"""Seconds after an interruption at which ranks that still run are killed."""
REASON = "executor: error: "
"""Prefix of the line in which the executor reports why it failed."""
EPOCH_LINE = re.compile(r"\bepoch (\d+)/(\d+)\b(.*)")


def check_executor() -> None:
    """Raise :class:`BackendError` unless ``python -m executor`` would start simgnn's own executor: a package on PyPI
    has the same name."""
    ours = CHECKOUT / PACKAGE
    spec = importlib.util.find_spec(PACKAGE)
    places = () if spec is None else (*(spec.submodule_search_locations or ()), spec.origin)
    place = next(filter(None, places), None)
    if place is None:
        raise BackendError(f"run: the package '{PACKAGE}' was not found; expected it at {ours}: install simgnn again")
    where = Path(place).resolve()
    if where != ours:
        raise BackendError(
            f"run: got the package '{PACKAGE}' at {where}, expected simgnn's own at {ours}: another package has the "
            f"same name; uninstall it"
        )


def start_executor(
    directory: Path,
    arguments: Sequence[str],
    tell: Callable[[str], None],
    command: str = "run",
    testbed: Path | None = None,
) -> None:
    """Run ``python -m executor COMMAND DIR`` to its end, with ``testbed`` inside that one; ``tell`` is called with each
    line of output.

    Raises :class:`ConfigError` for wrong input, :class:`ShortMemoryError` if a rank held more than its budget or a host
    lacks memory, :class:`BackendError` if training fails otherwise. An interruption ends
    all ranks before this returns; they also end when this process is killed.
    """
    check_executor()
    place = [command] if testbed is None else ["testbed", command, str(testbed)]
    words = [sys.executable, "-P", "-m", PACKAGE, *place, str(directory), *arguments]
    process = start_session(words, {**os.environ, "PYTHONUNBUFFERED": "1"})
    assert process.stdout is not None
    last: list[str] = []
    reason = ""
    try:
        for line in process.stdout:
            text = line.rstrip("\n")
            if text.startswith(REASON):
                reason = text.removeprefix(REASON)
            elif text:
                last = [*last[-9:], text]
                tell(text)
        status = process.wait()
    except BaseException:
        end_session(process)
        raise
    if reason:
        # the executor ends with 2 for bad input and with 3 for want of memory, as simgnn does
        known = {kind.exit_status: kind for kind in (ConfigError, ShortMemoryError)}
        raise known.get(status, BackendError)(f"{command}: {reason}")
    if status != 0:
        end = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        raise BackendError(f"{command}: the executor {end}; last lines of output:\n" + "\n".join(last))


def start_session(command: Sequence[str], environment: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
    """Start a command in a session of its own, so that one signal reaches all its ranks. Its output streams share one
    text pipe. End it with :func:`end_session`; it ends by itself when this process dies."""
    return _start(command, with_lifeline(environment), own_session=True)


def _start(command: Sequence[str], environment: Mapping[str, str] | None, own_session: bool) -> "subprocess.Popen[str]":
    given = dict(os.environ if environment is None else environment)
    if Path.cwd() == CHECKOUT:  # Python's option -P leaves the working directory out, and with it simgnn itself
        given["PYTHONPATH"] = os.pathsep.join(filter(None, (str(CHECKOUT), given.get("PYTHONPATH"))))
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=given,
        start_new_session=own_session,
    )


def end_session(process: "subprocess.Popen[str]") -> None:
    """End a process that leads a session, and all processes that it started; kill them after ``GRACE_S``."""
    # not SIGINT: what a shell started in its background ignores it, and children inherit that
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(subprocess.TimeoutExpired):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
                process.wait(GRACE_S)
            return


def epoch_of(line: str) -> tuple[int, int, str] | None:
    """Parse a progress line of the executor into (epochs done, all epochs, rest); None for any other line."""
    found = EPOCH_LINE.search(line)
    return (int(found[1]), int(found[2]), found[3].strip(" :,")) if found else None


def call_testbed(*arguments: str, fine: Sequence[int] = (0,)) -> None:
    """Run ``executor testbed`` to its end. Raises an error with its last lines for an exit status not in ``fine``."""
    process = start_testbed(*arguments)
    assert process.stdout is not None
    try:
        output = process.stdout.read()  # communicate() would end its standard input, and so the process
        process.wait()
    except BaseException:
        process.terminate()  # it ends its ranks before it ends
        process.wait()
        raise
    check_ended(process, output, arguments[0], fine)


def start_testbed(*arguments: str, holds: bool = False) -> "subprocess.Popen[str]":
    """Start ``executor testbed``. It ends with this process, unless it ``holds`` a testbed: then Ctrl-C does not reach
    it, and it removes the testbed itself."""
    check_executor()
    words = [sys.executable, "-P", "-m", PACKAGE, "testbed", *arguments]
    return _start(words, None if holds else with_lifeline(), own_session=holds)


def check_ended(process: "subprocess.Popen[str]", output: str, what: str, fine: Sequence[int] = (0,)) -> None:
    """Wait until a testbed command ends. Raises :class:`ConfigError` for wrong input, :class:`BackendError` for another
    failure, with the last lines of its ``output``."""
    status = process.wait()
    if status not in fine:
        last = "\n".join(output.splitlines()[-10:])
        if status == ConfigError.exit_status:
            raise ConfigError(last.removeprefix(REASON))
        raise BackendError(f"testbed {what}: ended with status {status}:\n{last}")
