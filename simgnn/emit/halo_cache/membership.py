"""The halo rows of all ranks, and which of them come first by the number of ranks that need their vertex.

Which rows are cached follows from the partition alone, so that both ends of a transfer know it and send no ids."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simgnn.program.sizes import IntArray, Route

Chosen = NDArray[np.bool_]


@dataclass(frozen=True)
class HaloRows:
    """The halo rows of all ranks, rank after rank, each rank's in the order of its halo buffer. int64 [n] each:
    ``vertex``: of the graph; ``owner``: the rank that computes it; ``holder``: the rank that has it in its halo.
    ``hosts`` int64 [P]: the host of each rank."""

    vertex: IntArray
    owner: IntArray
    holder: IntArray
    hosts: IntArray

    @classmethod
    def of(cls, halo: Route, vertex: IntArray, hosts: IntArray) -> "HaloRows":
        """Return the rows of the route ``halo``, whose vertices are listed by holder, and for each by owner."""
        order = np.lexsort((halo.source, halo.target))
        owner, holder = (
            np.repeat(ends[order], halo.rows[order]).astype(np.int64) for ends in (halo.source, halo.target)
        )
        return cls(np.asarray(vertex, np.int64), owner, holder, np.asarray(hosts, np.int64))

    @cached_property
    def overlap(self) -> IntArray:
        """How many ranks have the vertex of each row in their halo, int64 [n]. Source: CaPGNN, equation 2."""
        _, place, counts = np.unique(self.vertex, return_inverse=True, return_counts=True)
        found: IntArray = counts[place].astype(np.int64)
        return found

    @cached_property
    def on_the_wire(self) -> IntArray:
        """The rows in the order of the route: by owner, and for each by holder; int64 [n]."""
        return np.lexsort((self.holder, self.owner))  # stable, so rows of a pair stay in order

    @cached_property
    def host(self) -> IntArray:
        """The host of each row's holder, int64 [n]."""
        return self.hosts[self.holder]

    @cached_property
    def on_host(self) -> IntArray:
        """A number for each row, int64 [n], the same for rows of one vertex whose holders are on one host."""
        most = int(self.vertex.max(initial=0)) + 1
        found: IntArray = np.unique(self.host * most + self.vertex, return_inverse=True)[1]
        return found.astype(np.int64)

    def once_a_host(self, among: Chosen) -> Chosen:
        """Choose of the rows ``among`` the first of each vertex on each host, bool [n]: that of the lowest rank."""
        rows = np.flatnonzero(among)
        first = np.zeros(len(self.vertex), np.bool_)
        first[rows[np.unique(self.on_host[rows], return_index=True)[1]]] = True
        return first

    def first(
        self, group: IntArray, most: IntArray, among: Chosen, ascending: bool = False, preferred: Chosen | None = None
    ) -> Chosen:
        """Choose in each group the first ``most`` [groups] of the rows ``among``, bool [n]: ``preferred`` ones, then
        those with the largest overlap (``ascending``: the smallest), then those of the smallest vertices. ``group``
        int64 [n]."""
        rows = np.flatnonzero(among)
        overlap = self.overlap[rows] if ascending else -self.overlap[rows]
        later = np.zeros(len(rows), np.bool_) if preferred is None else ~preferred[rows]
        ordered = rows[np.lexsort((self.vertex[rows], overlap, later, group[rows]))]
        members = np.bincount(group[rows], minlength=len(most))
        place = np.arange(len(rows)) - np.repeat(np.cumsum(members) - members, members)
        chosen = np.zeros(len(self.vertex), np.bool_)
        chosen[ordered] = place < most[group[ordered]]
        return chosen
