"""Who holds how many bytes from when to when: stretches of time of buffers, and of what ops hold while they run."""

from collections.abc import Mapping, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simgnn.program.kinds import OpKind
from simgnn.program.lifetimes import carried, made_once
from simgnn.program.ops import ITEM_BYTES, Op
from simgnn.program.program import Program
from simgnn.program.sizes import Column, Decision, IntArray, Scratch
from simgnn.sim.engine.turn_sizes import Sizes
from simgnn.sim.network.max_min import Ints

SCRATCH = "scratch"
"""Stands for a buffer's name where an op holds memory beside the program's buffers."""


@dataclass(frozen=True)
class Spans:
    """Stretches of time, in ticks, in which a rank holds a buffer; int64 [n] each. ``op_id``: the op that takes it."""

    rank: Ints
    begin: Ints
    end: Ints
    nbytes: Ints
    buffer: Ints
    op_id: Ints
    epoch: Ints
    names: tuple[str, ...]

    def where(self, mask: NDArray[np.bool_]) -> "Spans":
        """Those that a mask [n] keeps."""
        return Spans(
            self.rank[mask], self.begin[mask], self.end[mask], self.nbytes[mask], self.buffer[mask], self.op_id[mask],
            self.epoch[mask], self.names,
        )  # fmt: skip

    def joined(self, other: "Spans") -> "Spans":
        """These and others, whose buffers are numbered after these."""

        def both(name: str) -> Ints:
            return np.concatenate((getattr(self, name), getattr(other, name)))

        return Spans(
            both("rank"), both("begin"), both("end"), both("nbytes"), both("buffer"), both("op_id"), both("epoch"),
            (*self.names, *other.names),
        )  # fmt: skip

    def in_space(self, program: Program, space: str) -> NDArray[np.bool_]:
        """Whose bytes lie in a space, bool [n]."""
        spaces = [program.buffers[name].space if name in program.buffers else "device" for name in self.names]
        return self.named({name for name, found in zip(self.names, spaces, strict=True) if found == space})

    def named(self, names: Set[str]) -> NDArray[np.bool_]:
        """Whose buffer is one of these, bool [n]."""
        inside = np.array([name in names for name in self.names], dtype=np.bool_)
        return inside[self.buffer] if len(inside) else np.zeros(0, dtype=np.bool_)

    def changes(self, place: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Every take and return, ordered by place and time, at one instant returns first: (place, span, tick, bytes,
        negative where they are returned), [2 n] each."""
        here = place[self.rank]
        change = np.concatenate((self.nbytes, -self.nbytes))
        tick = np.concatenate((self.begin, self.end))
        order = np.lexsort((change, tick, np.concatenate((here, here))))
        span = np.concatenate((np.arange(len(here)), np.arange(len(here))))[order]
        return here[span], span, tick[order], change[order]

    def levels(self, place: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Bytes held after each change, ordered by place and time: (place, span that comes or goes, tick, bytes)."""
        here, span, tick, change = self.changes(place)
        # Every stretch ends, so the running sum is back at zero where the next place begins.
        return here, span, tick, np.cumsum(change)

    def peaks(self, always: Ints, place: Ints) -> IntArray:
        """Most bytes held at once in each place, on top of what is ``always`` there."""
        here, _, _, level = self.levels(place)
        most = np.zeros(len(always), dtype=np.int64)
        np.maximum.at(most, here, level)
        return np.asarray(always + most)


def always_held(program: Program) -> frozenset[str]:
    """Buffers that are there all the time: those that outlive a turn, but for what is :func:`made_once`, and lasting
    ones."""
    lasting = {buffer.name for buffer in program.buffers.values() if buffer.lasting}
    return (carried(program) - made_once(program)) | lasting


def handed_over(program: Program) -> frozenset[str]:
    """Buffers that the executor hands over where the device is the host: what an op brings them is held there all the
    time."""
    ops = (op for _, op in program.ops if op.scratch.handed_over)
    pairs = (pair for op in ops for pair in zip(op.reads, op.writes, strict=True))
    held = always_held(program)
    return frozenset(device.buffer for host, device in pairs if host.buffer in held)


def buffer_spans(program: Program, sizes: Sizes, ticks: Mapping[str, Ints]) -> Spans:
    """A stretch for each turn and rank and buffer that dies with its turn; one to the end if it is :func:`made_once`.
    What a rank broadcasts it reads where it is: the buffer that others receive it in is not touched there."""
    kept = always_held(program)
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
    received = {op.writes[0].buffer for _, op in program.ops if op.kind is OpKind.BROADCAST and op.writes}
    if received:
        roots = np.array([-1 if (root := _root(op)) is None else root for _, op in program.ops])
        elsewhere = np.isin(buffer, [number[name] for name in received if name in number])
        kept_here = ~elsewhere | (roots[ticks["op_id"][row]] != ticks["rank"][row])
        row, buffer = row[kept_here], buffer[kept_here]
    stays = np.isin(buffer, [number[name] for name in made_once(program) & number.keys()])
    keys = [buffer, ticks["rank"][row], *(np.where(stays, 0, ticks[name][row]) for name in ("step", "epoch"))]
    order = np.lexsort((ticks["issued"][row], *keys))
    fresh = np.ones(len(order), dtype=np.bool_)
    fresh[1:] = np.logical_or.reduce([key[order][1:] != key[order][:-1] for key in keys])
    heads = np.flatnonzero(fresh)
    ends = np.maximum.reduceat(ticks["ended"][row[order]], heads) if len(heads) else heads
    first, held = row[order][heads], buffer[order][heads]
    ends = np.where(stays[order][heads], ticks["ended"].max(initial=0), ends)
    columns = {name: ticks[name][first] for name in ("rank", "epoch", "step", "op_id")}
    nbytes = _held_bytes(sizes, names, held, columns)
    late = [op_id * len(names) + number[name] for op_id, (_, op) in enumerate(program.ops)
            for name in op.scratch.copied_last if name in number]  # fmt: skip
    copied = np.isin(columns["op_id"] * len(names) + held, late)
    begins = np.where(copied, ticks["ended"][first], ticks["issued"][first])
    return Spans(columns["rank"], begins, ends, nbytes, held, columns["op_id"], columns["epoch"], names)


def scratch_spans(program: Program, sizes: Sizes, ticks: Mapping[str, Ints], number: int) -> Spans:
    """A stretch for each op that holds memory while it runs; all are numbered as one more buffer, ``number``."""
    nbytes = np.zeros(len(ticks["op_id"]), dtype=np.int64)
    for op_id, (_, op) in enumerate(program.ops):
        if not op.scratch.sizes:
            continue
        mine = np.flatnonzero(ticks["op_id"] == op_id)
        for (epoch, step), chosen in _by_turn(ticks, mine, sizes.are_static(op.scratch.sizes)):
            nbytes[chosen] = scratch_bytes(sizes, op.scratch, epoch, step, op.name)[ticks["rank"][chosen]]
    held = np.flatnonzero(nbytes)
    what = np.full(len(held), number, dtype=np.int64)
    return Spans(
        ticks["rank"][held], ticks["issued"][held], ticks["ended"][held], nbytes[held], what, ticks["op_id"][held],
        ticks["epoch"][held], (SCRATCH,),
    )  # fmt: skip


def scratch_bytes(sizes: Sizes, scratch: Scratch, epoch: int, step: int, stated_by: str) -> IntArray:
    """Bytes of memory beside the buffers on every rank in one turn, int64 [P]."""
    return scratch.at(lambda size: sizes.at_most(size, epoch, step, stated_by))


def all_copies_bytes(sizes: Sizes, name: str, epoch: int, step: int) -> IntArray:
    """Bytes of all copies of a buffer on every rank, int64 [P]."""
    buffer = sizes.program.buffers[name]
    rows = sizes.at_most(buffer.rows, epoch, step, f"buffer {name}")
    return rows * (buffer.width * ITEM_BYTES[buffer.dtype] * buffer.depth)


def most_bytes(sizes: Sizes, name: str) -> IntArray:
    """The same of a buffer that is there all the time: where its rows differ by turn, as many as in any."""
    buffer = sizes.program.buffers[name]
    if not isinstance(buffer.rows, Column) or not buffer.lasting:
        return all_copies_bytes(sizes, name, 0, 0)
    return sizes.program.sizes.most(buffer.rows) * (buffer.row_bytes * buffer.depth)


def _root(op: Op) -> int | None:
    """The rank whose rows an op sends to all, or sums over as they arrive."""
    return op.root if op.kind is OpKind.BROADCAST else op.scratch.own_block


def _held_bytes(sizes: Sizes, names: tuple[str, ...], held: Ints, columns: Mapping[str, Ints]) -> Ints:
    """Bytes of each stretch's buffer on its rank, in its turn."""
    nbytes = np.zeros(len(held), dtype=np.int64)
    for place, name in enumerate(names):
        mine = np.flatnonzero(held == place)
        for (epoch, step), chosen in _by_turn(columns, mine, not _varies(sizes, name)):
            nbytes[chosen] = all_copies_bytes(sizes, name, epoch, step)[columns["rank"][chosen]]
    return nbytes


def _by_turn(columns: Mapping[str, Ints], rows: Ints, static: bool) -> list[tuple[tuple[int, int], Ints]]:
    """Some rows by their turns, as ((epoch, step), rows); all of them with the first's where sizes are the same."""
    if not len(rows):  # an op of a template that no turn has
        return []
    epoch, step = columns["epoch"][rows], columns["step"][rows]
    if static:
        return [((int(epoch[0]), int(step[0])), rows)]
    order = np.lexsort((step, epoch))
    epoch, step = epoch[order], step[order]
    heads = np.flatnonzero(np.append(True, (np.diff(epoch) != 0) | (np.diff(step) != 0))[: len(rows)])
    parts = np.split(rows[order], heads[1:])
    return [((int(epoch[head]), int(step[head])), part) for head, part in zip(heads, parts, strict=True)]


def _varies(sizes: Sizes, name: str) -> bool:
    rows = sizes.program.buffers[name].rows
    if isinstance(rows, Decision):
        return rows.name in sizes.activity or isinstance(rows.bound, Column)
    return isinstance(rows, Column) and sizes.program.sizes.columns[rows.name].ndim > 1
