"""What policies decide while a run goes on: each rank appends Arrow batches to its own file, beside its trace."""

from pathlib import Path

import pyarrow as pa

from executor.recording.trace import START_EPOCH, kept_parts
from executor.state.buffers import Now
from simgnn.record.activity import ACTIVITY_SCHEMA, columns_of

FLUSH_ROWS = 65_536


def activity_file(folder: Path, rank: int) -> Path:
    """Where a rank writes its decisions."""
    return folder / f"rank-{rank}.activity.arrow"


class ActivityRecorder:
    """Notes a rank's decisions in memory and writes them in batches, between turns."""

    def __init__(self, path: Path, rank: int, start_epoch: int = 0) -> None:
        self.rank = rank
        self._rows: list[tuple[int, int, str, int, int]] = []
        self._file = path.open("wb")
        schema = ACTIVITY_SCHEMA.with_metadata({START_EPOCH: str(start_epoch).encode()})
        self._writer = pa.ipc.new_stream(self._file, schema)
        self._schema = schema

    def note(self, now: Now, decision: str, peer: int, value: int) -> None:
        """One decision. Called by every stream's thread: one append, nothing else."""
        self._rows.append((now.epoch, now.step, decision, peer, value))

    def flush(self, force: bool = True) -> None:
        """Write what was noted; without ``force`` only when it is much."""
        if not self._rows or (not force and len(self._rows) < FLUSH_ROWS):
            return
        rows = self._rows[:]
        del self._rows[: len(rows)]  # what other threads note meanwhile stays
        epochs, steps, decisions, peers, values = zip(*rows, strict=True)
        point, phase, name = columns_of(decisions)
        columns = [epochs, steps, point, phase, [self.rank] * len(rows), peers, name, values]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        self._writer.write_batch(pa.record_batch(arrays, schema=self._schema))
        self._file.flush()

    def close(self) -> None:
        """Write the rest and end the file."""
        self.flush()
        self._writer.close()
        self._file.close()


def merge_activity(folder: Path) -> pa.Table:
    """One table of all ranks, sorted; of a resumed run, epochs before the last checkpoint come from earlier parts."""
    keys = [(name, "ascending") for name in ("epoch", "step", "point", "phase", "name", "rank", "peer")]
    return pa.concat_tables(kept_parts(folder, "activity", ACTIVITY_SCHEMA)).sort_by(keys)
