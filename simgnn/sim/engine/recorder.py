"""Recorder of finished ops, and their conversion into the columns of the trace."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import BackendError
from simgnn.program.kinds import GROUP_KINDS
from simgnn.record.rundir import TRACE_SCHEMA
from simgnn.sim.clock import PICOSECONDS
from simgnn.sim.engine.compiled import Compiled
from simgnn.sim.network.flow_table import Ints

_SENT = ("bytes_sent", "collective_bytes", "control_bytes", "messages")
_FIELDS = ("rank", "epoch", "step", "op_id", "issued", "started", "ended", *_SENT)
EPOCH, TICKS = 1, (4, 5, 6)
"""Places among the fields of what differs between repetitions."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows int64 [fields, n], and how often they are repeated, each time ``epochs`` and ``ticks`` later (times 0: they
    were noted and count once, as they are)."""

    rows: Ints
    times: int = 0
    epochs: int = 0
    ticks: int = 0

    @property
    def count(self) -> int:
        """How many rows there are with all repetitions."""
        return int(self.rows.shape[1]) * max(self.times, 1)

    def write(self, out: Ints) -> None:
        """Write all rows into ``out`` [fields, count], repetition after repetition."""
        if not self.times:
            out[:] = self.rows
            return
        parts, number = out.reshape(len(out), self.times, -1), np.arange(1, self.times + 1)[:, None]
        for place, (column, part) in enumerate(zip(self.rows, parts, strict=True)):
            later = self.epochs if place == EPOCH else self.ticks if place in TICKS else 0
            np.add(column, later * number, out=part)


class Recorder:
    """Rows of ops in the order in which they end. Stretches of rows can be repeated at a later time. Runs of many
    epochs have millions of rows, which are written out once, by :meth:`table`."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, ...]] = []
        self._blocks: list[Block] = []
        self._folded = 0

    def __len__(self) -> int:
        return self._folded + len(self._rows)

    @property
    def last_epoch(self) -> int:
        """The latest epoch of which an op was recorded; -1: none."""
        noted = max((row[EPOCH] for row in self._rows), default=-1)
        blocks = (int(block.rows[EPOCH].max(initial=-1)) + block.times * block.epochs for block in self._blocks)
        return max([noted, *blocks])

    def add(self, row: tuple[int, ...]) -> None:
        """Record one op: rank, epoch, step, op id; issue, start, end in ticks; the four counts of what it sent."""
        self._rows.append(row)

    def repeat(self, since: int, times: int, epochs: int, ticks: int) -> None:
        """Append ``times`` copies of all rows after the first ``since``, each ``epochs`` and ``ticks`` later."""
        self._fold()
        block = Block(_sorted(_joined(self._blocks)[:, since:]), times, epochs, ticks)
        self._blocks.append(block)
        self._folded += block.count

    def sources(self, epochs: int) -> Ints:
        """Return for each epoch of a run the recorded epoch that it repeats, or itself, int64 [epochs]. It holds where
        no epoch overlaps the next, so that a stretch has whole epochs."""
        found = np.arange(epochs)
        for block in self._blocks:
            if block.times:
                first = int(block.rows[EPOCH].min()) + block.epochs
                later = np.arange(first, first + block.times * block.epochs)
                found[later] = found[first - block.epochs + (later - first) % block.epochs]
        return found

    def table(self, copies: bool = True) -> dict[str, Ints]:
        """Columns of all rows, int64, sorted by (epoch, step, op_id, rank). ``copies``: include repeated rows."""
        self._fold()
        # each part is sorted by itself, so that the whole mostly is, too
        blocks = [block if block.times else Block(_sorted(block.rows)) for block in self._blocks]
        whole = _sorted(_joined([block for block in blocks if copies or not block.times]))
        return dict(zip(_FIELDS, whole, strict=True))

    def _fold(self) -> None:
        if not self._rows:
            return
        try:
            noted = np.ascontiguousarray(np.array(self._rows, dtype=np.int64).T)
        except OverflowError as error:
            raise BackendError(
                "the simulated time exceeds what the clock can count (about 106 days). Simulate fewer epochs "
                "(train.epochs), or check the sizes of the model and the rates in the hardware profile."
            ) from error
        self._blocks.append(Block(noted))
        self._folded += len(self._rows)
        self._rows = []


def _joined(blocks: Sequence[Block]) -> Ints:
    whole = np.empty((len(_FIELDS), sum(block.count for block in blocks)), dtype=np.int64)
    begin = 0
    for block in blocks:
        block.write(whole[:, begin : begin + block.count])
        begin += block.count
    return whole


def _sorted(rows: Ints) -> Ints:
    order = _order(rows)
    return rows[:, order] if np.any(order[1:] < order[:-1]) else rows


def _order(rows: Ints) -> Ints:
    """Return the order of rows [fields, n] by (epoch, step, op id, rank), which no two have in common."""
    rank, key, *others = rows[:4]
    spans = [(int(column.min(initial=0)), int(column.max(initial=0)) + 1) for column in (key, *others, rank)]
    if prod(end - least for least, end in spans) >= np.iinfo(np.int64).max:
        return np.lexsort((rank, *reversed(others), key))
    for column, (least, end) in zip((*others, rank), spans[1:], strict=True):
        key = key * (end - least) + (column - least)
    return np.argsort(key, kind="stable")


def trace_columns(ticks: Mapping[str, Ints], started: Ints) -> dict[str, NDArray[Any]]:
    """The columns of ``TRACE_SCHEMA``, in its order. ``started``: the result of :func:`start_ticks`."""
    times = {"issued_s": ticks["issued"], "started_s": started, "ended_s": ticks["ended"]}
    seconds = {name: values / PICOSECONDS for name, values in times.items()}
    return {
        field.name: seconds[field.name]
        if field.name in seconds
        else ticks[field.name].astype(str(field.type), copy=False)
        for field in TRACE_SCHEMA
    }


def start_ticks(ticks: Mapping[str, Ints], compiled: Compiled) -> Ints:
    """When the work of each op began, in ticks. An op of a group begins when the last rank of the group issues it, but
    not after its own end (a member may finish before the last one arrives). Any other op begins when it is issued, or
    as its turn comes among the ranks of its host."""
    started = ticks["started"].copy()
    # team of each (op id, rank), -1 where the op calls no group
    teams = np.full((len(compiled.program.ops), compiled.program.ranks), -1, dtype=np.int64)
    for template in compiled.templates.values():
        for found in template.ops:
            if found.op.kind in GROUP_KINDS and compiled.program.group_of(found.op) is not None:
                teams[found.op_id] = found.team
    team = teams[ticks["op_id"], ticks["rank"]]
    chosen = np.flatnonzero(team >= 0)
    if not len(chosen):
        return started
    keys = [ticks[name][chosen] for name in ("epoch", "step", "op_id")] + [team[chosen]]
    order = np.lexsort(keys[::-1])
    fresh = np.ones(len(order), dtype=np.bool_)
    fresh[1:] = np.logical_or.reduce([key[order][1:] != key[order][:-1] for key in keys])
    latest = np.maximum.reduceat(started[chosen][order], np.flatnonzero(fresh))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.cumsum(fresh) - 1
    started[chosen] = np.minimum(latest[place], ticks["ended"][chosen])
    return started
