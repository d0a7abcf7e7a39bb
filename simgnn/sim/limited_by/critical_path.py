"""The critical path of an epoch: the chain of ops, one after the other, that makes it as long as it is.

It is followed backwards from the op that ends last. An op began when the last thing that it waited for ended: an op
that it depends on, the op before it on its stream, or, in a call of several ranks, when the last of them arrived; the
path then goes on with what that rank did before. So the path consists of work and transfers, while waiting shows as a
change of rank: the others wait for the rank that the path runs through.

The trace may be simulated or measured. In a measured one no op begins in the very moment in which another ends: the
path goes on with what ended last on the rank before, and the gap counts as a stretch in which nothing runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.program.calendar import Turn
from simgnn.program.kinds import GROUP_KINDS, PAIRWISE_KINDS
from simgnn.sim.engine.compiled import Compiled, CompiledOp
from simgnn.sim.engine.sent_bytes import sent_by
from simgnn.sim.engine.turn_sizes import Sizes
from simgnn.sim.network.flow_table import Ints

Trace = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Piece:
    """A stretch of the path: ``seconds`` in which a rank runs an op, or (``compiled`` None) in which nothing runs."""

    rank: int
    seconds: float
    compiled: CompiledOp | None = None
    turn: Turn | None = None


def critical_path(compiled: Compiled, columns: Trace, sizes: Sizes, epoch: int) -> list[Piece]:
    """Return the critical path of a training epoch, from its end to its beginning. The seconds of its pieces sum to the
    time of the epoch. ``columns``: those of ``TRACE_SCHEMA``, of a simulation or a run of the ``compiled`` program."""
    return _Walk(compiled, columns, sizes, epoch).pieces()


def _window(columns: Trace, epoch: int) -> tuple[float, float]:
    """Begin and end of a training epoch, as :func:`simgnn.record.summary.epoch_windows` defines them, in seconds."""
    training = columns["step"] >= 0
    mine, before = training & (columns["epoch"] == epoch), training & (columns["epoch"] == epoch - 1)
    begin, end = columns["issued_s"][mine].min(initial=np.inf), columns["ended_s"][mine].max(initial=0.0)
    return float(min(max(begin, columns["ended_s"][before].max(initial=0.0)), end)), float(end)


class _Walk:
    def __init__(self, compiled: Compiled, columns: Trace, sizes: Sizes, epoch: int) -> None:
        self._sizes = sizes
        self._begin, self._end = _window(columns, epoch)
        near = np.flatnonzero((columns["issued_s"] < self._end) & (columns["ended_s"] > self._begin))
        self._table = {
            name: columns[name][near] for name in ("rank", "epoch", "step", "op_id", "issued_s", "started_s", "ended_s")
        }
        self._of_epoch = (self._table["epoch"] == epoch) & (self._table["step"] >= 0)
        self._ops = {op.op_id: (op, name) for name, t in compiled.templates.items() for op in t.ops}
        self._in_turn = {name for name, stream in compiled.program.streams.items() if stream.in_turn}
        rank, ended = self._table["rank"], self._table["ended_s"]
        self._by_end = np.lexsort((ended, rank))
        self._ends = ended[self._by_end]
        ranks = compiled.program.ranks
        self._bounds = np.searchsorted(rank[self._by_end], np.arange(ranks + 1))
        self._calls = self._rows_by_call()
        self._peers: dict[tuple[int, int, int], Ints] = {}

    def pieces(self) -> list[Piece]:
        mine = np.flatnonzero(self._of_epoch)
        row = int(mine[np.argmax(self._table["ended_s"][mine])]) if len(mine) else -1
        seen: set[int] = set()
        found: list[Piece] = []
        now = self._end
        while row >= 0 and now > self._begin:
            seen.add(row)
            compiled, turn = self._op(row), self._turn(row)
            begins = "started_s" if compiled.op.stream in self._in_turn else "issued_s"
            rank, start = int(self._table["rank"][row]), float(self._table[begins][row])
            last = self._last_to_arrive(row, compiled)
            if last is not None:
                start = float(self._table["issued_s"][last])
            self._add(found, Piece(rank, now - max(start, self._begin), compiled, turn))
            now = min(now, start)
            if last is not None:
                seen.add(last)
                row = last
            before = self._before(row, now, seen)
            if before is None:
                break
            at = float(self._table["ended_s"][before])
            self._add(found, Piece(int(self._table["rank"][row]), now - max(at, self._begin)))
            row, now = before, min(now, at)
        if now > self._begin:
            self._add(found, Piece(int(self._table["rank"][row]) if row >= 0 else 0, now - self._begin))
        return found

    def _add(self, found: list[Piece], piece: Piece) -> None:
        if piece.seconds > 0.0:
            found.append(piece)

    def _op(self, row: int) -> CompiledOp:
        return self._ops[int(self._table["op_id"][row])][0]

    def _turn(self, row: int) -> Turn:
        name = self._ops[int(self._table["op_id"][row])][1]
        return Turn(int(self._table["epoch"][row]), int(self._table["step"][row]), name)

    def _rows_by_call(self) -> tuple[Ints, Ints, Ints]:
        """Rows sorted by call (epoch, step, op), with the number of the call of each row and where each call begins."""
        keys = [self._table[name] for name in ("op_id", "step", "epoch")]
        order = np.lexsort((self._table["rank"], *keys))
        fresh = np.ones(len(order), dtype=np.bool_)
        fresh[1:] = np.logical_or.reduce([key[order][1:] != key[order][:-1] for key in keys])
        call = np.empty(len(order), dtype=np.int64)
        call[order] = np.cumsum(fresh) - 1
        return order, call, np.append(np.flatnonzero(fresh), len(order))

    def _last_to_arrive(self, row: int, compiled: CompiledOp) -> int | None:
        """Return the row of the rank that the op waited for; None: it waited for no other rank."""
        if compiled.op.kind not in GROUP_KINDS | PAIRWISE_KINDS:
            return None
        order, call, begins = self._calls
        rows = order[begins[call[row]] : begins[call[row] + 1]]
        ranks, me = self._table["rank"][rows], int(self._table["rank"][row])
        with_me = compiled.team[ranks] == compiled.team[me]
        if compiled.op.kind in PAIRWISE_KINDS:
            with_me &= self._meets(row, compiled)[ranks]
        issued = np.where(with_me, self._table["issued_s"][rows], -np.inf)
        issued = np.where(issued < self._table["ended_s"][row], issued, -np.inf)
        last = int(np.argmax(issued))
        return int(rows[last]) if issued[last] > self._table["issued_s"][row] else None

    def _meets(self, row: int, compiled: CompiledOp) -> NDArray[np.bool_]:
        """Which ranks a rank exchanges messages with in an op, bool [P]; all of them where headers are sent."""
        turn, me = self._turn(row), int(self._table["rank"][row])
        static = self._sizes.is_static(compiled.op)
        key = (compiled.op_id, -1, -1) if static else (compiled.op_id, turn.epoch, turn.step)
        if key not in self._peers:
            sent = sent_by(self._sizes, compiled, turn)
            self._peers[key] = sent.nbytes + sent.nbytes.T + sent.headers
        return np.asarray(self._peers[key][me] > 0)

    def _before(self, row: int, now: float, seen: set[int]) -> int | None:
        """Return the row whose end let the op of ``row`` begin at ``now``."""
        me = int(self._table["rank"][row])
        here = self._ended_at(me, now, seen)
        if not here:
            there = np.flatnonzero(self._table["ended_s"] == now).tolist()
            here = [other for other in there if other not in seen]
        if here:
            compiled = self._op(row)
            parents = {name for name, _ in compiled.parents}

            def rank_of(other: int) -> tuple[bool, bool, bool, float, int]:
                op = self._op(other).op
                mine = int(self._table["rank"][other]) == me
                duration = float(now - self._table["issued_s"][other])
                return mine, op.name in parents, op.stream == compiled.op.stream, duration, -other

            return max(here, key=rank_of)
        low, high = self._bounds[me], self._bounds[me + 1]
        for place in range(low + int(np.searchsorted(self._ends[low:high], now)) - 1, low - 1, -1):
            other = int(self._by_end[place])
            if other not in seen:
                return other
        return None

    def _ended_at(self, rank: int, now: float, seen: set[int]) -> list[int]:
        low, high = self._bounds[rank], self._bounds[rank + 1]
        first, last = (int(np.searchsorted(self._ends[low:high], now, side)) for side in ("left", "right"))
        return [row for row in self._by_end[low + first : low + last].tolist() if row not in seen]
