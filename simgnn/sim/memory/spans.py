"""Spans of time in which ranks hold memory: for buffers, and for scratch memory of running ops."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

import numpy as np

from simgnn.program.program import Program, always_held, block_owner, made_once, received_blocks
from simgnn.program.sizes import Column, Decision, IntArray, Scratch
from simgnn.sim.engine.turn_sizes import Sizes
from simgnn.sim.network.flow_table import Bools, Ints

SCRATCH = "scratch"
"""Name that stands for a buffer's name in spans of scratch memory."""
COLUMNS = ("rank", "begin", "end", "nbytes", "buffer", "op_id", "epoch")


@dataclass(frozen=True)
class Spans:
    """Spans of ticks in which ``rank`` holds ``buffer`` (position in ``names``), allocated by ``op_id``; int64 [n]."""

    rank: Ints
    begin: Ints
    end: Ints
    nbytes: Ints
    buffer: Ints
    op_id: Ints
    epoch: Ints
    names: tuple[str, ...]

    def where(self, mask: Bools) -> "Spans":
        """Select the spans where a mask [n] is true."""
        return replace(self, **{name: getattr(self, name)[mask] for name in COLUMNS})

    def joined(self, other: "Spans") -> "Spans":
        """Append the spans of ``other``; its buffers get numbers after those of this object."""
        both = {name: np.concatenate((getattr(self, name), getattr(other, name))) for name in COLUMNS}
        return Spans(**both, names=(*self.names, *other.names))

    def in_space(self, program: Program, space: str) -> Bools:
        """Which spans belong to buffers in a memory space, bool [n]."""
        spaces = {name: program.buffers[name].space if name in program.buffers else "device" for name in self.names}
        return self.named({name for name, found in spaces.items() if found == space})

    def named(self, names: Set[str]) -> Bools:
        """Which spans belong to buffers with given names, bool [n]."""
        return np.isin(self.buffer, [place for place, name in enumerate(self.names) if name in names])

    def changes(self, place: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Allocations and (negative) releases [2 n] as (memory, span, tick, bytes), sorted by memory and tick, releases
        first. ``place`` [P]: the memory in which each rank's bytes count, such as its device."""
        here = place[self.rank]
        change = np.concatenate((self.nbytes, -self.nbytes))
        tick = np.concatenate((self.begin, self.end))
        order = np.lexsort((change, tick, np.tile(here, 2)))
        span = np.tile(np.arange(len(here)), 2)[order]
        return here[span], span, tick[order], change[order]

    def levels(self, place: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """Like :meth:`changes`, but with the bytes that the memory holds after each change."""
        here, span, tick, change = self.changes(place)
        # Every span ends, so the running sum is back at zero where the next place begins.
        return here, span, tick, np.cumsum(change)

    def peaks(self, always: Ints, place: Ints) -> IntArray:
        """Peak bytes in each memory (see :meth:`changes`), including the bytes ``always`` held there."""
        here, _, _, level = self.levels(place)
        most = np.zeros(len(always), dtype=np.int64)
        np.maximum.at(most, here, level)
        return np.asarray(always + most)


def buffer_spans(program: Program, sizes: Sizes, ticks: Mapping[str, Ints]) -> Spans:
    """Spans of buffers that are not permanent: one for each turn and rank, or one up to the end if :func:`made_once`.

    The root of a broadcast reads the rows where they are: it does not touch the buffer that others receive them in."""
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
    received = received_blocks(program)
    if received:
        roots = (block_owner(op) for _, op in program.ops)
        root = np.array([-1 if rank is None else rank for rank in roots])
        elsewhere = np.isin(buffer, [number[name] for name in received if name in number])
        kept_here = ~elsewhere | (root[ticks["op_id"][row]] != ticks["rank"][row])
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
    op_id, rank = ticks["op_id"][first], ticks["rank"][first]
    nbytes = np.zeros(len(held), dtype=np.int64)
    for place, name in enumerate(names):
        mine = np.flatnonzero(held == place)
        for (epoch, step), chosen in _by_turn(ticks, first[mine], not _varies(sizes, name)):
            nbytes[mine[chosen]] = all_copies_bytes(sizes, name, epoch, step)[rank[mine[chosen]]]
    copied = [
        at * len(names) + number[name]
        for at, (_, op) in enumerate(program.ops)
        for name in op.scratch.copied_last
        if name in number
    ]
    begins = np.where(np.isin(op_id * len(names) + held, copied), ticks["ended"][first], ticks["issued"][first])
    return Spans(rank, begins, ends, nbytes, held, op_id, ticks["epoch"][first], names)


def scratch_spans(program: Program, sizes: Sizes, ticks: Mapping[str, Ints], number: int) -> Spans:
    """Spans of the scratch memory of ops while they run, which counts as one more buffer with this ``number``."""
    nbytes = np.zeros(len(ticks["op_id"]), dtype=np.int64)
    for op_id, (_, op) in enumerate(program.ops):
        if not op.scratch.sizes:
            continue
        mine = np.flatnonzero(ticks["op_id"] == op_id)
        for (epoch, step), chosen in _by_turn(ticks, mine, sizes.are_static(op.scratch.sizes)):
            held_by_rank = scratch_bytes(sizes, op.scratch, epoch, step, op.name)
            nbytes[mine[chosen]] = held_by_rank[ticks["rank"][mine[chosen]]]
    held = np.flatnonzero(nbytes)
    rank, begin, end, op_ids, epochs = (ticks[name][held] for name in ("rank", "issued", "ended", "op_id", "epoch"))
    return Spans(rank, begin, end, nbytes[held], np.full(len(held), number), op_ids, epochs, (SCRATCH,))


def scratch_bytes(sizes: Sizes, scratch: Scratch, epoch: int, step: int, stated_by: str) -> IntArray:
    """Bytes of scratch memory that an op takes on every rank in one step of an epoch, int64 [P]."""
    return scratch.at(lambda size: sizes.at_most(size, epoch, step, stated_by))


def all_copies_bytes(sizes: Sizes, name: str, epoch: int, step: int) -> IntArray:
    """Bytes of all copies of a buffer on every rank, int64 [P]."""
    buffer = sizes.program.buffers[name]
    return sizes.at_most(buffer.rows, epoch, step, f"buffer {name}") * (buffer.row_bytes * buffer.depth)


def most_bytes(sizes: Sizes, name: str) -> IntArray:
    """Bytes of a permanent buffer, int64 [P]; where its number of rows varies by turn, the largest."""
    buffer = sizes.program.buffers[name]
    calendar = sizes.program.calendar
    stays = buffer.allocated_once or bool(calendar.unlike or calendar.evaluation)
    if not isinstance(buffer.rows, Column) or not stays:
        return all_copies_bytes(sizes, name, 0, 0)
    return sizes.program.sizes.most(buffer.rows) * (buffer.row_bytes * buffer.depth)


def _by_turn(ticks: Mapping[str, Ints], rows: Ints, static: bool) -> list[tuple[tuple[int, int], Ints]]:
    """Group rows by turn, as ((epoch, step), places in ``rows``); ``static``: one group, with the turn of the first."""
    if not len(rows):  # an op of a template that no turn has
        return []
    epoch, step = ticks["epoch"][rows], ticks["step"][rows]
    if static:
        return [((int(epoch[0]), int(step[0])), np.arange(len(rows)))]
    order = np.lexsort((step, epoch))
    parts = np.split(order, np.flatnonzero((np.diff(epoch[order]) != 0) | (np.diff(step[order]) != 0)) + 1)
    return [((int(epoch[part[0]]), int(step[part[0]])), part) for part in parts]


def _varies(sizes: Sizes, name: str) -> bool:
    rows = sizes.program.buffers[name].rows
    if isinstance(rows, Decision):
        return rows.name in sizes.activity or isinstance(rows.bound, Column)
    return isinstance(rows, Column) and sizes.program.sizes.columns[rows.name].ndim > 1
