"""``batches.parquet``: content of each mini-batch, the sources of its rows, and how long training waited for it.

Both backends write it from a program's sizes and a trace. In a prediction all sizes come from the program. In a run
each rank counts the rows that it moves into a batch or a cache, where it writes them; it never copies these numbers
from the program. For a route whose rows differ from step to step, it records the number of rows by sender:

- where the rank requests ids (rows of ``distdgl``, requests to draw): the number of ids that it requested;
- where rows come without a request (scheduled rows, fills of a cache, neighbours that answer requests): the program's
  size for the pair of ranks, with which the rank posts the receive. The run fails if a sender has more or fewer rows.

Times and bytes of the ops of a batch are in the trace, payload by rank pair in ``traffic.parquet``, and the planned
bytes of every pair in every step in the program's size table (``plan/``).
"""

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simgnn.emit.batches.drawing import asked
from simgnn.emit.batches.names import SEED_ROWS, STAGE_ROWS, TAKE_HOT, edges_of, rows_after
from simgnn.errors import ConfigError
from simgnn.policies.communication.store import ROUTE
from simgnn.policies.placement.store import CACHE_ROUTE, FIRST_ROUTE
from simgnn.program.kinds import OpKind
from simgnn.program.program import Program
from simgnn.program.sizes import Column, IntArray
from simgnn.record.result import InputRows
from simgnn.record.rundir import FLOAT, INT32, INT64

Floats = NDArray[np.float64]
LOCAL, HIT, PULLED, CACHED = "local", "hit", "pulled", "cached"
"""Counters of rows by source: moved into a batch from host memory, from the cache of hot rows, or from what other hosts
sent; and moved into the cache from what other hosts sent."""
NOBODY = -1
"""Value of ``peer`` for rows that no other rank sent."""
TAKEN_SCHEMA = pa.schema(
    [
        ("rank", INT32),
        ("epoch", INT32),
        ("step", INT32),
        ("place", INT32),  # which of places_of(program)
        ("peer", INT32),  # who sent what arrived along a route
        ("rows", INT64),
    ]
)
"""Columns of the row counts that ranks write while they train."""
COUNTS = pa.list_(INT64)
BATCHES_SCHEMA = pa.schema(
    [
        ("rank", INT32),
        ("epoch", INT32),
        ("step", INT32),
        ("seeds", INT64),
        ("rows", INT64),  # input rows = local + hit + pulled
        ("edges", INT64),  # drawn edges of all hops
        # in a run the next columns are null where a rank was lost before it recorded them
        ("rows_local", INT64),  # in the memory of the rank's host
        ("rows_hit", INT64),  # in the cache of hot rows
        ("rows_pulled", INT64),  # from other hosts
        ("rows_cached", INT64),  # from other hosts into the cache of hot rows, while this batch was staged
        (
            "rows_by_hop",
            COUNTS,
        ),  # after each hop; the last are the input rows
        ("edges_by_hop", COUNTS),
        ("pulled_from", COUNTS),  # rows that each rank sent for it, [P]
        ("asked", pa.list_(COUNTS)),  # vertices that each rank was to draw for, [hops][P]; [] where there are none
        ("staged", INT32),  # batches whose rows were there and that were not yet trained, when this one's turn came
        # from when training could go on (evaluations and checkpoints are over) until this batch's rows were there
        ("wait_s", FLOAT),
        ("loss_sum", FLOAT),  # of the batch's seeds, before the step; null in a prediction
    ]
)
"""Columns of ``batches.parquet``: one row for each batch, also for ranks that have none in a step."""
LOSSES_SCHEMA = pa.schema([BATCHES_SCHEMA.field(name) for name in ("rank", "epoch", "step", "loss_sum")])
"""Columns of the losses that ranks write while they train."""
COUNTED = ("rows_local", "rows_hit", "rows_pulled", "rows_cached", "pulled_from", "asked")
"""Columns that the ranks of a run count themselves."""
KEYS = ("rank", "epoch", "step")
HELD = tuple(name for name in BATCHES_SCHEMA.names if name not in (*KEYS, "staged", "wait_s", "loss_sum"))
"""Columns that are equal in a prediction and its run: the content of each batch, and the sources of its rows."""


def places_of(program: Program) -> tuple[str, ...]:
    """Names of all row counters: local, hit, pulled and cached, then the routes of the program."""
    return (LOCAL, HIT, PULLED, CACHED, *sorted(program.sizes.routes))


def draws_batches(program: Program) -> bool:
    """Whether the program trains on mini-batches."""
    return any(op.kind is OpKind.SAMPLE for _, op in program.ops)


def batch_table(
    program: Program, trace: pa.Table, losses: pa.Table | None = None, taken: pa.Table | None = None
) -> pa.Table:
    """Build the table ``batches.parquet`` for all steps that are complete in a ``trace`` (``TRACE_SCHEMA``).

    Ranks of a run record ``losses`` (``LOSSES_SCHEMA``) and ``taken``, how many rows they got from which source
    (``TAKEN_SCHEMA``), each in any order; without ``taken`` all sizes come from the program.
    """
    steady = program.templates[program.calendar.steady]
    ready = TAKE_HOT if TAKE_HOT in steady.index else STAGE_ROWS
    first = next(op for op in steady.ops if op.layer)
    releases = next(op.name for op in reversed(steady.ops) if op.phase == "backward")
    names = ("rank", "epoch", "step", "op_id", "issued_s", "started_s", "ended_s")
    # what training a batch ends with: ops that run beside the next one may come after it
    trained = next((d.op for d in first.after if d.steps_back == 1), steady.ops[-1].name)
    columns = {name: trace[name].to_numpy() for name in names}
    table = (LOSSES_SCHEMA.empty_table() if losses is None else losses).to_pydict()
    recorded = zip(*(table[name] for name in LOSSES_SCHEMA.names), strict=True)
    known = {(rank, epoch * program.calendar.steps + step): loss for rank, epoch, step, loss in recorded}
    parts = []
    for rank in range(program.ranks):
        turns, ended = _times(program, columns, rank, trained, "ended_s")
        _, staged = _times(program, columns, rank, ready, "ended_s")
        begun = _times(program, columns, rank, first.name, "started_s")[1][: len(turns)]
        _, released = _times(program, columns, rank, releases, "ended_s")
        # the first batch of a run is waited for from its beginning
        free = np.maximum(np.concatenate(([0.0], ended))[: len(turns)], _resumed(program, columns, rank, turns))
        parts.append(
            {
                "rank": np.full(len(turns), rank),
                "epoch": turns // program.calendar.steps,
                "step": turns % program.calendar.steps,
                "unknown": np.zeros(len(turns), np.bool_),
                **_planned(program, rank, turns),
                **({} if taken is None else _counted(program, taken, rank, turns)),
                "staged": np.searchsorted(staged, begun, "right") - np.searchsorted(released, begun, "right"),
                "wait_s": np.maximum(staged[: len(turns)] - free, 0.0),
                "loss_sum": np.array([known.get((rank, turn), np.nan) for turn in turns.tolist()], np.float64),
            }
        )
    joined = {name: np.concatenate([part[name] for part in parts]) for name in (*BATCHES_SCHEMA.names, "unknown")}
    unknown = joined["unknown"]
    arrays = [_array(joined[field.name], field.type, unknown & (field.name in COUNTED)) for field in BATCHES_SCHEMA]
    return pa.table(arrays, schema=BATCHES_SCHEMA)


def _times(
    program: Program, columns: Mapping[str, NDArray[Any]], rank: int, name: str, time: str
) -> tuple[IntArray, Floats]:
    """Steps in which an op ran on a rank, counted over the whole run, ascending, and its column ``time`` in each."""
    ids = [op_id for op_id, (_, op) in enumerate(program.ops) if op.name == name]
    rows = np.flatnonzero((columns["rank"] == rank) & np.isin(columns["op_id"], ids))
    turns = columns["epoch"][rows].astype(np.int64) * program.calendar.steps + columns["step"][rows]
    order = np.argsort(turns, kind="stable")
    return turns[order], columns[time][rows][order]


def _resumed(program: Program, columns: Mapping[str, NDArray[Any]], rank: int, turns: IntArray) -> Floats:
    """When a rank began each step, in seconds, if an evaluation or checkpoint came right before it; else 0; [turns]."""
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


def _planned(program: Program, rank: int, turns: IntArray) -> dict[str, IntArray]:
    """Sizes of a rank's batches according to the program."""
    columns, hops = program.sizes.columns, _hops(program)

    def of(column: Column) -> IntArray:
        """Return the values of a column; zeros if the program has no such column."""
        if column.name not in columns:
            return np.zeros(len(turns), np.int64)
        return np.asarray(columns[column.name][rank].reshape(-1)[turns])

    def arriving(route: str) -> IntArray:
        """Rows that the rank receives along a route, from each rank in each step, int64 [turns, P]."""
        found = np.zeros((len(turns), program.ranks), np.int64)
        there = program.sizes.routes.get(route)
        if there is not None:
            pairs = np.flatnonzero(there.target == rank)
            steps = program.calendar.steps
            found[:, there.source[pairs]] = there.rows[pairs][:, turns // steps, turns % steps].T
        return found

    pulled, cached = arriving(ROUTE), arriving(CACHE_ROUTE)
    first = program.sizes.routes.get(FIRST_ROUTE)
    if first is not None:  # no route by turn: these rows are sent once, before the first turn
        cached[turns == 0] += first.matrix(program.ranks)[:, rank]
    rows = np.stack([of(rows_after(hop)) for hop in range(hops + 1)], axis=1)
    edges = np.stack([of(edges_of(hop)) for hop in range(1, hops + 1)], axis=1)
    return {
        "seeds": of(SEED_ROWS) if SEED_ROWS.name in columns else rows[:, 0],
        "rows": rows[:, -1],
        "edges": edges.sum(axis=1),
        "rows_local": of(Column("rows/staged")) - pulled.sum(axis=1),
        "rows_hit": of(Column("rows/hits")),
        "rows_pulled": pulled.sum(axis=1),
        "rows_cached": cached.sum(axis=1),
        "rows_by_hop": rows,
        "edges_by_hop": edges,
        "pulled_from": pulled,
        "asked": _by_hop(program, arriving, len(turns)),
    }


def _counted(program: Program, taken: pa.Table, rank: int, turns: IntArray) -> dict[str, NDArray[Any]]:
    """Sizes that a rank counted in the steps ``turns`` of a run; ``unknown``, bool [turns]: no count was recorded."""
    columns = {name: taken[name].to_numpy() for name in TAKEN_SCHEMA.names}
    number = columns["epoch"].astype(np.int64) * program.calendar.steps + columns["step"]
    mine = (columns["rank"] == rank) & np.isin(number, turns)
    turn = np.searchsorted(turns, number)[mine]
    place, peer, rows = (columns[name][mine] for name in ("place", "peer", "rows"))
    places = places_of(program)

    def arrived(route: str) -> IntArray:
        """Rows received along a route, from each rank in each step, int64 [turns, P]; zeros for an unknown route."""
        total = np.zeros((len(turns), program.ranks), np.int64)
        at = np.flatnonzero(place == places.index(route)) if route in places else np.zeros(0, np.int64)
        np.add.at(total, (turn[at], peer[at]), rows[at])
        return total

    # what is moved within the rank has the peer -1: all of it stands in the last column
    local, hit, pulled, cached = (arrived(name).sum(axis=1) for name in (LOCAL, HIT, PULLED, CACHED))
    return {
        "rows_local": local,
        "rows_hit": hit,
        "rows_pulled": pulled,
        "rows_cached": cached,
        "pulled_from": arrived(ROUTE),
        "asked": _by_hop(program, arrived, len(turns)),
        "unknown": ~np.isin(np.arange(len(turns)), turn[place == places.index(LOCAL)]),
    }


def _by_hop(program: Program, arriving: Callable[[str], IntArray], turns: int) -> IntArray:
    """Number of requests that each rank answers, int64 [turns, hops, P]; zero hops if there are no requests."""
    hops = _hops(program) if asked(1) in program.sizes.routes else 0
    parts = [arriving(asked(hop)) for hop in range(1, hops + 1)]
    return np.stack(parts, axis=1) if parts else np.zeros((turns, 0, program.ranks), np.int64)


def _hops(program: Program) -> int:
    return next(hops for hops in count() if edges_of(hops + 1).name not in program.sizes.columns)


def _array(values: NDArray[Any], kind: pa.DataType, unknown: NDArray[np.bool_]) -> pa.Array:
    """Convert ``values`` to a column of numbers, or of lists for further axes; null for NaN and ``unknown`` [rows]."""
    if not pa.types.is_list(kind):
        return pa.array(values.astype(kind.to_pandas_dtype()), mask=unknown | np.isnan(values.astype(np.float64)))
    column = pa.array(values.reshape(-1))
    for axis in range(values.ndim - 1, 0, -1):
        lists = np.prod(values.shape[:axis], dtype=np.int64)
        ends = pa.array(np.arange(lists + 1, dtype=np.int32) * values.shape[axis])
        column = pa.ListArray.from_arrays(ends, column, mask=pa.array(unknown) if axis == 1 else None)
    return column


def batches_that_differ(first: pa.Table, second: pa.Table) -> int:
    """Count the batches that differ between two tables in their rows or in the sources of these rows.

    Batches or counts that one table lacks differ. Raises :class:`ConfigError` for tables with other columns.
    """
    one, two = (_held(table) for table in (first, second))
    both = one.keys() & two.keys()
    return len(one.keys() ^ two.keys()) + sum(None in one[key] or one[key] != two[key] for key in both)


def _held(table: pa.Table) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    if table.schema.names != BATCHES_SCHEMA.names:
        raise ConfigError(
            f"batches.parquet: got the columns {', '.join(table.schema.names)}, expected "
            f"{', '.join(BATCHES_SCHEMA.names)}. Another version of simgnn wrote it: simulate or run again."
        )
    keys, counts = (zip(*(table[name].to_pylist() for name in names), strict=True) for names in (KEYS, HELD))
    return dict(zip(keys, counts, strict=True))


def input_rows(table: pa.Table) -> InputRows | None:
    """Sum the input rows of all batches of a table (``BATCHES_SCHEMA``) by source; None if a count is missing."""
    names = {place: f"rows_{place}" for place in (LOCAL, HIT, PULLED, CACHED)}
    if any(table[name].null_count for name in names.values()):
        return None
    return InputRows(**{place: int(table[name].to_numpy().sum()) for place, name in names.items()})
