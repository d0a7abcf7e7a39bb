"""Turns of the processes that carry out the tests: most tests run beside others, those marked ``alone`` do not."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def turn(folder: Path, alone: bool) -> Iterator[None]:
    """Have the machine for the length of the block: together with others, or ``alone``, once these have ended.

    ``folder``: the same for all processes. Whoever waits to be alone holds the door, so that nobody comes in before.
    """
    with (folder / "door").open("a") as door, (folder / "room").open("a") as room:
        fcntl.flock(door, fcntl.LOCK_EX)
        try:
            fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        finally:
            fcntl.flock(door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            # not left to closing: a process forked in the block would hold on to it
            fcntl.flock(room, fcntl.LOCK_UN)
