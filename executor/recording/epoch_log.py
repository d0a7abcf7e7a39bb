"""What a run reports of every epoch while it trains: ``losses.csv``, and event files for TensorBoard if wanted."""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from executor.recording.disk import writing
from executor.recording.metrics import History
from executor.state.task import SPLITS


class EpochRow(NamedTuple):
    """One finished epoch, counted from 1. ``train``, ``validation``, ``test``: accuracy or micro-F1, None where the
    epoch was not evaluated. ``learning_rate``: of its steps. ``seconds``: of training and evaluations from the start of
    the run to its end, without the time between two starts of a resumed run."""

    epoch: int
    loss: float
    train: float | None
    validation: float | None
    test: float | None
    learning_rate: float
    seconds: float


class Sink(Protocol):
    """Writes rows of finished epochs somewhere."""

    def begin(self, rows: Sequence[EpochRow]) -> None:
        """Start with the ``rows`` of epochs that earlier starts of the run trained; drop all later ones."""

    def add(self, rows: Sequence[EpochRow]) -> None:
        """Append rows."""

    def close(self) -> None:
        """Finish the file."""


class LossFile:
    """``losses.csv``: a line for each epoch; empty values where it was not evaluated. ``metric``: what evaluations
    compute, a :data:`~simgnn.record.result.Metric`."""

    def __init__(self, path: Path, metric: str) -> None:
        self.path = path
        self._header = ["epoch", "loss", *(f"{split}_{metric}" for split in SPLITS), "learning_rate", "seconds"]

    def begin(self, rows: Sequence[EpochRow]) -> None:
        draft = self.path.with_name(f".{self.path.name}.tmp")
        with writing(self.path, draft):
            draft.write_text(_lines([self._header, *map(_cells, rows)]), encoding="utf-8")
            draft.replace(self.path)

    def add(self, rows: Sequence[EpochRow]) -> None:
        with writing(self.path), self.path.open("r+", encoding="utf-8") as file:  # never creates it anew
            file.seek(0, io.SEEK_END)
            file.write(_lines([_cells(row) for row in rows]))

    def close(self) -> None:
        """Nothing: the file is closed after every line."""


def _cells(row: EpochRow) -> list[str]:
    return ["" if value is None else repr(value) for value in row._replace(seconds=round(row.seconds, 6))]


def _lines(rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


class EpochLog:
    """Passes every finished epoch of ``history`` to all ``sinks`` once. ``rate_of``: learning rate by epoch from 0."""

    def __init__(self, history: History, rate_of: Callable[[int], float], sinks: Sequence[Sink]) -> None:
        self._history, self._rate_of, self._sinks = history, rate_of, sinks
        self._written = 0

    def begin(self, epochs: int) -> None:
        """Start the logs with the first ``epochs`` epochs, which earlier starts of the run trained."""
        rows = list(self._rows(range(epochs)))
        for sink in self._sinks:
            sink.begin(rows)
        self._written = epochs

    def write(self, epochs: int) -> None:
        """Write the epochs up to ``epochs`` that were not written yet. They must have been evaluated, if ever."""
        rows = list(self._rows(range(self._written, epochs)))
        for sink in self._sinks if rows else ():
            sink.add(rows)
        self._written = max(self._written, epochs)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()

    def _rows(self, epochs: range) -> Iterator[EpochRow]:
        history = self._history
        for epoch in epochs:
            found = history.accuracy_of(epoch)
            yield EpochRow(
                epoch=epoch + 1,
                loss=history.losses[epoch],
                train=None if found is None else found.train,
                validation=None if found is None else found.validation,
                test=None if found is None else found.test,
                learning_rate=self._rate_of(epoch),
                seconds=history.seconds[epoch],
            )
