"""Sizes: how many rows, edges or elements an op touches on a rank, without naming the rank.

A size is a constant, a column (one number a rank, and optionally a step and an epoch), or a decision: a number that
only training knows, with an upper bound. An activity supplies the decisions to the simulator; the executor makes them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Column:
    """A named column of the program's size table: int64 of shape [P], [P, steps] or [P, epochs, steps]."""

    name: str


@dataclass(frozen=True, slots=True)
class Decision:
    """A named number that a policy decides while training; never above ``bound``."""

    name: str
    bound: "int | Column"


Size = int | Column | Decision


def reverse_of(route: str) -> str:
    """Name of the route of the same rows in the other direction, which a program has beside every route."""
    return f"{route}/reverse"


@dataclass(frozen=True)
class Route:
    """How many rows travel from which rank to which: the sizes of a named list of indices that the partition keeps.

    ``source``, ``target``: int32 [pairs], sorted by (source, target), no pair twice, no rank to itself.
    ``rows``: int64 [pairs], or [pairs, steps], or [pairs, epochs, steps]. ``part_of``: the route that this one is a
    part of, with the same rows for some of its pairs; "": the list has this route's own name.
    """

    source: NDArray[np.int32]
    target: NDArray[np.int32]
    rows: IntArray
    part_of: str = ""

    def at(self, epoch: int, step: int) -> IntArray:
        """Rows of every pair in one turn, int64 [pairs]."""
        return turn_of(self.rows, epoch, step)

    def reversed(self) -> "Route":
        """The same rows in the other direction."""
        order = np.lexsort((self.source, self.target))
        part_of = self.part_of and reverse_of(self.part_of)
        return Route(self.target[order], self.source[order], self.rows[order], part_of)

    def matrix(self, ranks: int, epoch: int = 0, step: int = 0) -> IntArray:
        """Dense int64 [P, P], element [i, j] = rows from i to j."""
        dense = np.zeros((ranks, ranks), dtype=np.int64)
        dense[self.source, self.target] = self.at(epoch, step)
        return dense

    @classmethod
    def from_matrix(cls, matrix: IntArray) -> "Route":
        """From a dense [P, P] matrix of rows; zero pairs are left out."""
        source, target = np.nonzero(matrix)
        return cls(source.astype(np.int32), target.astype(np.int32), matrix[source, target].astype(np.int64))

    @classmethod
    def from_turns(cls, dense: IntArray) -> "Route":
        """From dense [P, P, epochs, steps] numbers of rows; pairs without any are left out."""
        source, target = np.nonzero(dense.any(axis=(2, 3)))
        return cls(source.astype(np.int32), target.astype(np.int32), dense[source, target])


def turn_of(column: IntArray, epoch: int, step: int) -> IntArray:
    """The slice [first axis] of a column in one turn (epoch, step)."""
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

    def per_rank(self, size: Size, epoch: int, step: int, decided: Mapping[str, IntArray] | None = None) -> IntArray:
        """A size on every rank in one turn, int64 [P]. A decision that is not in ``decided`` counts as its bound."""
        if isinstance(size, Decision):
            if decided is not None and size.name in decided:
                return decided[size.name]
            size = size.bound
        if isinstance(size, Column):
            return turn_of(self.columns[size.name], epoch, step)
        return np.full(self.ranks, size, dtype=np.int64)

    def most(self, size: Size) -> IntArray:
        """A size on every rank in the turn that has most of it there, int64 [P]; of a decision its bound."""
        if isinstance(size, Decision):
            size = size.bound
        if isinstance(size, Column):
            column = self.columns[size.name]
            return np.asarray(column.reshape(len(column), -1).max(axis=1))
        return np.full(self.ranks, size, dtype=np.int64)
