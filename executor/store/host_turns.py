"""A server that the ranks of a host share: one of them at a time, in the order in which they came.

A rank that comes draws the next number and locks its byte of a file in shared memory; then it waits for the byte before
its own, which the rank ahead unlocks as it leaves. So exactly one rank waits for each byte, none polls, and the kernel
unlocks the bytes of a rank that has died. Locks belong to the open file, not to the process (OFD locks), so that ranks
that are threads of one process exclude one another, too.
"""

import fcntl
import os
import struct
from collections.abc import Callable
from io import FileIO
from typing import Any

from executor.state.context import GroupHandle
from executor.store.shared import FOLDER, shared_segment

COUNTER = struct.Struct("q")
LOCK = struct.Struct("hhqqi4x")
"""``struct flock`` of a 64-bit system: type, whence, start, length, process (0 for locks of open files)."""
DRAWING = 2**62
"""The byte that is locked while a number is drawn; numbers are far below it."""


class HostTurns:
    """The turns of one stream on one host. Every rank of ``group`` makes one at the same time; ``creator``: the rank of
    this host that creates the file. A rank calls :meth:`arrive`, :meth:`wait` and :meth:`leave`, again and again."""

    def __init__(self, creator: int, group: GroupHandle) -> None:
        self._file = shared_segment(COUNTER.size, _opened, creator, lambda file: None, group)
        self._number = 0

    def arrive(self, clock: Callable[[], Any]) -> Any:
        """Draw a number; return the time at which it was drawn, by ``clock``: later numbers have later times."""
        self._lock(fcntl.F_WRLCK, DRAWING)
        try:
            self._number = COUNTER.unpack(os.pread(self._file.fileno(), COUNTER.size, 0))[0] + 1
            os.pwrite(self._file.fileno(), COUNTER.pack(self._number), 0)
            self._lock(fcntl.F_WRLCK, self._number)
            return clock()
        finally:
            self._lock(fcntl.F_UNLCK, DRAWING)

    def wait(self) -> None:
        """Return when all ranks with a smaller number have left."""
        self._lock(fcntl.F_WRLCK, self._number - 1)
        self._lock(fcntl.F_UNLCK, self._number - 1)

    def leave(self) -> None:
        """Let the next rank go on."""
        self._lock(fcntl.F_UNLCK, self._number)

    def _lock(self, kind: int, byte: int) -> None:
        fcntl.fcntl(self._file, fcntl.F_OFD_SETLKW, LOCK.pack(kind, os.SEEK_SET, byte, 1, 0))


def _opened(name: str) -> FileIO:
    return FileIO(FOLDER / name, "r+")  # closed, and so unlocked, when the last reference to it goes
