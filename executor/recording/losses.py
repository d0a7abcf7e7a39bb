"""Losses of mini-batches as each rank has them, before they are summed over ranks: Arrow batches in a file of its own,
beside its trace."""

from pathlib import Path

import pyarrow as pa
import torch
from numpy.typing import ArrayLike

from executor.recording.trace import START_EPOCH, arrow_of, kept_parts
from executor.state.buffers import Now
from simgnn.policy import Metrics
from simgnn.record.batches import LOSSES_SCHEMA

FLUSH_ROWS = 4096


def loss_file(folder: Path, rank: int) -> Path:
    """Where a rank writes its losses."""
    return folder / f"rank-{rank}.losses.arrow"


class LossRecorder:
    """Notes a rank's losses in memory and writes them in batches, between turns. ``trained``: what losses were divided
    by, the training rows of all ranks."""

    def __init__(self, path: Path, rank: int, trained: int, start_epoch: int = 0) -> None:
        self.rank, self.trained = rank, trained
        self._rows: list[tuple[int, int, torch.Tensor]] = []
        self._file = path.open("wb")
        self._writer = pa.ipc.new_stream(
            self._file, LOSSES_SCHEMA.with_metadata({START_EPOCH: str(start_epoch).encode()})
        )

    def note(self, now: Now, metrics: torch.Tensor) -> None:
        """The metrics of one batch, before they are summed: their loss is copied, on the device."""
        self._rows.append((now.epoch, now.step, Metrics.loss_of(metrics)))

    def flush(self, force: bool = True) -> None:
        """Write what was noted; without ``force`` only when it is much."""
        if not self._rows or (not force and len(self._rows) < FLUSH_ROWS):
            return
        rows = self._rows[:]
        del self._rows[: len(rows)]  # what other threads note meanwhile stays
        epochs, steps, losses = zip(*rows, strict=True)
        sums = torch.cat(losses).cpu().numpy() * self.trained
        columns: tuple[ArrayLike, ...] = ([self.rank] * len(rows), list(epochs), list(steps), sums)
        arrays = [arrow_of(column, field.type) for column, field in zip(columns, LOSSES_SCHEMA, strict=True)]
        self._writer.write_batch(pa.record_batch(arrays, schema=LOSSES_SCHEMA))
        self._file.flush()

    def close(self) -> None:
        """Write the rest and end the file."""
        self.flush()
        self._writer.close()
        self._file.close()


def merge_losses(folder: Path) -> pa.Table:
    """Of all ranks; of a resumed run, epochs before the last checkpoint come from earlier parts."""
    return pa.concat_tables(kept_parts(folder, "losses", LOSSES_SCHEMA))
