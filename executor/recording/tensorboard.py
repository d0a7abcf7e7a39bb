"""Event files for TensorBoard. Imported only where a run writes them, since its package is an extra."""

import socket
import time
from collections.abc import Sequence
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import RecordWriter

from executor.recording.disk import writing
from executor.recording.epoch_log import EpochRow
from executor.state.task import SPLITS

FORMAT = "brain.Event:2"
"""Version of event files that TensorBoard reads."""


class EventFile:
    """One event file in ``folder``: scalars of each epoch, the step being the epoch counted from 1.

    A resumed run writes the epochs of its earlier starts again, into a new file, so that none appears twice. Times of
    events have the distances of :attr:`EpochRow.seconds`. ``metric``: what evaluations compute.
    """

    def __init__(self, folder: Path, metric: str) -> None:
        self._folder, self._metric = folder, metric
        self._zero_s = 0.0
        self._writer: RecordWriter | None = None

    def begin(self, rows: Sequence[EpochRow]) -> None:
        self._zero_s = time.time() - (rows[-1].seconds if rows else 0.0)
        path = self._folder / f"events.out.tfevents.{time.time_ns() // 10**6}.{socket.gethostname()}"
        with writing(path):
            self._folder.mkdir(exist_ok=True)
            for earlier in self._folder.glob("events.out.tfevents.*"):
                earlier.unlink()
            self._writer = RecordWriter(str(path))
            self._writer.write(Event(wall_time=self._zero_s, file_version=FORMAT).SerializeToString())
        self.add(rows)

    def add(self, rows: Sequence[EpochRow]) -> None:
        assert self._writer is not None
        with writing(self._folder):
            for row in rows:
                self._writer.write(self._event(row).SerializeToString())
            self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            with writing(self._folder):
                self._writer.close()

    def _event(self, row: EpochRow) -> Event:
        scalars = {
            "loss/train": row.loss,
            **{f"{self._metric}/{split}": getattr(row, split) for split in SPLITS},
            "learning_rate": row.learning_rate,
        }
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items() if value is not None]
        return Event(wall_time=self._zero_s + row.seconds, step=row.epoch, summary=Summary(value=values))
