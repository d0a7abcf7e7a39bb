"""Progress of long work as lines of text: what begins, and how much of it is done."""

import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

INTERVAL_S = 5.0
"""Least seconds between two lines of one piece of work."""
PIECE_BYTES = 1 << 23
"""Bytes that are read between two reports."""


class Counter:
    """Progress of one piece of work towards ``total``. ``share``: show percent, for units that mean nothing to a user;
    ``tell`` gets the lines (None: nobody). ``patient``: no line in the first ``INTERVAL_S``, nor about work that ends
    by then."""

    def __init__(
        self,
        text: str,
        total: int,
        share: bool = False,
        tell: Callable[[str], None] | None = None,
        patient: bool = False,
    ) -> None:
        self._text, self._total, self._share, self._tell = text, total, share, tell
        self._first: tuple[float, int] | None = None
        self._told = time.monotonic() if patient else float("-inf")
        self._detail, self._ended, self._silent = "", False, patient

    def at(self, done: int, detail: str = "", total: int | None = None) -> None:
        """Report that ``done`` units are complete; ``total``: a new total."""
        self._total = self._total if total is None else total
        now = time.monotonic()
        if self._first is None:
            self._first = (now, done)  # what came before was start-up, which says nothing of the speed
        changed, self._detail = self._share and bool(detail) and detail != self._detail, detail
        ended, self._ended = done >= self._total and not self._ended and not self._silent, done >= self._total
        due = now - self._told >= INTERVAL_S and done < self._total
        if self._tell is None or not (ended or changed or due):
            return
        self._told, self._silent = now, False
        began, from_here = self._first
        eta = ""
        if from_here < done < self._total:
            eta = f", {(now - began) / (done - from_here) * (self._total - done):.0f} s left"
        reached = f"{100 * done // max(self._total, 1)} %" if self._share else f"{done}/{self._total}"
        self._tell(f"{self._text}: {reached}{eta}{self._between if detail else ''}{detail}")

    @property
    def _between(self) -> str:
        return ": " if self._share else " "


class Progress:
    """Reports progress of long work in lines, which ``tell`` gets one by one (None: nobody)."""

    def __init__(self, tell: Callable[[str], None] | None = None) -> None:
        self._tell = tell

    def stage(self, text: str) -> None:
        """Report that a new piece of work begins."""
        if self._tell is not None:
            self._tell(text)

    @contextmanager
    def counting(self, text: str, total: int, share: bool = False, patient: bool = False) -> Iterator[Counter]:
        """Report progress towards ``total``; call ``at(done)`` of the yielded counter as often as convenient.
        ``share``: show percent, for units that mean nothing to a user. ``patient``: for work that is mostly short, of
        which lines say nothing in the first seconds."""
        yield Counter(text, total, share, self._tell, patient)

    @contextmanager
    def waiting(self, text: str, expected_s: float | None = None) -> Iterator[None]:
        """Report work that cannot tell how far it is. ``expected_s``: how long it is expected to take, or None; a line
        tells it where that is more than ``INTERVAL_S``."""
        if expected_s is not None and expected_s > INTERVAL_S:
            self.stage(f"{text}: about {expected_s:.0f} s, by the last one here")
        yield


SILENT = Progress()


def progress_of(given: "Progress | Callable[[str], None] | None") -> Progress:
    """Return ``given``, or the progress that calls it with each line (None: nobody hears of it)."""
    return given if isinstance(given, Progress) else Progress(given)


class CountedFile(io.FileIO):
    """A file opened for reading, for libraries that read whole files and report nothing. ``report`` is called with the
    number of bytes read so far, at most the file's size: bytes that are read twice count twice until then."""

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
