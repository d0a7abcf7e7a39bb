"""Sizes: how many rows, edges or elements an op processes on a rank, or bytes it holds, without naming the rank.

A size is a constant, a column (one number per rank, and optionally per step and epoch), or a decision: a number that
only training determines, with an upper bound. The executor's policies make decisions; the simulator reads them from a
record."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Column:
    """A named column of the program's size table: int64 of shape [P], [P, steps] or [P, epochs, steps]. Numbers of an
    evaluation of several steps stand behind those of the epoch's steps."""

    name: str


@dataclass(frozen=True, slots=True)
class Decision:
    """A named number that a policy decides during training; at most ``bound``."""

    name: str
    bound: "int | Column"


Size = int | Column | Decision


def reverse_of(route: str) -> str:
    """Return the name of the route of the same rows in the other direction; every route of a program has one."""
    return f"{route}/reverse"


@dataclass(frozen=True)
class Route:
    """How many rows travel from which rank to which: the sizes of a named list of indices in the partition.

    ``source``, ``target``: int32 [pairs], sorted by (source, target), no pair twice, no rank to itself. ``rows``: int64
    [pairs], or [pairs, steps], or [pairs, epochs, steps]. ``part_of``: the route of which this one has some pairs, with
    the same rows, or with those for which ``chosen`` is set, bool [rows of that route, pair after pair]; "": the index
    list has this route's own name. ``listed``: the buffer that names the sender's local rows (in the reverse route, the
    receiver's) in each turn, where a policy chooses them anew; "": they never change. ``slots``: the place of each row
    in memory that the ranks of a host share, int64 [rows, pair after pair] (None: they have none).
    """

    source: NDArray[np.int32]
    target: NDArray[np.int32]
    rows: IntArray
    part_of: str = ""
    listed: str = ""
    chosen: NDArray[np.bool_] | None = None
    slots: IntArray | None = None

    def at(self, epoch: int, step: int) -> IntArray:
        """Return the rows of every pair in one turn, int64 [pairs]."""
        return turn_of(self.rows, epoch, step)

    def reversed(self) -> "Route":
        """Return the route of the same rows in the other direction; that of chosen rows needs their whole route."""
        assert self.chosen is None, "see ProgramBuilder.rows_of"
        order = np.lexsort((self.source, self.target))
        part_of = self.part_of and reverse_of(self.part_of)
        return Route(self.target[order], self.source[order], self.rows[order], part_of, self.listed)

    def choose(self, name: str, chosen: NDArray[np.bool_], slots: IntArray | None = None) -> "Route":
        """Return the part of this route, called ``name``, that has the rows for which ``chosen`` is set, bool [rows],
        pair after pair; ``slots`` int64 [rows] likewise."""
        ends, totals = np.cumsum(self.rows), np.concatenate(([0], np.cumsum(chosen)))
        rows = (totals[ends] - totals[ends - self.rows]).astype(np.int64)
        kept = rows > 0
        theirs = None if slots is None else slots[chosen]
        return Route(self.source[kept], self.target[kept], rows[kept], name, chosen=chosen, slots=theirs)

    def turned(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values of this route's rows, [rows], pair after pair, in the order of the reversed route."""
        ends = np.cumsum(self.rows)
        order = np.lexsort((self.source, self.target))
        parts = [values[ends[pair] - self.rows[pair] : ends[pair]] for pair in order.tolist()]
        return np.concatenate([values[:0], *parts])

    def matrix(self, ranks: int, epoch: int = 0, step: int = 0) -> IntArray:
        """Return a dense int64 [P, P] matrix, element [i, j] = rows from i to j."""
        dense = np.zeros((ranks, ranks), dtype=np.int64)
        dense[self.source, self.target] = self.at(epoch, step)
        return dense

    @classmethod
    def from_matrix(cls, matrix: IntArray) -> "Route":
        """Build a route from a dense [P, P] matrix of rows; zero pairs are left out."""
        source, target = np.nonzero(matrix)
        return cls(source.astype(np.int32), target.astype(np.int32), matrix[source, target].astype(np.int64))

    @classmethod
    def from_turns(cls, dense: IntArray) -> "Route":
        """Build a route from dense numbers of rows [P, P, epochs, steps]; pairs without rows are left out."""
        source, target = np.nonzero(dense.any(axis=(2, 3)))
        return cls(source.astype(np.int32), target.astype(np.int32), dense[source, target])


def turn_of(column: IntArray, epoch: int, step: int) -> IntArray:
    """Return the slice [first axis] of a column in one turn (epoch, step); steps of evaluations are negative."""
    if column.ndim == 1:
        return column
    if column.ndim == 2:
        return np.asarray(column[:, step])
    return np.asarray(column[:, epoch, step])


@dataclass(frozen=True)
class SizeTable:
    """The columns and routes of a program."""

    ranks: int
    columns: Mapping[str, IntArray] = field(default_factory=dict)
    routes: Mapping[str, Route] = field(default_factory=dict)

    def is_reverse(self, route: str) -> bool:
        """Whether a route is the other direction of one that a planner has named."""
        return any(reverse_of(name) == route for name in self.routes)

    def per_rank(self, size: Size, epoch: int, step: int, decided: Mapping[str, IntArray] | None = None) -> IntArray:
        """Size on every rank in one turn, int64 [P]. A decision that is not in ``decided`` counts as its bound."""
        if isinstance(size, Decision):
            if decided is not None and size.name in decided:
                return decided[size.name]
            size = size.bound
        if isinstance(size, Column):
            return turn_of(self.columns[size.name], epoch, step)
        return np.full(self.ranks, size, dtype=np.int64)

    def most(self, size: Size) -> IntArray:
        """Return the largest value of a size over all turns on every rank, int64 [P]; for a decision, its bound."""
        if isinstance(size, Decision):
            size = size.bound
        if isinstance(size, Column):
            column = self.columns[size.name]
            return np.asarray(column.reshape(len(column), -1).max(axis=1))
        return np.full(self.ranks, size, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Term:
    """An amount of memory on a rank: ``row_bytes`` bytes for each of ``rows`` rows."""

    rows: Size
    row_bytes: int


Terms = tuple[Term, ...]
"""Bytes that are added up."""


def rows_of(rows: Size, row_bytes: int) -> Terms:
    """Return the memory of ``rows`` rows as terms; no term if a row has no bytes."""
    return (Term(rows, row_bytes),) if row_bytes else ()


@dataclass(frozen=True, slots=True)
class Scratch:
    """Scratch memory of an op beside its buffers, as its emitter states it. It is not part of the op's price or digest.

    The op holds the sum of ``terms`` while it runs, or the sum of ``at_least`` if that is larger. ``copied_last``:
    buffers that it writes last, as copies of others, so that they exist only when it has ended. ``own_block``: the rank
    that reads its own rows where the op names a block that has arrived on all others. ``handed_over``: on a CPU, the
    buffer that the op writes on the device shares the memory of the buffer that it reads on the host."""

    terms: Terms = ()
    at_least: Terms = ()
    copied_last: tuple[str, ...] = ()
    own_block: int | None = None
    handed_over: bool = False

    @property
    def sizes(self) -> tuple[Size, ...]:
        """All sizes that the bytes depend on."""
        return tuple(term.rows for term in self.terms + self.at_least)

    def at(self, size_of: Callable[[Size], IntArray]) -> IntArray:
        """Return the bytes on every rank, int64 [P]; ``size_of`` returns a size on every rank in the current turn."""
        held, least = (
            sum((size_of(term.rows) * term.row_bytes for term in terms), size_of(0))
            for terms in (self.terms, self.at_least)
        )
        return held.clip(min=least)


NO_SCRATCH = Scratch()
