"""What each mini-batch held and how long training waited for it: from a program's sizes and a trace of either backend.

Where its rows came from is what the program plans; in a run, what the ranks counted (:mod:`simgnn.record.row_origins`).
Other counters are elsewhere: times, bytes and control bytes of a batch's ops in the trace, by rank, epoch, step and op;
payload by rank pair and op in ``traffic.parquet``; rows of caches, and bytes of every pair in every step, in the
program's size table (``plan/``).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simgnn.emit.batches.drawing import asked
from simgnn.emit.batches.names import STAGE_ROWS, TAKE_HOT, edges_of, rows_after
from simgnn.errors import ConfigError
from simgnn.policies.communication.store import ROUTE
from simgnn.policies.placement.store import CACHE_ROUTE, FIRST_ROUTE
from simgnn.program.kinds import OpKind
from simgnn.program.program import Program
from simgnn.program.sizes import Column, IntArray
from simgnn.record.result import InputRows
from simgnn.record.row_origins import CACHED, HIT, LOCAL, PULLED, TakenRows

COUNTS = pa.list_(pa.int64())
BATCHES_SCHEMA = pa.schema(
    [
        pa.field("rank", pa.int32()),
        pa.field("epoch", pa.int32()),
        pa.field("step", pa.int32()),
        pa.field("seeds", pa.int64()),
        pa.field("rows", pa.int64()),  # input rows = local + hit + pulled
        pa.field("edges", pa.int64()),  # drawn edges of all hops
        # the next ones, of a run, are null where a rank was lost before it told
        pa.field("rows_local", pa.int64()),  # in the memory of the rank's host
        pa.field("rows_hit", pa.int64()),  # in the cache of hot rows
        pa.field("rows_pulled", pa.int64()),  # from other hosts
        pa.field("rows_cached", pa.int64()),  # from other hosts into the cache of hot rows, while this batch was staged
        pa.field("rows_by_hop", COUNTS),  # after each hop; the first are the seeds, the last the input rows
        pa.field("edges_by_hop", COUNTS),
        pa.field("pulled_from", COUNTS),  # rows that each rank sent for it, [P]
        pa.field("asked", pa.list_(COUNTS)),  # vertices that each rank was to draw for, [hops][P]; [] where none is
        pa.field("staged", pa.int32()),  # batches whose rows were there and not yet trained, when this one's turn came
        # from when training could go on (evaluations and checkpoints are over) until this batch's rows were there
        pa.field("wait_s", pa.float64()),
        pa.field("loss_sum", pa.float64()),  # of the batch's seeds, before the step; null in a prediction
    ]
)
"""``batches.parquet``: a row a batch, of ranks without one in a step too."""
LOSSES_SCHEMA = pa.schema([BATCHES_SCHEMA.field(name) for name in ("rank", "epoch", "step", "loss_sum")])
"""Losses that ranks wrote down while they trained."""
COUNTED = ("rows_local", "rows_hit", "rows_pulled", "rows_cached", "pulled_from", "asked")
"""Columns that ranks of a run count."""
KEYS = ("rank", "epoch", "step")
HELD = tuple(name for name in BATCHES_SCHEMA.names if name not in (*KEYS, "staged", "wait_s", "loss_sum"))
"""Columns in which a prediction and its run agree to the last row: what a batch held, and where it came from."""


def draws_batches(program: Program) -> bool:
    """Whether the program trains on mini-batches."""
    return any(op.kind is OpKind.SAMPLE for _, op in program.ops)


def batch_table(
    program: Program, trace: pa.Table, losses: pa.Table | None = None, taken: pa.Table | None = None
) -> pa.Table:
    """``batches.parquet`` of the turns that ended in a ``trace`` (:data:`simgnn.record.trace.TRACE_SCHEMA`).

    Of a run, in any order: ``losses`` (:data:`LOSSES_SCHEMA`), and ``taken``, what its ranks counted
    (:data:`simgnn.record.row_origins.TAKEN_SCHEMA`); without it all sizes are the program's.
    """
    steady = program.templates[program.calendar.steady]
    ready = TAKE_HOT if TAKE_HOT in steady.index else STAGE_ROWS
    first = next(op for op in steady.ops if op.layer)
    releases = next(op.name for op in reversed(steady.ops) if op.phase == "backward")
    names = ("rank", "epoch", "step", "op_id", "issued_s", "started_s", "ended_s")
    # what training a batch ends with: ops that run beside the next one may come after it
    trained = next((d.op for d in first.after if d.steps_back == 1), steady.ops[-1].name)
    columns = {name: trace[name].to_numpy() for name in names}
    told = (LOSSES_SCHEMA.empty_table() if losses is None else losses).to_pydict()
    parts = []
    for rank in range(program.ranks):
        ended = _times(program, columns, rank, trained, "ended_s")
        turns, count = ended.turns, len(ended.turns)
        staged = _times(program, columns, rank, ready, "ended_s").seconds
        begun = _times(program, columns, rank, first.name, "started_s").seconds[:count]
        released = _times(program, columns, rank, releases, "ended_s").seconds
        # the first batch of a run is waited for from its beginning
        free = np.maximum(np.concatenate(([0.0], ended.seconds))[:count], _resumed(program, columns, rank, turns))
        counted = None if taken is None else TakenRows.of(program, taken, rank, turns)
        parts.append(
            {
                "rank": np.full(count, rank),
                "epoch": turns // program.calendar.steps,
                "step": turns % program.calendar.steps,
                **_sizes(program, rank, turns),
                **({} if counted is None else _counted(program, counted)),
                "untold": np.zeros(count, np.bool_) if counted is None else ~counted.told,
                "staged": np.searchsorted(staged, begun, "right") - np.searchsorted(released, begun, "right"),
                "wait_s": np.maximum(staged[:count] - free, 0.0),
                "loss_sum": _losses(program, told, rank, turns),
            }
        )
    joined = {name: np.concatenate([part[name] for part in parts]) for name in (*BATCHES_SCHEMA.names, "untold")}
    none = np.zeros_like(joined["untold"])
    arrays = [
        _array(joined[field.name], field.type, joined["untold"] if field.name in COUNTED else none)
        for field in BATCHES_SCHEMA
    ]
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


def _resumed(program: Program, columns: Mapping[str, NDArray[Any]], rank: int, turns: IntArray) -> NDArray[np.float64]:
    """When a rank went on with its training turns after a pause in which it ran none of their ops, an evaluation or a
    checkpoint: seconds [turns], 0 where there was none before a turn."""
    rows = np.flatnonzero((columns["rank"] == rank) & (columns["step"] >= 0))
    of = columns["epoch"][rows].astype(np.int64) * program.calendar.steps + columns["step"][rows]
    place = np.searchsorted(turns, of)
    inside = place < len(turns)  # ops of turns that were begun but not ended
    begun, ended = np.full(len(turns) + 1, np.inf), np.full(len(turns) + 1, -np.inf)
    np.minimum.at(begun, place, columns["issued_s"][rows])
    np.maximum.at(ended, place[inside], columns["ended_s"][rows][inside])
    begun = np.minimum.accumulate(begun[::-1])[::-1][: len(turns)]  # of this turn or any later one
    before = np.concatenate(([np.inf], np.maximum.accumulate(ended[: len(turns)])))[: len(turns)]
    return np.where(begun > before, begun, 0.0)


def _sizes(program: Program, rank: int, turns: IntArray) -> dict[str, IntArray]:
    columns, hops = program.sizes.columns, _hops(program)

    def of(column: Column) -> IntArray:
        """Zeros where the program has no such column: nothing of the kind."""
        if column.name not in columns:
            return np.zeros(len(turns), np.int64)
        return np.asarray(columns[column.name][rank].reshape(-1)[turns])

    pulled, cached = (_arriving(program, route, rank, turns) for route in (ROUTE, CACHE_ROUTE))
    first = program.sizes.routes.get(FIRST_ROUTE)
    if first is not None:  # no route by turn: it is gone along once, before the first
        cached[turns == 0] += first.matrix(program.ranks)[:, rank]
    rows = np.stack([of(rows_after(hop)) for hop in range(hops + 1)], axis=1)
    edges = np.stack([of(edges_of(hop)) for hop in range(1, hops + 1)], axis=1)
    return {
        "seeds": rows[:, 0],
        "rows": rows[:, -1],
        "edges": edges.sum(axis=1),
        "rows_local": of(Column("rows/staged")) - pulled.sum(axis=1),
        "rows_hit": of(Column("rows/hits")),
        "rows_pulled": pulled.sum(axis=1),
        "rows_cached": cached.sum(axis=1),
        "rows_by_hop": rows,
        "edges_by_hop": edges,
        "pulled_from": pulled,
        "asked": _by_hop(program, lambda route: _arriving(program, route, rank, turns), len(turns)),
    }


def _counted(program: Program, taken: TakenRows) -> dict[str, IntArray]:
    """The sizes that ranks of a run counted."""
    return {
        "rows_local": taken.moved(LOCAL),
        "rows_hit": taken.moved(HIT),
        "rows_pulled": taken.moved(PULLED),
        "rows_cached": taken.moved(CACHED),
        "pulled_from": taken.arrived(ROUTE),
        "asked": _by_hop(program, taken.arrived, taken.turns),
    }


def _by_hop(program: Program, arriving: Callable[[str], IntArray], turns: int) -> IntArray:
    """Requests that each rank answers, int64 [turns, hops, P]; no hop where none is asked for."""
    hops = _hops(program) if asked(1) in program.sizes.routes else 0
    parts = [arriving(asked(hop)) for hop in range(1, hops + 1)]
    return np.stack(parts, axis=1) if parts else np.zeros((turns, 0, program.ranks), np.int64)


def _hops(program: Program) -> int:
    hops = 0
    while edges_of(hops + 1).name in program.sizes.columns:
        hops += 1
    return hops


def _arriving(program: Program, route: str, rank: int, turns: IntArray) -> IntArray:
    """Rows that come to a rank along a route, from each rank in each turn, int64 [turns, P]."""
    found = np.zeros((len(turns), program.ranks), np.int64)
    there = program.sizes.routes.get(route)
    if there is not None:
        pairs = np.flatnonzero(there.target == rank)
        steps = program.calendar.steps
        found[:, there.source[pairs]] = there.rows[pairs][:, turns // steps, turns % steps].T
    return found


def _losses(program: Program, told: Mapping[str, list[Any]], rank: int, turns: IntArray) -> NDArray[np.float64]:
    """The losses of a rank's turns; NaN where none was recorded."""
    steps = program.calendar.steps
    rows = zip(*(told[name] for name in LOSSES_SCHEMA.names), strict=True)
    known = {epoch * steps + step: loss for of, epoch, step, loss in rows if of == rank}
    return np.array([known.get(turn, np.nan) for turn in turns.tolist()], np.float64)


def _array(values: NDArray[Any], kind: pa.DataType, untold: NDArray[np.bool_]) -> pa.Array:
    """A column of numbers, or of lists, nested as deep as ``values`` has axes; null for what is no number or
    ``untold``, [rows]."""
    if not pa.types.is_list(kind):
        return pa.array(values.astype(kind.to_pandas_dtype()), mask=untold | np.isnan(values.astype(np.float64)))
    column = pa.array(values.reshape(-1))
    for axis in range(values.ndim - 1, 0, -1):
        lists = np.prod(values.shape[:axis], dtype=np.int64)
        ends = pa.array(np.arange(lists + 1, dtype=np.int32) * values.shape[axis])
        column = pa.ListArray.from_arrays(ends, column, mask=pa.array(untold) if axis == 1 else None)
    return column


def batches_that_differ(first: pa.Table, second: pa.Table) -> int:
    """Number of batches that differ between two tables in the rows that they held or in where these came from.

    A batch that one table lacks differs, and so does one with a missing count. Raises :class:`ConfigError` for tables
    with other columns.
    """
    one, two = (_held(table) for table in (first, second))
    both = one.keys() & two.keys()
    return len(one.keys() ^ two.keys()) + sum(None in one[key] or one[key] != two[key] for key in both)


def _held(table: pa.Table) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """What each batch held, by rank, epoch and step."""
    if table.schema.names != BATCHES_SCHEMA.names:
        raise ConfigError(
            f"batches.parquet: got the columns {', '.join(table.schema.names)}, expected "
            f"{', '.join(BATCHES_SCHEMA.names)}: it was written by another version; simulate or run again"
        )
    keys, counts = (zip(*(table[name].to_pylist() for name in names), strict=True) for names in (KEYS, HELD))
    return dict(zip(keys, counts, strict=True))


def input_rows(table: pa.Table) -> InputRows | None:
    """Sums over all batches of a table (:data:`BATCHES_SCHEMA`); None where a count is missing."""
    names = {"local": "rows_local", "hit": "rows_hit", "pulled": "rows_pulled", "cached": "rows_cached"}
    if any(table[name].null_count for name in names.values()):
        return None
    return InputRows(**{field: int(table[name].to_numpy().sum()) for field, name in names.items()})
