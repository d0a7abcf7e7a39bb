"""Console output: results on standard output, progress and notes on standard error."""

import json
import math
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PLAIN_INTERVAL_S = 5.0
"""Least seconds between two progress lines when there is no terminal."""


def print_json(value: Any) -> None:
    """Print a JSON document on standard output; NaN and infinity become null, so that every parser reads it."""
    print(json.dumps(_finite(value), indent=2))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def note(text: str) -> None:
    """Print a line on standard error."""
    print(f"simgnn: {text}", file=sys.stderr, flush=True)


class Reporter:
    """Reports progress of long work: on a terminal as a bar with the time left, elsewhere as lines."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._bar: Progress | None = None

    def stage(self, text: str) -> None:
        """Report that a new piece of work begins."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False)
        elif not self._quiet:
            note(text)

    @contextmanager
    def counting(self, text: str, total: int, share: bool = False) -> Iterator["Counter"]:
        """Show progress towards ``total``; call ``at(done)`` of the yielded counter as often as convenient. ``share``:
        show percent, for units that mean nothing to a user."""
        if self._quiet or not self._terminal:
            yield Counter(text, total, share, None, None, self._quiet)
            return
        # loaded when the command runs: its help starts fast
        from rich import progress as rich
        from rich.console import Console

        done = rich.TaskProgressColumn() if share else rich.MofNCompleteColumn()
        columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), done, rich.TimeRemainingColumn())
        with rich.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            self._bar = bar
            try:
                yield Counter(text, total, share, bar, bar.add_task(text, total=total), False)
            finally:
                self._bar = None


class Counter:
    """Progress of one piece of work."""

    def __init__(
        self, text: str, total: int, share: bool, bar: "Progress | None", task: "TaskID | None", quiet: bool
    ) -> None:
        self._text, self._total, self._share = text, total, share
        self._bar, self._task, self._quiet = bar, task, quiet
        self._first: tuple[float, int] | None = None
        self._told = float("-inf")
        self._detail, self._ended = "", False

    def at(self, done: int, detail: str = "", total: int | None = None) -> None:
        """Report that ``done`` units are complete; ``total``: a new total."""
        self._total = self._total if total is None else total
        between = ": " if self._share and detail else " "
        if self._bar is not None and self._task is not None:
            description = f"{self._text}{between}{detail}".strip()
            self._bar.update(self._task, completed=done, total=self._total, description=description)
            return
        now = time.monotonic()
        if self._first is None:
            self._first = (now, done)  # what came before was start-up, which says nothing of the speed
        changed, self._detail = self._share and bool(detail) and detail != self._detail, detail
        ended, self._ended = done >= self._total and not self._ended, done >= self._total
        if self._quiet or not (ended or changed or (now - self._told >= PLAIN_INTERVAL_S and done < self._total)):
            return
        self._told = now
        began, from_here = self._first
        eta = ""
        if from_here < done < self._total:
            eta = f", {(now - began) / (done - from_here) * (self._total - done):.0f} s left"
        reached = f"{100 * done // max(self._total, 1)} %" if self._share else f"{done}/{self._total}"
        note(f"{self._text}: {reached}{eta}{between if detail else ''}{detail}")
