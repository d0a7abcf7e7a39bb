"""Starting our executor and following it: simgnn itself never imports it."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

import simgnn
from simgnn.errors import BackendError, ConfigError
from simgnn.parent_watch import with_lifeline

PACKAGE = "executor"
GRACE_S = 15.0
"""How long ranks may take to end after an interruption before they are killed."""
REASON = "executor: error: "
"""How the executor begins the line that says why it failed."""
EPOCH_LINE = re.compile(r"\bepoch (\d+)/(\d+)\b(.*)")


def check_executor() -> None:
    """Raise :class:`BackendError` unless ``python -m executor``, started here, would start the one of this simgnn.

    An unrelated package on PyPI has the same import name, and a folder of that name may lie in the working directory.
    """
    ours = Path(simgnn.__file__).resolve().parent.parent / PACKAGE
    # python -m looks in the working directory first
    found = PathFinder.find_spec(PACKAGE, [str(Path.cwd())]) or importlib.util.find_spec(PACKAGE)
    where = _location(found)
    if where is None:
        raise BackendError(f"run: the package '{PACKAGE}' was not found; expected it at {ours}: install simgnn again")
    if where != ours:
        raise BackendError(
            f"run: got the package '{PACKAGE}' at {where}, expected simgnn's own at {ours}: another package has the "
            f"same name; uninstall it, or start simgnn from another folder"
        )


def _location(spec: ModuleSpec | None) -> Path | None:
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return None if spec.origin is None else Path(spec.origin).resolve()


def start_executor(directory: Path, arguments: list[str], tell: Callable[[str], None]) -> None:
    """Run ``python -m executor run DIR`` to its end, each line of its output told as it comes.

    Raises :class:`ConfigError` where what it was given is wrong, :class:`BackendError` when it fails otherwise.
    Interrupted, it ends all ranks before it returns; they end, too, when this process is killed.
    """
    check_executor()
    command = [sys.executable, "-m", PACKAGE, "run", str(directory), *arguments]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = start_session(command, environment)
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
        # the executor ends with 2 for bad input, as simgnn does
        raise (ConfigError if status == ConfigError.exit_status else BackendError)(f"run: {reason}")
    if status != 0:
        raise BackendError(f"run: training ended with status {status}; its last words:\n" + "\n".join(last))


def start_session(command: Sequence[str], environment: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
    """Start a command that leads a session, so that one signal reaches its ranks too; what it prints, on either stream,
    is one pipe of text. End it with :func:`end_session`. It ends by itself when this process dies
    (:mod:`simgnn.parent_watch`)."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=with_lifeline(environment),
        start_new_session=True,
    )


def end_session(process: "subprocess.Popen[str]") -> None:
    """End a process that leads a session, and all that it started: politely, and after ``GRACE_S`` not."""
    # not SIGINT: what a shell started in its background ignores it, and children inherit that
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(GRACE_S)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
        else:
            return


def epoch_of(line: str) -> tuple[int, int, str] | None:
    """(epochs done, epochs in all, the rest) of a progress line of the executor; None for any other line."""
    found = EPOCH_LINE.search(line)
    return (int(found[1]), int(found[2]), found[3].strip(" :,")) if found else None
