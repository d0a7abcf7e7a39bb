"""Runs one command line in a forked process of its own, with bounded time and memory, and judges how it ended."""

import faulthandler
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from simgnn.cli.main import invoke

FINE = frozenset({0, 2, 3, 4})
"""Exit statuses of a command that read its input or refused it: 3 is out of memory predicted, 4 a noisy machine."""
BAD_WORDS = ("Traceback (most recent call last)", "fault of simgnn itself", "internal error of simgnn")
GIB = 2**30
WATCH_S = 0.05
"""Seconds between two looks at the memory of an attempt."""


@dataclass(frozen=True)
class Limits:
    """What an attempt may take: wall-clock seconds, bytes of memory of all its processes together, and their processor
    time. On a busy machine wall-clock seconds say little, so that a caller may raise them alone."""

    seconds: float = 60.0
    nbytes: int = 4 * GIB
    cpu_s: float = 60.0


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended. ``status``: its exit status, negative for a signal; ``fault``: what was wrong with that,
    "" if nothing was; ``peak_bytes``: most resident memory of all its processes; ``output``: all it printed."""

    status: int
    fault: str
    seconds: float
    cpu_s: float
    peak_bytes: int
    output: str


def attempt(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], output: Path, limits: Limits
) -> Outcome:
    """Run ``simgnn`` with the words ``command`` in ``folder``, in a fork of this process, which has loaded simgnn.

    Two bounds hold for memory. The address space of the fork, and of each process that it starts, may grow by
    ``limits.nbytes`` (RLIMIT_AS): a command that checks its memory refuses in time, one that does not gets a
    ``MemoryError``. The resident memory of all its processes together is watched, and an attempt that exceeds the limit
    is killed. What the fork prints goes to the file ``output``."""
    began = time.monotonic()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _become(command, folder, environment, output, limits)
    status, peak, cpu_s, ended = _watch(child, began, limits)
    seconds = time.monotonic() - began
    text = output.read_text(encoding="utf-8", errors="replace")
    return Outcome(status, ended or _fault(status, text), seconds, cpu_s, peak, text)


def limit_memory(nbytes: int) -> None:
    """Let the address space of this process, and of those that it starts, grow by ``nbytes``."""
    most = psutil.Process().memory_info().vms + nbytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _become(command: Sequence[str], folder: Path, environment: Mapping[str, str], output: Path, limits: Limits) -> None:
    """Turn the fork into the command and end it; never returns."""
    status = 1
    try:
        os.setsid()
        os.chdir(folder)
        os.environ.update(environment)
        nothing = os.open(os.devnull, os.O_RDONLY)
        printed = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for stream, source in ((0, nothing), (1, printed), (2, printed)):
            os.dup2(source, stream)
        # the caller may have replaced them, as pytest does
        sys.stdout, sys.stderr = (
            os.fdopen(1, "w", errors="backslashreplace"),
            os.fdopen(2, "w", errors="backslashreplace"),
        )
        faulthandler.register(signal.SIGUSR1)  # where a hanging attempt is, in its output
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        limit_memory(limits.nbytes)
        status = invoke(command)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _watch(child: int, began: float, limits: Limits) -> tuple[int, int, float, str]:
    """Wait for an attempt; return its exit status, peak memory and processor time, and which limit it exceeded."""
    ended, peak = "", 0
    seen: set[psutil.Process] = set()
    handle = os.pidfd_open(child)
    try:
        while not select.select([handle], [], [], WATCH_S)[0]:
            now = _memory(child, seen)
            peak = max(peak, now)
            if now > limits.nbytes:
                ended = f"took more than {limits.nbytes / GIB:.0f} GiB of memory"
            elif time.monotonic() - began > limits.seconds:
                ended = f"took more than {limits.seconds:.0f} s"
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGUSR1)
                select.select([handle], [], [], 1.0)
            if ended:
                break
    finally:
        _kill(child, seen, running=not select.select([handle], [], [], 0)[0])
        _, raw, usage = os.wait4(child, 0)
        os.close(handle)
    peak = max(peak, usage.ru_maxrss * 1024)
    if peak > limits.nbytes and not ended:
        ended = f"took {peak / GIB:.1f} GiB of memory"
    cpu_s = usage.ru_utime + usage.ru_stime
    if cpu_s > limits.cpu_s and not ended:
        ended = f"worked for {cpu_s:.0f} s"
    return os.waitstatus_to_exitcode(raw), peak, cpu_s, ended


def _memory(child: int, seen: set[psutil.Process]) -> int:
    """Return the resident bytes of a process and of all that it started, which are added to ``seen``."""
    total = 0
    with suppress(psutil.Error):
        top = psutil.Process(child)
        for process in (top, *top.children(recursive=True)):
            seen.add(process)
            with suppress(psutil.Error):
                total += process.memory_info().rss
    return total


def _kill(child: int, seen: set[psutil.Process], running: bool) -> None:
    """Kill what is left of an attempt: processes that it started end with it, or are stuck."""
    if running:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    for process in seen:
        with suppress(psutil.Error):  # it checks that the number belongs to the same process still
            if process.pid != child:
                process.kill()


def _fault(status: int, text: str) -> str:
    words = next((word for word in BAD_WORDS if word in text), None)
    if words is not None:
        return f'printed "{words}"'
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    if status not in FINE:
        return f"exit status {status}"
    return "refused without a word" if status == 2 and not text.strip() else ""
