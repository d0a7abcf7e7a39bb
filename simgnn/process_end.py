"""Ends processes quietly when the reader of their output has gone, and together with the process that started them.

The standard input of a process with a lifeline is a pipe that nobody writes to. The kernel closes its other end when
the starting process dies, even by SIGKILL. Unlike Linux's PR_SET_PDEATHSIG, this works whichever thread forked.
"""

import io
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Mapping

READER_GONE = 141
"""Exit status that shells report for a command ended by SIGPIPE. The signal itself would end a run before its ranks."""
LIFELINE = "SIMGNN_LIFELINE"
"""Environment variable. A process that finds it set ends when its standard input ends."""


def ended_quietly(command: Callable[[], int]) -> int:
    """Run a command and return its exit status, or ``READER_GONE`` if nobody reads the output any more, as with ``|
    head``. A broken pipe to anything else is raised."""
    try:
        status = command()
    except BrokenPipeError:
        if not _output_dropped(failed=True):
            raise
        return READER_GONE
    except SystemExit:
        if _output_dropped():
            return READER_GONE
        raise
    return READER_GONE if _output_dropped() else status


def _output_dropped(failed: bool = False) -> bool:
    """Return whether the reader of standard output or error has gone. Unwritten text is then dropped, since the
    interpreter would try to write it again. ``failed``: a write has failed already, so that flushing may succeed."""
    gone = False
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: closed by whoever started this
        try:
            stream.flush()
            poll = select.poll()
            poll.register(stream.fileno(), 0)
            broken = failed and any(event & select.POLLERR for _, event in poll.poll(0))
        except BrokenPipeError:
            broken = True
        except io.UnsupportedOperation:  # no file, as in tests
            continue
        if broken:
            gone = True
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())
    return gone


def with_lifeline(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment (default: a copy of this process's) for a child that ends with this process. Start the
    child with ``stdin=subprocess.PIPE``, keep the pipe open, and write nothing to it."""
    return {**(os.environ if environment is None else environment), LIFELINE: "1"}


def follow_starter() -> None:
    """Send SIGTERM to the calling main thread once the starting process has gone; do nothing without ``LIFELINE``."""
    # children of this process have other lifelines, or none
    if os.environ.pop(LIFELINE, None) is None:
        return
    threading.Thread(target=_follow, args=(threading.get_ident(),), name="lifeline", daemon=True).start()


def _follow(main: int) -> None:
    # signals stay with the main thread, which holds some back while it must not be disturbed
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while os.read(0, 4096):  # until standard input ends
        pass
    signal.pthread_kill(main, signal.SIGTERM)
