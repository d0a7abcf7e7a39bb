"""Files to which a rank appends Arrow batches during a run, so that a killed rank leaves its rows: the trace, and the
base class of :mod:`executor.recording.side_records`."""

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import ArrayLike

from executor.recording.disk import writing
from executor.state.buffers import Now
from executor.state.context import Sent
from simgnn.record.rundir import TRACE_SCHEMA

FLUSH_ROWS = 4096
FLUSH_S = 5.0
START_EPOCH = b"start_epoch"
LATEST = 1 << 30
"""Number of the latest start of a run, whose files have no number: larger than that of any earlier start."""


class RowFile:
    """Rows that the threads of a rank note in memory, and that the rank writes in batches, between steps.

    Noting a row must cost one append and nothing else, since threads note rows in the middle of an epoch.
    """

    def __init__(self, path: Path, schema: pa.Schema, start_epoch: int) -> None:
        self._rows: list[tuple[Any, ...]] = []
        self._schema = schema.with_metadata({START_EPOCH: str(start_epoch).encode()})
        self._path = path
        with writing(path):
            self._file = path.open("wb")
            self._writer = pa.ipc.new_stream(self._file, self._schema)

    def columns(self, rows: Sequence[tuple[Any, ...]]) -> Sequence[ArrayLike]:
        """Return the values of some noted rows, by column of the schema."""
        raise NotImplementedError

    def write(self) -> bool:
        """Write the noted rows; return whether there were any."""
        rows = self._rows[:]
        del self._rows[: len(rows)]  # rows that other threads note meanwhile stay
        if rows:
            columns = zip(self.columns(rows), self._schema, strict=True)
            arrays = [arrow_of(values, field.type) for values, field in columns]
            batch = pa.record_batch(arrays, schema=self._schema)
            with writing(self._path):
                self._writer.write_batch(batch)
                self._file.flush()
        return bool(rows)

    def close(self) -> None:
        self.write()
        with writing(self._path):
            self._writer.close()
            self._file.close()


class Recorder(RowFile):
    """The trace of a rank: its finished ops.

    Times are seconds of this rank's monotonic clock, or CUDA events; in the file they count from ``zero``, the moment
    (of this rank's clock) when the first training step began.
    """

    def __init__(self, path: Path, rank: int, device: torch.device, start_epoch: int = 0) -> None:
        super().__init__(path, TRACE_SCHEMA, start_epoch)
        self.rank = rank
        self.device = device
        self.zero = 0.0
        self._written_s = time.perf_counter()
        self._base: tuple[Any, float] | None = None

    def start(self, zero: float) -> None:
        """Set ``zero``, the moment on this rank's clock when the first training step begins."""
        self.zero = zero
        self._rebase()

    def add(self, now: Now, op_id: int, issued: Any, ended: Any, sent: Sent, started: Any = None) -> None:
        self._rows.append((now.epoch, now.step, op_id, issued, ended, sent, issued if started is None else started))

    def flush(self, force: bool = True) -> None:
        """Write the noted rows; without ``force`` only when they are many, or old."""
        if not force and len(self._rows) < FLUSH_ROWS and time.perf_counter() - self._written_s < FLUSH_S:
            return
        if self.write():
            self._rebase()
        self._written_s = time.perf_counter()

    def columns(self, rows: Sequence[tuple[Any, ...]]) -> Sequence[ArrayLike]:
        """Return the values by column. Of an op of a process group, :mod:`executor.recording.report` corrects the
        start."""
        epochs, steps, op_ids, issued, ended, sent, started = zip(*rows, strict=True)
        begins, ends = self._seconds(issued), self._seconds(ended)
        starts = begins if started == issued else self._seconds(started)
        counted = [list(column) for column in zip(*sent, strict=True)]
        return [[self.rank] * len(rows), epochs, steps, op_ids, begins, starts, ends, *counted]

    def _rebase(self) -> None:
        """Pair a new CUDA event with the host's clock, since times between distant events lose digits (float32)."""
        if self.device.type != "cuda":
            return
        torch.cuda.synchronize(self.device)
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        event.synchronize()
        self._base = (event, time.perf_counter())

    def _seconds(self, marks: Sequence[Any]) -> list[float]:
        if self._base is None:
            return [mark - self.zero for mark in marks]
        torch.cuda.synchronize(self.device)
        event, host = self._base
        return [host + event.elapsed_time(mark) * 1e-3 - self.zero for mark in marks]


def warm_up_writer() -> None:
    """Write one op into memory and drop it, since Arrow allocates 4 MiB at the first batch, whenever that comes."""
    columns = [arrow_of([0], field.type) for field in TRACE_SCHEMA]
    with pa.ipc.new_stream(pa.BufferOutputStream(), TRACE_SCHEMA) as writer:
        writer.write_batch(pa.record_batch(columns, schema=TRACE_SCHEMA))


def arrow_of(values: ArrayLike, kind: pa.DataType) -> pa.Array:
    """Build an Arrow column of numbers or text, without pa.array(): it would import pandas (10 MB that stay, and half a
    second of a core) in the middle of a run."""
    if pa.types.is_string(kind):
        parts = [str(value).encode() for value in np.asarray(values, dtype=object)]
        ends = np.cumsum([0, *map(len, parts)], dtype=np.int32)
        return pa.StringArray.from_buffers(len(parts), pa.py_buffer(ends), pa.py_buffer(b"".join(parts)))
    column = np.asarray(values, dtype=kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(column)])


def put_aside(path: Path) -> None:
    """Rename the file of an earlier start of this run, to keep it: ``rank-0.arrow`` to ``rank-0.part-K.arrow``."""
    if path.is_file():
        earlier = list(path.parent.glob(f"{path.stem}.part-*.arrow"))
        path.rename(path.with_name(f"{path.stem}.part-{len(earlier)}.arrow"))


def read_part(path: Path, schema: pa.Schema = TRACE_SCHEMA) -> tuple[pa.Table, int]:
    """Read the complete batches of a rank's file, also of a killed rank, and the epoch with which the file begins."""
    batches = []
    try:
        with pa.OSFile(str(path), "rb") as source:
            for batch in pa.ipc.open_stream(source):
                batches.append(batch)
    except (pa.ArrowInvalid, OSError):  # cut off in the middle of a batch
        pass
    if not batches:
        return schema.empty_table(), 0
    start = int((batches[0].schema.metadata or {}).get(START_EPOCH, b"0"))
    return pa.Table.from_batches(batches).replace_schema_metadata(None), start


def read_parts(folder: Path, kind: str, schema: pa.Schema) -> list[tuple[int, int, pa.Table, int]]:
    """Return (rank, number of the start, its rows, its first epoch) of all files ``rank-R.KIND.arrow`` of a run, also
    of the parts from before it was resumed. An empty ``kind`` selects traces, ``rank-R.arrow``."""
    pattern = re.compile(rf"rank-(\d+)\.?{kind}(?:\.part-(\d+))?\.arrow")
    matches = ((pattern.fullmatch(path.name), path) for path in sorted(folder.glob("rank-*.arrow")))
    return [
        (int(match[1]), int(match[2]) if match[2] else LATEST, *read_part(path, schema))
        for match, path in matches
        if match
    ]
