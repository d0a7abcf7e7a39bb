"""Parts of buffers: whether two accesses ever touch the same row, from the columns that state their rows.

Only ranges can be proved apart. A whole buffer, listed rows, and rows that differ by epoch count as touching every
row. Steps are those of a stretch (:class:`simgnn.program.calendar.Stretch`): two accesses are compared in the same
turn, in different steps of one stretch, or anywhere else in the run, where no step of one may meet any step of the
other."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

import numpy as np

from simgnn.program.calendar import EVALUATE, Calendar
from simgnn.program.ops import Buffer, Part
from simgnn.program.sizes import Column, IntArray, SizeTable


class Use(NamedTuple):
    """How ops of one template touch a buffer in the steps of a stretch (its position in the calendar's stretches)."""

    template: str
    stretch: int
    part: Part | None
    writes: bool


class Ranges(NamedTuple):
    """Rows [first, end) that an access touches in each step of a stretch, int64 [P, steps]; ``step``: these steps."""

    first: IntArray
    end: IntArray
    step: IntArray


@dataclass(frozen=True)
class Overlaps:
    """Which uses of a program's buffers may touch the same row; answers are remembered."""

    calendar: Calendar
    sizes: SizeTable
    buffers: Mapping[str, Buffer]
    _ranges: dict[tuple[Part, str, int], Ranges | None] = field(default_factory=dict)
    _met: dict[tuple[str, str, Use, Use], bool] = field(default_factory=dict)

    def in_one_turn(self, buffer: str, one: Use, other: Use) -> bool:
        """Whether two uses may touch a common row in the same turn."""
        return self._known("turn", buffer, one, other)

    def in_other_steps(self, buffer: str, one: Use, other: Use) -> bool:
        """Whether two uses may touch a common row in different steps of their stretch."""
        return self._known("steps", buffer, one, other)

    def anywhere(self, buffer: str, one: Use, other: Use) -> bool:
        """Whether two uses may touch a common row in any two turns."""
        return self._known("anywhere", buffer, one, other)

    def _known(self, when: str, buffer: str, one: Use, other: Use) -> bool:
        key = when, buffer, one, other
        if key not in self._met:
            self._met[key] = self._meet(when, buffer, one, other)
        return self._met[key]

    def _meet(self, when: str, buffer: str, one: Use, other: Use) -> bool:
        first, second = self.ranges(one), self.ranges(other)
        if first is None or second is None:
            return True
        if self.buffers[buffer].space == "host-shared":  # rows of one rank may be those of another
            first, second = _of_all_ranks(first), _of_all_ranks(second)
        test = {"turn": _meet_in_a_step, "steps": _meet_in_other_steps, "anywhere": _meet_anywhere}[when]
        return any(test(_row(first, rank), _row(second, rank)) for rank in range(len(first.first)))

    def ranges(self, use: Use) -> Ranges | None:
        """Return the rows that a use touches in each step; None where they are not known to be a range."""
        part = use.part
        if part is None or part.places or part.width:
            return None
        key = part, use.template, use.stretch
        if key not in self._ranges:
            self._ranges[key] = self._range(part, use)
        return self._ranges[key]

    def _range(self, part: Part, use: Use) -> Ranges | None:
        if use.template == EVALUATE:
            steps = np.zeros(1, np.int64)
        else:
            steps = np.flatnonzero(np.array(self.calendar.stretch_of) == use.stretch)
        first, rows = (self._values(size, steps) for size in (part.first, part.rows))
        return None if first is None or rows is None else Ranges(first, first + rows, steps)

    def _values(self, size: int | Column, steps: IntArray) -> IntArray | None:
        column = self.sizes.columns[size.name] if isinstance(size, Column) else np.full(self.sizes.ranks, size)
        if column.ndim == 1:
            return np.repeat(np.asarray(column, dtype=np.int64)[:, None], len(steps), axis=1)
        return np.asarray(column[:, steps], dtype=np.int64) if column.ndim == 2 else None


def covers(overlaps: Overlaps, buffer: str, *uses: Use) -> bool:
    """Whether the ranges of some uses are apart and together all rows of a buffer, on every rank."""
    if any(use.part is None for use in uses):
        return True
    found = [ranges for use in uses if (ranges := overlaps.ranges(use)) is not None]
    if len(found) < len(uses):
        return False
    rows = overlaps.sizes.per_rank(overlaps.buffers[buffer].rows, 0, 0)
    held = sum(((ranges.end - ranges.first).sum(axis=1) for ranges in found), np.zeros_like(rows))
    if np.any(held != rows):
        return False
    within = any(overlaps.in_other_steps(buffer, use, use) for use in uses)
    return not within and not any(overlaps.anywhere(buffer, one, other) for one, other in combinations(uses, 2))


def _row(ranges: Ranges, rank: int) -> Ranges:
    """The steps in which a rank touches any row, ascending by their first row."""
    first, end = ranges.first[rank], ranges.end[rank]
    some = np.flatnonzero(end > first)
    order = some[np.argsort(first[some], kind="stable")]
    return Ranges(first[order], end[order], ranges.step[order])


def _of_all_ranks(ranges: Ranges) -> Ranges:
    step = np.tile(ranges.step, len(ranges.first))
    return Ranges(ranges.first.reshape(1, -1), ranges.end.reshape(1, -1), step)


def _meet_anywhere(one: Ranges, other: Ranges) -> bool:
    before = np.searchsorted(other.first, one.end, "left")  # ranges of the other that begin before this one ends
    farthest = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(other.end)))
    return bool(np.any(farthest[before] > one.first))


def _meet_in_a_step(one: Ranges, other: Ranges) -> bool:
    place = {step: number for number, step in enumerate(other.step.tolist())}
    if len(place) < len(other.step):  # several ranks have the step
        return _meet_anywhere(one, other)
    both = [(mine, place[step]) for mine, step in enumerate(one.step.tolist()) if step in place]
    mine, theirs = np.array(both, dtype=np.int64).reshape(-1, 2).T
    return bool(np.any((one.first[mine] < other.end[theirs]) & (other.first[theirs] < one.end[mine])))


def _meet_in_other_steps(one: Ranges, other: Ranges) -> bool:
    if np.any(other.first[1:] < other.end[:-1]):  # ranges that overlap among themselves: not looked at one by one
        return True
    low = np.searchsorted(other.end, one.first, "right")
    met = np.searchsorted(other.first, one.end, "left") - low
    alone = np.flatnonzero(met == 1)
    return bool(np.any(met > 1) or np.any(other.step[low[alone]] != one.step[alone]))
