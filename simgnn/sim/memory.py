"""Memory over time, from buffer lifetimes.

Persistent buffers, rings (``depth`` copies) and buffers that carry rows from one turn to a later one are there all the
time. Any other is there from the issue of the op that first touches it in a turn to the end of the last, once for each
turn in flight. What ends at an instant is given back before what begins there is taken. A buffer that all ranks of a
host share counts once, with the host's first rank. Rows that nobody has decided yet count as their bound. On
top comes what ops hold only while they run, and what is derived once and kept (:mod:`simgnn.sim.memory_work`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.hardware.machine import Machine
from simgnn.program.lifetimes import carried
from simgnn.program.ops import ITEM_BYTES
from simgnn.program.program import Program
from simgnn.program.sizes import Column, Decision, IntArray
from simgnn.sim.decided import Sizes
from simgnn.sim.maxmin import Ints
from simgnn.sim.memory_work import kept_beside, work_space

WORK_SPACE = "work space"
"""Stands for a buffer's name where an op holds memory that no buffer of the program is."""


@dataclass(frozen=True)
class OutOfMemory:
    """Where memory runs out first: the op that asks for it, in which epoch; bytes asked for in all, and there are."""

    rank: int
    op: str
    epoch: int
    needed_bytes: int
    available_bytes: int

    def __str__(self) -> str:
        return (
            f"rank {self.rank} runs out of memory at op '{self.op}' of epoch {self.epoch}: its device would hold "
            f"{self.needed_bytes:,} bytes of buffers and has {self.available_bytes:,}"
        )


@dataclass(frozen=True)
class Memory:
    """Peaks in bytes, int64 [P]: of each rank's buffers on its ``device``, in ``host`` memory, and of ``both`` at once.

    ``devices``: of all ranks on a device at once, by its name; a CPU's memory holds its ranks' host buffers too.
    """

    device: IntArray
    host: IntArray
    both: IntArray
    devices: Mapping[str, int]
    out_of_memory: OutOfMemory | None


def track_memory(program: Program, sizes: Sizes, machine: Machine, ticks: Mapping[str, Ints]) -> Memory:
    """Memory of a run whose ops were issued and ended as ``ticks`` say (columns of the recorder)."""
    ranks = np.arange(program.ranks)
    first = np.array([program.hosts.index(host) for host in program.hosts]) == ranks
    spans = _spans(program, sizes, ticks)
    spans = spans.joined(_work_spans(program, sizes, ticks, len(spans.names)))
    spans = spans.where(first[spans.rank] | ~spans.in_space(program, "host-shared"))
    always = {space: np.zeros(program.ranks, dtype=np.int64) for space in ("device", "host", "host-shared")}
    for name in sorted(carried(program)):
        buffer = program.buffers[name]
        always[buffer.space] += _bytes(sizes, name, 0, 0) * (first if buffer.space == "host-shared" else 1)
    always["device"] += kept_beside(program, sizes)
    in_host = always["host"] + always["host-shared"]
    on_device = spans.in_space(program, "device")
    devices = list(dict.fromkeys(machine.devices))
    place = np.array([devices.index(name) for name in machine.devices])
    on_cpu = np.array([machine.device(rank).kind == "cpu" for rank in range(program.ranks)])
    limits = np.array([machine.memory_bytes(machine.devices.index(name)) for name in devices])
    held = spans.where(on_device | on_cpu[spans.rank])
    total = np.bincount(place, always["device"] + in_host * on_cpu, minlength=len(devices)).astype(np.int64)
    peaks = held.peaks(total, place)
    return Memory(
        spans.where(on_device).peaks(always["device"], ranks),
        spans.where(~on_device).peaks(in_host, ranks),
        spans.peaks(always["device"] + in_host, ranks),
        dict(zip(devices, peaks.tolist(), strict=True)),
        held.overflow(program, total, place, limits),
    )


@dataclass(frozen=True)
class _Spans:
    """Stretches of time, in ticks, in which a rank holds a buffer; int64 [n] each. ``op_id``: the op that takes it."""

    rank: Ints
    begin: Ints
    end: Ints
    nbytes: Ints
    buffer: Ints
    op_id: Ints
    epoch: Ints
    names: tuple[str, ...]

    def where(self, mask: NDArray[np.bool_]) -> "_Spans":
        return _Spans(
            self.rank[mask], self.begin[mask], self.end[mask], self.nbytes[mask], self.buffer[mask], self.op_id[mask],
            self.epoch[mask], self.names,
        )  # fmt: skip

    def joined(self, other: "_Spans") -> "_Spans":
        """These and others, whose buffers are numbered after these."""

        def both(name: str) -> Ints:
            return np.concatenate((getattr(self, name), getattr(other, name)))

        return _Spans(
            both("rank"), both("begin"), both("end"), both("nbytes"), both("buffer"), both("op_id"), both("epoch"),
            (*self.names, *other.names),
        )  # fmt: skip

    def in_space(self, program: Program, space: str) -> NDArray[np.bool_]:
        inside = np.array([_space(program, name) == space for name in self.names], dtype=np.bool_)
        return inside[self.buffer] if len(inside) else np.zeros(0, dtype=np.bool_)

    def levels(self, place: Ints) -> tuple[Ints, Ints, Ints]:
        """Bytes held after each change, ordered by place and time: (place, span whose bytes come or go, bytes)."""
        here = place[self.rank]
        change = np.concatenate((self.nbytes, -self.nbytes))
        order = np.lexsort((change, np.concatenate((self.begin, self.end)), np.concatenate((here, here))))
        span = np.concatenate((np.arange(len(here)), np.arange(len(here))))[order]
        # Every stretch ends, so the running sum is back at zero where the next place begins.
        return here[span], span, np.cumsum(change[order])

    def peaks(self, always: Ints, place: Ints) -> IntArray:
        """Most bytes held at once in each place, on top of what is ``always`` there."""
        here, _, level = self.levels(place)
        most = np.zeros(len(always), dtype=np.int64)
        np.maximum.at(most, here, level)
        return np.asarray(always + most)

    def overflow(self, program: Program, always: Ints, place: Ints, limits: NDArray[Any]) -> OutOfMemory | None:
        """The first instant at which a place holds more than its limit."""
        full = np.flatnonzero(always > limits)
        if len(full):
            rank = int(np.flatnonzero(place == full[0])[0])
            opening = program.templates[program.calendar.template(0)].ops
            return OutOfMemory(rank, opening[0].name if opening else "", 0, int(always[full[0]]), int(limits[full[0]]))
        here, span, level = self.levels(place)
        over = np.flatnonzero(always[here] + level > limits[here])
        if not len(over):
            return None
        worst = over[np.lexsort((here[over], self.begin[span[over]]))[0]]
        found, at = span[worst], here[worst]
        needed, limit = int(always[at] + level[worst]), int(limits[at])
        op = program.ops[int(self.op_id[found])][1].name
        return OutOfMemory(int(self.rank[found]), op, int(self.epoch[found]), needed, limit)


def _spans(program: Program, sizes: Sizes, ticks: Mapping[str, Ints]) -> _Spans:
    """A stretch for each turn and rank and buffer that dies with its turn."""
    kept = carried(program)
    names = tuple(sorted(name for name in program.buffers if name not in kept))
    number = {name: place for place, name in enumerate(names)}
    touched = [
        sorted({number[access.buffer] for access in op.reads + op.writes if access.buffer in number})
        for _, op in program.ops
    ]
    start = np.cumsum([0, *map(len, touched)])
    flat = np.array([place for places in touched for place in places], dtype=np.int64)
    counts = np.diff(start)[ticks["op_id"]]
    row = np.repeat(np.arange(len(counts)), counts)
    buffer = flat[start[ticks["op_id"][row]] + np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)]
    keys = [buffer, *(ticks[name][row] for name in ("rank", "step", "epoch"))]
    order = np.lexsort((ticks["issued"][row], *keys))
    fresh = np.ones(len(order), dtype=np.bool_)
    fresh[1:] = np.logical_or.reduce([key[order][1:] != key[order][:-1] for key in keys])
    heads = np.flatnonzero(fresh)
    ends = np.maximum.reduceat(ticks["ended"][row[order]], heads) if len(heads) else heads
    first, held = row[order][heads], buffer[order][heads]
    columns = {name: ticks[name][first] for name in ("rank", "epoch", "step", "op_id")}
    nbytes = _held_bytes(sizes, names, held, columns)
    return _Spans(
        columns["rank"], ticks["issued"][first], ends, nbytes, held, columns["op_id"], columns["epoch"], names
    )


def _work_spans(program: Program, sizes: Sizes, ticks: Mapping[str, Ints], number: int) -> _Spans:
    """A stretch for each op that holds memory while it runs; all are numbered as one more buffer, ``number``."""
    nbytes = np.zeros(len(ticks["op_id"]), dtype=np.int64)
    for op_id, (_, op) in enumerate(program.ops):
        mine = np.flatnonzero(ticks["op_id"] == op_id)
        turns = np.stack([ticks["epoch"][mine], ticks["step"][mine]])
        static = sizes.is_static(op) and not any(_varies(sizes, a.buffer) for a in op.reads + op.writes)
        for turn in np.unique(turns, axis=1).T.tolist()[: 1 if static else None]:
            chosen = mine if static else mine[(turns[0] == turn[0]) & (turns[1] == turn[1])]
            nbytes[chosen] = work_space(program, sizes, op, *turn)[ticks["rank"][chosen]]
    held = np.flatnonzero(nbytes)
    what = np.full(len(held), number, dtype=np.int64)
    return _Spans(
        ticks["rank"][held], ticks["issued"][held], ticks["ended"][held], nbytes[held], what, ticks["op_id"][held],
        ticks["epoch"][held], (WORK_SPACE,),
    )  # fmt: skip


def _space(program: Program, name: str) -> str:
    return "device" if name == WORK_SPACE else program.buffers[name].space


def _held_bytes(sizes: Sizes, names: tuple[str, ...], held: Ints, columns: Mapping[str, Ints]) -> Ints:
    """Bytes of each stretch's buffer on its rank, in its turn."""
    nbytes = np.zeros(len(held), dtype=np.int64)
    for place, name in enumerate(names):
        mine = np.flatnonzero(held == place)
        turns = np.stack([columns["epoch"][mine], columns["step"][mine]])
        distinct = np.unique(turns, axis=1).T.tolist() if _varies(sizes, name) else [None]
        for turn in distinct:
            chosen = mine if turn is None else mine[(turns[0] == turn[0]) & (turns[1] == turn[1])]
            epoch, step = (0, 0) if turn is None else turn
            nbytes[chosen] = _bytes(sizes, name, epoch, step)[columns["rank"][chosen]]
    return nbytes


def _bytes(sizes: Sizes, name: str, epoch: int, step: int) -> IntArray:
    """Bytes of all copies of a buffer on every rank, int64 [P]."""
    buffer = sizes.program.buffers[name]
    rows = sizes.at_most(buffer.rows, epoch, step, f"buffer {name}")
    return rows * (buffer.width * ITEM_BYTES[buffer.dtype] * buffer.depth)


def _varies(sizes: Sizes, name: str) -> bool:
    rows = sizes.program.buffers[name].rows
    if isinstance(rows, Decision):
        return rows.name in sizes.activity or isinstance(rows.bound, Column)
    return isinstance(rows, Column) and sizes.program.sizes.columns[rows.name].ndim > 1
