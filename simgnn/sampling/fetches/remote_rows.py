"""Rows of other hosts: the ranks that send them, the rows needed most often, and the rows that a cache saves."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.graph.csr import IndexArray
from simgnn.partition.edges import index_array
from simgnn.partition.local.contiguous_ids import IdMaps
from simgnn.partition.local.serving import Serving
from simgnn.program.sizes import IntArray
from simgnn.sampling.batches.epoch_file import Part


def rows_on_hosts(owner: NDArray[np.int32], rank_hosts: IntArray) -> IndexArray:
    """Row of each vertex in the memory of its host, int32 or int64 [V]: its id within the host's partition. ``owner``
    int32 [V], ranks; ``rank_hosts`` int64 [P]: 0..M-1, each with a rank."""
    hosts = rank_hosts.astype(np.int32)[owner]
    maps = IdMaps.of(hosts, Serving(tuple(rank_hosts.tolist())).parts)
    rows = index_array(len(owner), len(owner))
    np.subtract(maps.old2new, maps.node_map[hosts], out=rows, casting="same_kind")
    return rows


@dataclass(frozen=True)
class Sources:
    """The ranks that send a worker's rows. ``owner`` int32 [V], ranks; ``serving`` int64 [P]: the rank that sends the
    rows of each owner to the worker, by the rule of :class:`Serving`."""

    worker: int
    owner: NDArray[np.int32]
    serving: IntArray

    @classmethod
    def of_worker(cls, owner: NDArray[np.int32], rank_hosts: IntArray, worker: int) -> "Sources":
        """The sources of one of P ranks, whose hosts 0..M-1 are ``rank_hosts`` int64 [P]."""
        servers = Serving(tuple(rank_hosts.tolist())).servers[worker]
        return cls(worker, np.asarray(owner), servers[rank_hosts])

    @property
    def ranks(self) -> int:
        return len(self.serving)

    def of(self, vertices: NDArray[Any]) -> IntArray:
        """Return the rank that sends each row, int64 [n]; the worker itself for rows on its own host."""
        return np.asarray(self.serving[self.owner[vertices]])


@dataclass(frozen=True)
class Ranking:
    """The rows of other hosts that a worker needs in an epoch, or in a run, and how often.

    ``vertices`` [U], ascending; ``counts`` int32 [U]: batches that need each. The *order* is by descending count, ties
    by ascending id; a cache of n hot rows holds the first n, in slots 0..n-1. Source: RapidGNN, hot set
    (docs/systems/rapidgnn.md); ties are our decision.
    """

    vertices: IndexArray
    counts: NDArray[np.int32]

    @classmethod
    def of_part(cls, part: Part, sources: Sources) -> "Ranking":
        """Rank the rows of other hosts that the batches of one epoch need."""
        vertices, counts = part.remote
        far = sources.of(vertices) != sources.worker
        return cls(vertices[far], counts[far])

    @classmethod
    def of_run(cls, parts: Iterable[Part], sources: Sources) -> "Ranking":
        """Rank the rows of other hosts by their counts over several epochs; one epoch is in memory at a time."""
        vertices, counts = np.zeros(0, np.int32), np.zeros(0, np.int32)
        for part in parts:
            one = cls.of_part(part, sources)
            vertices, places = np.unique(np.concatenate((vertices, one.vertices)), return_inverse=True)
            counts = np.bincount(places, np.concatenate((counts, one.counts))).astype(np.int32)
        return cls(vertices, counts)

    @cached_property
    def order(self) -> IntArray:
        """Places in ``vertices``, the row most often needed first, int64 [U]."""
        return np.argsort(-self.counts, kind="stable")

    def hot(self, rows: int) -> IndexArray:
        """The vertices that a cache of ``rows`` rows holds, by slot [min(rows, U)]."""
        return self.vertices[self.order[:rows]]

    def places(self, vertices: NDArray[Any]) -> IntArray:
        """Place in the order of each of ``vertices`` [n], all of which the ranking holds, int64 [n]."""
        return self._places[np.searchsorted(self.vertices, vertices)]

    @cached_property
    def _places(self) -> IntArray:
        places = np.empty(len(self.order), np.int64)
        places[self.order] = np.arange(len(self.order))
        return places


def rankings(
    part_of: Callable[[int], Part], epochs: int, sources: Sources, whole_run: bool
) -> Callable[[Part], Ranking]:
    """Return the function that maps a worker's batches of an epoch to the ranking that decides what is cached: of the
    epoch, or with ``whole_run`` of all ``epochs``, which ``part_of`` opens at the first call. Source: RapidGNN, hot set
    (docs/systems/rapidgnn.md); the paper leaves open which of the two it means."""
    if not whole_run:
        return lambda part: Ranking.of_part(part, sources)
    of_run = cache(lambda: Ranking.of_run(map(part_of, range(epochs)), sources))
    return lambda part: of_run()


@dataclass(frozen=True)
class HitCurve:
    """The number of rows that a cache of any size saves, exact, summed over all rankings by which caches are filled.
    ``uses`` int64 [n]: batches that need the row at each place of its ranking; ``rankings`` int64 [n]: number of
    rankings that reach that place. A cache of n rows has ``uses[:n].sum()`` hits."""

    uses: IntArray
    rankings: IntArray

    @classmethod
    def of_ranking(cls, ranking: Ranking) -> "HitCurve":
        return cls(ranking.counts[ranking.order].astype(np.int64), np.ones(len(ranking.counts), np.int64))

    def __add__(self, other: "HitCurve") -> "HitCurve":
        uses, rankings = np.zeros((2, max(len(self.uses), len(other.uses))), np.int64)
        for one in (self, other):
            uses[: len(one.uses)] += one.uses
            rankings[: len(one.rankings)] += one.rankings
        return HitCurve(uses, rankings)

    @property
    def remote(self) -> int:
        """Rows of other hosts that batches need: what they pull without a cache."""
        return int(self.uses.sum())

    def hits(self, hot_rows: int) -> int:
        """Rows that batches find in a cache of ``hot_rows`` rows."""
        return int(self.uses[:hot_rows].sum())

    def pulled(self, hot_rows: int) -> int:
        """Count the rows that batches pull when caches hold ``hot_rows`` rows."""
        return self.remote - self.hits(hot_rows)

    def cached(self, hot_rows: int) -> int:
        """Rows that fill the caches, if each is filled completely."""
        return int(self.rankings[:hot_rows].sum())

    @property
    def enough(self) -> int:
        """The fewest rows of a cache that minimise the total of rows pulled, for batches and to fill caches."""
        return int(np.count_nonzero(self.uses > self.rankings))
