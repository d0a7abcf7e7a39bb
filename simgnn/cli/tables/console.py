"""Console output: results on standard output, progress and notes on standard error."""

import json
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from simgnn.cli.tables.elapsed import shown_elapsed
from simgnn.progress import Counter, Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


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


class Reporter(Progress):
    """Reports progress of long work on standard error: on a terminal as a bar with the time left, elsewhere as
    lines."""

    def __init__(self, quiet: bool = False) -> None:
        super().__init__(None if quiet else note)
        self._shows_bars = not quiet and sys.stderr.isatty()
        self._bar: Bar | None = None

    def stage(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, highlight=False)
        else:
            super().stage(text)

    @contextmanager
    def waiting(self, text: str, expected_s: float | None = None) -> Iterator[None]:
        shown = shown_elapsed(text, expected_s) if self._shows_bars else super().waiting(text, expected_s)
        with shown:
            yield

    @contextmanager
    def counting(self, text: str, total: int, share: bool = False, patient: bool = False) -> Iterator[Counter]:
        if not self._shows_bars:
            with super().counting(text, total, share, patient) as lines:
                yield lines
            return
        # loaded when the command runs: its help starts fast
        from rich import progress as rich
        from rich.console import Console

        done = rich.TaskProgressColumn() if share else rich.MofNCompleteColumn()
        columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), done, rich.TimeRemainingColumn())
        with rich.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            self._bar = bar
            try:
                yield _BarCounter(text, total, share, bar, bar.add_task(text, total=total))
            finally:
                self._bar = None


class _BarCounter(Counter):
    """Progress of one piece of work as a bar."""

    def __init__(self, text: str, total: int, share: bool, bar: "Bar", task: "TaskID") -> None:
        super().__init__(text, total, share)
        self._bar, self._task = bar, task

    def at(self, done: int, detail: str = "", total: int | None = None) -> None:
        self._total = self._total if total is None else total
        description = f"{self._text}{self._between if detail else ' '}{detail}".strip()
        self._bar.update(self._task, completed=done, total=self._total, description=description)
