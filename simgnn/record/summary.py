"""Summary of a trace, with the same formulas for both backends: epoch times, times and bytes of each rank.

Times are seconds (of a run) or integer ticks of a clock (in the simulator).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simgnn.emit.halo_cache.routes import CACHED, HELD, MISSED
from simgnn.program.calendar import Calendar
from simgnn.program.kinds import COMPUTE_KINDS, OpKind
from simgnn.program.ops import Op
from simgnn.program.program import Program, carried
from simgnn.record.epoch_kinds import Alike, kinds_of, typical
from simgnn.record.result import EpochKind, HaloRows, RankTimes

Bools = NDArray[np.bool_]
Times = NDArray[Any]
"""Array of times: seconds float64, or ticks int64."""


@dataclass(frozen=True)
class Columns:
    """The training ops of a trace as arrays. ``epoch``: index of each op's epoch among the ``epochs`` of the trace;
    ``computes``: ops that do not communicate; ``table``: all columns of the trace."""

    rank: NDArray[Any]
    epoch: NDArray[Any]
    epochs: int
    issued: Times
    started: Times
    ended: Times
    computes: Bools
    table: Mapping[str, NDArray[Any]]

    @classmethod
    def of(cls, trace: pa.Table, program: Program) -> "Columns":
        """Read a trace of all ranks, without evaluations."""
        training = trace["step"].to_numpy() >= 0
        table = {name: trace[name].to_numpy()[training] for name in trace.column_names}
        epochs, epoch = np.unique(table["epoch"], return_inverse=True)
        issued, started, ended = (table[name] for name in ("issued_s", "started_s", "ended_s"))
        computes = computing_ops(program)[table["op_id"]]
        return cls(table["rank"], epoch, len(epochs), issued, started, ended, computes, table)


def computing_ops(program: Program) -> Bools:
    """Which ops do not communicate, bool [ops]: compute kinds, and copies on a stream on which ranks do not meet."""

    def computes(op: Op) -> bool:
        stream = program.streams[op.stream]
        return op.kind in COMPUTE_KINDS or (op.kind is OpKind.COPY and stream.group is None and not stream.in_turn)

    return np.array([computes(op) for _, op in program.ops], dtype=np.bool_)


def epoch_windows(columns: Columns) -> Times:
    """Start and end of each training epoch, [epochs, 2].

    An epoch starts at the end of the previous one, or, after an evaluation or checkpoint, when its own first op is
    issued. It ends with the last of its ops on any rank. An epoch without ops has no length.
    """
    begins = np.full(columns.epochs, columns.ended.max(initial=0))
    ends = np.zeros(columns.epochs, columns.ended.dtype)
    np.minimum.at(begins, columns.epoch, columns.issued)
    np.maximum.at(ends, columns.epoch, columns.ended)
    before = np.append(begins[:1], ends[:-1])
    return np.stack([np.where(ends > 0, np.maximum(begins, before), ends), ends], axis=1)


def times_by_rank(columns: Columns, ranks: int) -> dict[str, Times]:
    """Sum the times of each (epoch, rank), [epochs, P] each:

    - ``compute_s``: sum of ended - issued over ops that compute;
    - ``wait_s``: sum of started - issued over all other ops;
    - ``comm_total_s``: sum of ended - started over all other ops;
    - ``comm_exposed_s``: how long other ops wait or move data while no op of the rank computes, be it of this epoch or
      of another one.
    """
    cell = columns.epoch * ranks + columns.rank
    issued, started, ended, works = columns.issued, columns.started, columns.ended, columns.computes

    def total(values: Times, owner: NDArray[Any]) -> Times:
        sums = np.zeros(columns.epochs * ranks, values.dtype)
        np.add.at(sums, owner, values)
        return sums.reshape(columns.epochs, ranks)

    # a sweep over all moments at which an op that does not compute begins or ends, on a clock that stands still while
    # the rank computes
    idle = idle_times(columns, ranks)
    moments, owner = np.concatenate([times[~works] for times in idle]), np.tile(cell[~works], 2)
    change = np.repeat(np.array([1, -1]), len(owner) // 2)
    order = np.lexsort((moments, owner))
    moments, owner, change = moments[order], owner[order], change[order]
    # the last moment of a cell closes all its ops, so that nothing reaches into the next cell
    bare = np.cumsum(change) > 0
    return {
        "compute_s": total((ended - issued)[works], cell[works]),
        "wait_s": total((started - issued)[~works], cell[~works]),
        "comm_total_s": total((ended - started)[~works], cell[~works]),
        "comm_exposed_s": total(np.diff(moments, append=moments[-1:])[bare], owner[bare]),
    }


def idle_times(columns: Columns, ranks: int) -> tuple[Times, Times]:
    """How long each op's rank had computed nothing, from time 0 until the op was issued, and until it ended."""
    found = columns.issued.copy(), columns.ended.copy()
    by_rank = np.argsort(columns.rank, kind="stable")
    for here in np.split(by_rank, np.searchsorted(columns.rank[by_rank], np.arange(1, ranks))):
        working = here[columns.computes[here]]
        begins, ends = columns.issued[working], columns.ended[working]
        order = np.argsort(begins, kind="stable")
        begins, until = begins[order], np.maximum.accumulate(ends[order])
        # spans of ops that overlap or touch are one span
        first = np.append(True, begins[1:] > until[:-1])[: len(begins)]
        starts = begins[first]
        stops = until[np.append(np.flatnonzero(first)[1:] - 1, len(until) - 1)] if len(until) else until
        busy = np.append(np.zeros(1, stops.dtype), np.cumsum(stops - starts))
        for times in found:
            at = times[here]
            place = np.searchsorted(starts, at, side="right")
            running = np.maximum(stops[place - 1] - at, 0) * (place > 0) if len(stops) else 0
            times[here] = at - (busy[place] - running)
    return found


def rank_times(columns: Columns, ranks: int, calendar: Calendar) -> list[RankTimes]:
    """Each rank's seconds in a typical epoch (:func:`~simgnn.record.epoch_kinds.typical`)."""
    # a rank that was killed has no rows of its last epochs: they are unknown, not zero
    chosen = np.zeros((columns.epochs, ranks), dtype=np.bool_)
    chosen[columns.epoch, columns.rank] = True
    found = times_by_rank(columns, ranks)
    found["communication_s"] = found["wait_s"] + found["comm_total_s"]
    kinds = kinds_of(calendar, columns.epochs)

    def of_rank(rank: int) -> RankTimes:
        known = [alike._replace(epochs=alike.epochs[chosen[alike.epochs, rank]]) for alike in kinds]
        known = [alike for alike in known if len(alike.epochs)]
        return RankTimes(**{name: float(typical(values[:, rank], known)) for name, values in found.items()})

    return [of_rank(rank) for rank in range(ranks)]


def evaluation_s(trace: Mapping[str, NDArray[Any]]) -> float:
    """Seconds of an evaluation, from its first issue to its last end on any rank: the median over those of a trace."""
    chosen = trace["step"] < 0
    epochs, place = np.unique(trace["epoch"][chosen], return_inverse=True)
    begins, ends = np.full(len(epochs), np.inf), np.zeros(len(epochs))
    np.minimum.at(begins, place, trace["issued_s"][chosen])
    np.maximum.at(ends, place, trace["ended_s"][chosen])
    return float(np.median(ends - begins)) if len(epochs) else 0.0


def described_kinds(epoch_s: Sequence[float], calendar: Calendar) -> list[EpochKind]:
    """Return the kinds of epochs with their times, rarest first; empty for a run whose epochs are all alike."""
    if not calendar.cycles:
        return []
    return [
        EpochKind(
            template=alike.template,
            epochs_of_period=round(calendar.shares[alike.template] * calendar.period),
            period=calendar.period,
            epochs=len(alike.epochs),
            epoch_s_median=float(np.median(np.array(epoch_s)[alike.epochs])),
        )
        for alike in kinds_of(calendar, len(epoch_s))
    ]


def payload_epochs(epochs: int, calendar: Calendar) -> range:
    """The epochs over which both backends average payload, by kind where epochs differ: all but the first, which may
    send more, and the last, which may fetch nothing for a next epoch (epochs that differ fetch nothing, so that it
    counts). Of two epochs the second counts; of one, that epoch."""
    last = epochs if calendar.cycles else epochs - 1
    return range(1, last) if epochs > 2 else range(max(epochs - 1, 0), epochs)


def per_rank(columns: Columns, name: str, ranks: int, kinds: Sequence[Alike]) -> list[float]:
    """Sum of a count column in an epoch, for each rank: the mean over a period of that of each kind of epoch; zeros
    without an epoch."""
    epoch, values, means = columns.table["epoch"], columns.table[name].astype(np.float64), np.zeros(ranks)
    for alike in kinds:
        chosen = np.isin(epoch, alike.epochs)
        sums = np.bincount(columns.rank[chosen], values[chosen], minlength=ranks)
        means += alike.share * (sums / len(alike.epochs))
    return [float(value) for value in means]


def halo_rows(program: Program) -> HaloRows | None:
    """Count where halo rows come from if some are cached, by the program's routes."""
    held, device, sent = (
        int(program.sizes.routes[name].rows.sum()) if name in program.sizes.routes else 0
        for name in (HELD, CACHED, MISSED)
    )
    return HaloRows(device=device, host=held - device, sent=sent) if held else None


def buffer_bytes(program: Program) -> list[int]:
    """Peak bytes of each rank's live buffers over the ops of all templates, in program order; a size that is decided in
    training counts at its upper bound."""
    kept, table = carried(program), program.sizes
    # the first batch stands for all; a step among unlike ones does not
    differ = program.calendar.unlike or program.calendar.evaluation
    rows_of = table.most if differ else partial(table.per_rank, epoch=0, step=0)
    sizes = {name: rows_of(buffer.rows) * (buffer.row_bytes * buffer.depth) for name, buffer in program.buffers.items()}
    zero = np.zeros(program.ranks, dtype=np.int64)
    always = sum((sizes[name] for name in kept), zero)
    most = always.copy()
    for template in program.templates.values():
        touches: dict[str, list[int]] = {}
        for position, op in enumerate(template.ops):
            for access in op.reads + op.writes:
                if access.buffer not in kept:
                    touches.setdefault(access.buffer, []).append(position)
        for position in range(len(template.ops)):
            live = sum((sizes[n] for n, at in touches.items() if at[0] <= position <= at[-1]), zero)
            most = np.maximum(most, always + live)
    return [int(value) for value in most]
