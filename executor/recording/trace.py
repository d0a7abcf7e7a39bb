"""The trace while a run goes on: each rank appends Arrow batches to its own file, so that a killed rank keeps its."""

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import ArrayLike

from executor.state.buffers import Now
from executor.state.context import Sent
from simgnn.record.rundir import TRACE_SCHEMA

FLUSH_ROWS = 4096
FLUSH_S = 5.0
START_EPOCH = b"start_epoch"


class Recorder:
    """Notes finished ops in memory and writes them in batches, between turns.

    Times are seconds of this rank's monotonic clock, or CUDA events; in the file they count from ``zero``, the moment
    (of this rank's clock) when the first training turn began.
    """

    def __init__(self, path: Path, rank: int, device: torch.device, start_epoch: int = 0) -> None:
        self.rank = rank
        self.device = device
        self.zero = 0.0
        self._rows: list[tuple[int, int, int, Any, Any, Sent]] = []
        self._written_s = time.perf_counter()
        self._base: tuple[Any, float] | None = None
        schema = TRACE_SCHEMA.with_metadata({START_EPOCH: str(start_epoch).encode()})
        self._file = path.open("wb")
        self._writer = pa.ipc.new_stream(self._file, schema)
        self._schema = schema

    def start(self, zero: float) -> None:
        """The first training turn begins at ``zero`` of this rank's clock."""
        self.zero = zero
        self._rebase()

    def add(self, now: Now, op_id: int, issued: Any, ended: Any, sent: Sent) -> None:
        """Note one op. Called by every stream's thread: one append, nothing else."""
        self._rows.append((now.epoch, now.step, op_id, issued, ended, sent))

    def flush(self, force: bool = True) -> None:
        """Write what was noted; without ``force`` only when it is much, or old."""
        if not force and len(self._rows) < FLUSH_ROWS and time.perf_counter() - self._written_s < FLUSH_S:
            return
        rows = self._rows[:]
        del self._rows[: len(rows)]  # what other threads note meanwhile stays
        if rows:
            epochs, steps, op_ids, issued, ended, sent = zip(*rows, strict=True)
            begins, ends = self._seconds(issued), self._seconds(ended)
            counted = [list(column) for column in zip(*sent, strict=True)]
            columns = [[self.rank] * len(rows), epochs, steps, op_ids, begins, begins, ends, *counted]
            arrays = [arrow_of(values, field.type) for values, field in zip(columns, self._schema, strict=True)]
            self._writer.write_batch(pa.record_batch(arrays, schema=self._schema))
            self._file.flush()
            self._rebase()
        self._written_s = time.perf_counter()

    def close(self) -> None:
        """Write the rest and end the file."""
        self.flush()
        self._writer.close()
        self._file.close()

    def _rebase(self) -> None:
        """Tie device events to the host's clock anew: distances of events are float32 and lose digits in a long run."""
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
    """Write one op, thrown away: Arrow takes 4 MiB of its own at the first batch, which comes whenever it is due."""
    columns = [arrow_of([0], field.type) for field in TRACE_SCHEMA]
    with pa.ipc.new_stream(pa.BufferOutputStream(), TRACE_SCHEMA) as writer:
        writer.write_batch(pa.record_batch(columns, schema=TRACE_SCHEMA))


def arrow_of(values: ArrayLike, kind: pa.DataType) -> pa.Array:
    """A column; pa.array() would import pandas, in the middle of a run."""
    column = np.asarray(values, dtype=kind.to_pandas_dtype())
    return pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(column)])


def put_aside(path: Path) -> None:
    """Keep what an earlier start of this run wrote: ``rank-0.arrow`` becomes ``rank-0.part-K.arrow``."""
    if path.is_file():
        earlier = list(path.parent.glob(f"{path.stem}.part-*.arrow"))
        path.rename(path.with_name(f"{path.stem}.part-{len(earlier)}.arrow"))


def read_part(path: Path, schema: pa.Schema = TRACE_SCHEMA) -> tuple[pa.Table, int]:
    """The whole batches of a rank's file, also of a rank that was killed, and the epoch that it began with."""
    batches = []
    try:
        with pa.OSFile(str(path), "rb") as source:
            reader = pa.ipc.open_stream(source)
            while True:
                batches.append(reader.read_next_batch())
    except StopIteration:
        pass
    except (pa.ArrowInvalid, OSError):
        if not batches:
            return schema.empty_table(), 0
    if not batches:
        return schema.empty_table(), 0
    start = int((batches[0].schema.metadata or {}).get(START_EPOCH, b"0"))
    return pa.Table.from_batches(batches).replace_schema_metadata(None), start


def kept_parts(folder: Path, name: str, schema: pa.Schema) -> list[pa.Table]:
    """What ranks wrote to ``rank-R.NAME.arrow`` and, before a run was resumed, to parts of it: of each epoch that which
    the last start wrote that trained it."""
    pattern = re.compile(rf"rank-(\d+)\.{name}(?:\.part-(\d+))?\.arrow")
    parts: dict[int, dict[int, tuple[pa.Table, int]]] = {}
    for path in sorted(folder.glob(f"rank-*.{name}*.arrow")):
        match = pattern.fullmatch(path.name)
        if match:
            # the part of the latest start has no number: it comes after all that have one
            order = int(match[2]) if match[2] else 1 << 30
            parts.setdefault(int(match[1]), {})[order] = read_part(path, schema)
    kept = [schema.empty_table()]
    for found in parts.values():
        until = 1 << 30
        for order in sorted(found, reverse=True):
            table, start = found[order]
            kept.append(table.filter(pa.array(np.asarray(table["epoch"].to_numpy() < until))))
            # a start that broke off before it wrote anything takes no epoch from the ones before
            until = min(until, start) if len(table) else until
    return kept
