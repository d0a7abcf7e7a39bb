"""How processes end: quietly when the reader of their output has gone, and together with the process that started them.

The standard input of a process with a lifeline is a pipe that nobody writes to: the kernel closes the other end when
the starter dies, also by SIGKILL. Unlike Linux's signal of a dead parent this does not depend on which thread forked.
"""

import io
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Mapping

READER_GONE = 141
"""The status that shells report for a command that SIGPIPE has ended. The signal would end a run before its ranks."""
LIFELINE = "SIMGNN_LIFELINE"
"""Environment variable: a process that finds it ends when its standard input does."""


def ended_quietly(command: Callable[[], int]) -> int:
    """The exit status of a command, or ``READER_GONE`` when nobody reads its output any more, as ``head`` stops once it
    has its lines. A broken pipe to anything else is raised."""
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
    """Whether the reader of a stream has gone before all was written. What is left is dropped, as the interpreter would
    try to write it again. ``failed``: a write has failed, which may have dropped it, so that flushing does not fail."""
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
    """An environment (default: this process's) for a child that ends with this process. Start the child with
    ``stdin=subprocess.PIPE``, keep that open, and write nothing to it."""
    return {**(os.environ if environment is None else environment), LIFELINE: "1"}


def follow_starter() -> None:
    """Send the main thread, which calls this, SIGTERM once the starter has gone. Without the variable: do nothing."""
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
