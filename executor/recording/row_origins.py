"""Whence a rank took the rows of its mini-batches, as it moves them: Arrow batches in a file of its own, beside its
trace."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from executor.recording.trace import START_EPOCH, arrow_of, kept_parts
from simgnn.record.batches import TAKEN_SCHEMA

FLUSH_ROWS = 65_536


def taken_file(folder: Path, rank: int) -> Path:
    """Where a rank writes what it counted."""
    return folder / f"rank-{rank}.taken.arrow"


class TakenRecorder:
    """Notes a rank's counts in memory and writes them in batches, between turns. ``places``: names of all places that
    it counts at, :func:`simgnn.record.batches.places_of`."""

    def __init__(self, path: Path, rank: int, places: Sequence[str], start_epoch: int = 0) -> None:
        self.rank = rank
        self._number = {place: number for number, place in enumerate(places)}
        self._rows: list[tuple[int, int, str, int, int]] = []
        self._file = path.open("wb")
        schema = TAKEN_SCHEMA.with_metadata({START_EPOCH: str(start_epoch).encode()})
        self._writer = pa.ipc.new_stream(self._file, schema)

    def note(self, epoch: int, step: int, place: str, peer: int, rows: int) -> None:
        """One count. Called by every stream's thread: one append, nothing else."""
        self._rows.append((epoch, step, place, peer, rows))

    def flush(self, force: bool = True) -> None:
        """Write what was noted; without ``force`` only when it is much."""
        if not self._rows or (not force and len(self._rows) < FLUSH_ROWS):
            return
        rows = self._rows[:]
        del self._rows[: len(rows)]  # what other threads note meanwhile stays
        epochs, steps, places, peers, counts = zip(*rows, strict=True)
        columns = [[self.rank] * len(rows), epochs, steps, [self._number[place] for place in places], peers, counts]
        arrays = [arrow_of(column, field.type) for column, field in zip(columns, TAKEN_SCHEMA, strict=True)]
        self._writer.write_batch(pa.record_batch(arrays, schema=TAKEN_SCHEMA))
        self._file.flush()

    def close(self) -> None:
        """Write the rest and end the file."""
        self.flush()
        self._writer.close()
        self._file.close()


def merge_taken(folder: Path) -> pa.Table:
    """Of all ranks; of a resumed run, epochs before the last checkpoint come from earlier parts."""
    return pa.concat_tables(kept_parts(folder, "taken", TAKEN_SCHEMA))
