"""What each mini-batch held and how long training waited for it: from a program's sizes and a trace of either backend.

Times of its ops, bytes and control bytes are in the trace; loss and accuracy in the result (specs/minibatch_common.md
C12).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simgnn.policies.communication.store import ROUTE
from simgnn.policies.minibatch import DRAW, STAGE_ROWS, TAKE_HOT, edges_of, rows_after
from simgnn.policies.staging import received
from simgnn.program.program import Program
from simgnn.program.sizes import Column, IntArray

BATCHES_SCHEMA = pa.schema(
    [
        pa.field("rank", pa.int32()),
        pa.field("epoch", pa.int32()),
        pa.field("step", pa.int32()),
        pa.field("seeds", pa.int64()),
        pa.field("rows", pa.int64()),  # input rows = local + hit + pulled
        pa.field("edges", pa.int64()),  # drawn edges of all hops
        pa.field("rows_local", pa.int64()),  # in the memory of the rank's host
        pa.field("rows_hit", pa.int64()),  # in the cache of hot rows
        pa.field("rows_pulled", pa.int64()),  # from other hosts
        pa.field("staged", pa.int32()),  # batches whose rows were there and not yet trained, when this one's turn came
        pa.field("wait_s", pa.float64()),  # from when training could go on until this batch's rows were there
    ]
)
"""``batches.parquet``: a row a batch, of ranks without one in a step too."""


def draws_batches(program: Program) -> bool:
    """Whether the program trains on mini-batches."""
    return any(op.name == DRAW for _, op in program.ops)


def batch_table(program: Program, trace: pa.Table) -> pa.Table:
    """``batches.parquet`` of the turns that ended in a ``trace`` (:data:`simgnn.record.trace.TRACE_SCHEMA`)."""
    steady = program.templates[program.calendar.steady]
    ready = TAKE_HOT if TAKE_HOT in steady.index else STAGE_ROWS
    begins = next(op.name for op in steady.ops if op.stream == "compute")
    releases = next(op.name for op in reversed(steady.ops) if op.phase == "backward")
    columns = {name: trace[name].to_numpy() for name in ("rank", "epoch", "step", "op_id", "started_s", "ended_s")}
    parts = []
    for rank in range(program.ranks):
        ended = _times(program, columns, rank, steady.ops[-1].name, "ended_s")
        turns, count = ended.turns, len(ended.turns)
        staged = _times(program, columns, rank, ready, "ended_s").seconds
        begun = _times(program, columns, rank, begins, "started_s").seconds[:count]
        released = _times(program, columns, rank, releases, "ended_s").seconds
        # the first batch of a run is waited for from its beginning
        free = np.concatenate(([0.0], ended.seconds))[:count]
        parts.append(
            {
                "rank": np.full(count, rank),
                "epoch": turns // program.calendar.steps,
                "step": turns % program.calendar.steps,
                **_sizes(program, rank, turns),
                "staged": np.searchsorted(staged, begun, "right") - np.searchsorted(released, begun, "right"),
                "wait_s": np.maximum(staged[:count] - free, 0.0),
            }
        )
    joined = {name: np.concatenate([part[name] for part in parts]) for name in BATCHES_SCHEMA.names}
    arrays = [pa.array(joined[field.name].astype(field.type.to_pandas_dtype())) for field in BATCHES_SCHEMA]
    return pa.table(arrays, schema=BATCHES_SCHEMA)


class _Times(NamedTuple):
    """An op on one rank: its turns, counted from the run's first, ascending, and a time in each."""

    turns: IntArray
    seconds: NDArray[np.float64]


def _times(program: Program, columns: Mapping[str, NDArray[Any]], rank: int, name: str, time: str) -> _Times:
    ids = [op_id for op_id, (_, op) in enumerate(program.ops) if op.name == name]
    rows = np.flatnonzero((columns["rank"] == rank) & np.isin(columns["op_id"], ids))
    turns = columns["epoch"][rows].astype(np.int64) * program.calendar.steps + columns["step"][rows]
    order = np.argsort(turns, kind="stable")
    return _Times(turns[order], columns[time][rows][order])


def _sizes(program: Program, rank: int, turns: IntArray) -> dict[str, IntArray]:
    columns = program.sizes.columns
    hops = sum(name.startswith(edges_of(0).name.rstrip("0")) for name in columns)

    def of(column: Column) -> IntArray:
        """Zeros where the program has no such column: nothing of the kind."""
        if column.name not in columns:
            return np.zeros(len(turns), np.int64)
        return np.asarray(columns[column.name][rank].reshape(-1)[turns])

    pulled = of(received(ROUTE))
    return {
        "seeds": of(rows_after(0)),
        "rows": of(rows_after(hops)),
        "edges": np.sum([of(edges_of(hop)) for hop in range(1, hops + 1)], axis=0),
        "rows_local": of(Column("rows/staged")) - pulled,
        "rows_hit": of(Column("rows/hits")),
        "rows_pulled": pulled,
    }
