"""A file that reports how much of it has been read, for libraries that read whole files and report nothing."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

PIECE_BYTES = 1 << 23
"""Bytes that are read between two reports."""


class CountedFile(io.FileIO):
    """A file opened for reading. ``report`` is called with the number of bytes read so far, at most the file's size:
    bytes that are read twice count twice until then."""

    def __init__(self, path: Path, report: Callable[[int], Any]) -> None:
        super().__init__(path, "rb")
        self._size, self._read, self._report = path.stat().st_size, 0, report

    def readinto(self, buffer: Any) -> int:
        """Fill ``buffer`` piece by piece, also where the system would return less; return the bytes read."""
        view = memoryview(buffer).cast("B")
        filled = 0
        while filled < len(view):
            got = super().readinto(view[filled : filled + PIECE_BYTES])
            if not got:
                break
            filled += got
            self._count(got)
        return filled

    def read(self, size: int | None = -1) -> bytes:
        """Read ``size`` bytes, or all that are left."""
        left = max(self._size - self.tell(), 0)
        if size is None or size < 0 or size > left:
            size = left
        if size > PIECE_BYTES:
            whole = bytearray(size)
            return bytes(whole[: self.readinto(whole)])
        data = super().read(size) or b""
        self._count(len(data))
        return data

    def readall(self) -> bytes:
        return self.read()

    def _count(self, more: int) -> None:
        self._read += more
        self._report(min(self._read, self._size))
