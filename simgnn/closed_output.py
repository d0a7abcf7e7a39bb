"""A command whose reader has gone, as ``head`` goes once it has its lines, ends as other tools do: without a word."""

import io
import os
import select
import sys
from collections.abc import Callable

READER_GONE = 141
"""As shells tell of a command that SIGPIPE has ended. The signal itself would end a run before its ranks."""


def ended_quietly(command: Callable[[], int]) -> int:
    """The exit status of a command, or ``READER_GONE`` where nobody reads on what it prints.

    A broken pipe to anything else is raised as it is.
    """
    try:
        status = command()
    except BrokenPipeError:
        if not _let_go(failed=True):
            raise
        return READER_GONE
    except SystemExit:
        if _let_go():
            return READER_GONE
        raise
    return READER_GONE if _let_go() else status


def _let_go(failed: bool = False) -> bool:
    """Whether the reader of a stream has gone before all was written, in a write that has ``failed`` or in one that is
    left. That is dropped: the interpreter would try again."""
    gone = False
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: closed by whoever started this
        try:
            stream.flush()
            broken = failed and _is_broken(stream.fileno())
        except BrokenPipeError:
            broken = True
        except io.UnsupportedOperation:  # no file, as in tests
            continue
        if broken:
            gone = True
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())
    return gone


def _is_broken(file: int) -> bool:
    """Whether nobody can read what is written; a write that failed may have dropped it, so that no other one fails."""
    poll = select.poll()
    poll.register(file, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
