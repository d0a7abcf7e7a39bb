"""A small random graph in chunks: which rows each rank loads, reads from peers, sends back and evicts in each batch,
and where they lie. Sets, slots and lists are written down from the definitions of HongTu's transfers, vertex by vertex.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simgnn.program.sizes import Route

Ints = NDArray[np.int64]


class Lists(NamedTuple):
    """Lists of rows of one rank, batch after batch. ``rows`` [n, 1]; ``first``, ``count`` [batches]: that of each."""

    rows: Ints
    first: Ints
    count: Ints


@dataclass(frozen=True)
class ChunkedGraph:
    """``vertices`` in ``ranks`` blocks of consecutive ids, each in ``chunks`` chunks, none of them of equal size."""

    ranks: int
    chunks: int
    vertices: int = 60
    seed: int = 0

    @cached_property
    def weights(self) -> NDArray[np.float64]:
        """Edge weights [destination, source]; zero: no edge."""
        random = np.random.default_rng(self.seed)
        edges = random.random((self.vertices, self.vertices)) < 0.06
        np.fill_diagonal(edges, True)
        return np.where(edges, random.integers(1, 9, edges.shape) / 8, 0.0)

    @cached_property
    def starts(self) -> Ints:
        """The first vertex of each rank, and the number of vertices."""
        return _uneven(0, self.vertices, self.ranks)

    def own(self, rank: int) -> range:
        """The vertices of a rank."""
        return range(int(self.starts[rank]), int(self.starts[rank + 1]))

    def chunk(self, rank: int, batch: int) -> range:
        """The destinations of a rank in a batch."""
        ends = _uneven(int(self.starts[rank]), int(self.starts[rank + 1]), self.chunks)
        return range(int(ends[batch]), int(ends[batch + 1]))

    def owner(self, vertex: int) -> int:
        return int(np.searchsorted(self.starts, vertex, "right")) - 1

    def needed(self, rank: int, batch: int) -> list[int]:
        """N: sources of the chunk's edges, and its own rows (each vertex has an edge to itself)."""
        return np.flatnonzero(self.weights[list(self.chunk(rank, batch))].any(axis=0)).tolist()

    def transition(self, rank: int, batch: int) -> list[int]:
        """T: the rank's own rows that any rank needs."""
        everyone = {vertex for other in range(self.ranks) for vertex in self.needed(other, batch)}
        return sorted(everyone & set(self.own(rank)))

    def loaded(self, rank: int, batch: int) -> list[int]:
        """Rows of T that do not lie in the merged buffer from the batch before."""
        before = self.transition(rank, batch - 1) if batch else []
        return sorted(set(self.transition(rank, batch)) - set(before))

    def evicted(self, rank: int, batch: int) -> list[int]:
        """Rows of T that do not stay for the next batch."""
        after = self.transition(rank, batch + 1) if batch + 1 < self.chunks else []
        return sorted(set(self.transition(rank, batch)) - set(after))

    def remote(self, rank: int, batch: int) -> list[int]:
        """R: needed rows of other ranks."""
        return sorted(set(self.needed(rank, batch)) - set(self.own(rank)))

    def read(self, rank: int, batch: int) -> list[int]:
        """Rows of R that do not lie in the merged buffer from the batch before."""
        before = self.needed(rank, batch - 1) if batch else []
        return sorted(set(self.remote(rank, batch)) - set(before))

    @cached_property
    def slots(self) -> list[list[dict[int, int]]]:
        """The slot of each row of the merged buffer, by rank and batch; rows that stay keep theirs."""
        return [self._slots_of(rank) for rank in range(self.ranks)]

    def _slots_of(self, rank: int) -> list[dict[int, int]]:
        free: list[int] = []
        top, before, found = 0, dict[int, int](), []
        for batch in range(self.chunks):
            held = set(self.transition(rank, batch)) | set(self.remote(rank, batch))
            for vertex in sorted(before.keys() - held):
                heappush(free, before[vertex])
            here = {vertex: before[vertex] for vertex in held & before.keys()}
            for vertex in sorted(held - before.keys()):
                if free:
                    here[vertex] = heappop(free)
                else:
                    here[vertex], top = top, top + 1
            found.append(here)
            before = here
        return found

    @cached_property
    def merged_rows(self) -> Ints:
        """Rows of each rank's merged buffer [P]."""
        return np.array([1 + max(max(slots.values()) for slots in batches) for batches in self.slots])

    def lists(self, rank: int, of: Callable[[int], Sequence[int]]) -> Lists:
        """Join the lists of all batches."""
        parts = [np.asarray(of(batch), np.int64) for batch in range(self.chunks)]
        count = np.array([len(part) for part in parts])
        return Lists(np.concatenate(parts)[:, None], np.cumsum(count) - count, count)

    def local(self, rank: int, vertices: Sequence[int]) -> list[int]:
        """Rows of vertices among their owner's."""
        return [vertex - int(self.starts[rank]) for vertex in vertices]

    def placed(self, rank: int, batch: int, vertices: Sequence[int]) -> list[int]:
        """Slots of vertices in a rank's merged buffer."""
        return [self.slots[rank][batch][vertex] for vertex in vertices]

    def by_owner(self, rank: int, vertices: Sequence[int]) -> list[int]:
        """Vertices by their owners, ascending; a rank's ids are consecutive, so that this is the order of ids."""
        return sorted(vertices, key=lambda vertex: (self.owner(vertex), vertex))

    def named(self, rank: int, name: str) -> Lists:
        """A list of rows of a rank: what is loaded (from, to), read from peers (sent, received), pushed back (owned,
        collected), cleared and evicted (from, to)."""
        others = [other for other in range(self.ranks) if other != rank]

        def asked(batch: int, of: Callable[[int, int], list[int]]) -> list[int]:
            return [v for other in others for v in of(other, batch) if self.owner(v) == rank]

        lists: dict[str, Callable[[int], Sequence[int]]] = {
            "load_from": lambda j: self.local(rank, self.loaded(rank, j)),
            "load_to": lambda j: self.placed(rank, j, self.loaded(rank, j)),
            "sent": lambda j: self.placed(rank, j, asked(j, self.read)),
            "received": lambda j: self.placed(rank, j, self.by_owner(rank, self.read(rank, j))),
            "owned": lambda j: self.placed(rank, j, sorted(set(self.needed(rank, j)) & set(self.own(rank)))),
            "collected": lambda j: self.placed(rank, j, asked(j, self.remote)),
            "evict_from": lambda j: self.placed(rank, j, self.evicted(rank, j)),
            "evict_to": lambda j: self.local(rank, self.evicted(rank, j)),
        }
        return self.lists(rank, lists[name])

    def columns(self, name: str, batches: Sequence[int]) -> dict[str, Ints]:
        """The columns of a list by step: rows of the whole list [P], its part in each step; see :func:`by_step`."""
        lists = [self.named(rank, name) for rank in range(self.ranks)]
        first, count = (np.stack([getattr(one, field) for one in lists]) for field in ("first", "count"))
        return {
            f"{name}/all": np.array([len(one.rows) for one in lists]),
            f"{name}/first": by_step(first, batches),
            f"{name}/rows": by_step(count, batches),
        }

    def chunk_columns(self, batches: Sequence[int]) -> dict[str, Ints]:
        """The columns of the chunks' own rows among their rank's, by step: "own/first" and "own/rows"."""
        chunks = [[self.chunk(rank, batch) for batch in range(self.chunks)] for rank in range(self.ranks)]
        first = np.array([[chunk.start - self.starts[rank] for chunk in of] for rank, of in enumerate(chunks)])
        rows = np.array([[len(chunk) for chunk in of] for of in chunks])
        return {"own/first": by_step(first, batches), "own/rows": by_step(rows, batches)}

    def route(self, of: Callable[[int, int], list[int]], steps: int, batches: Sequence[int]) -> Route:
        """Rows from owners to ranks that need them, by step; ``batches``: the batch of each step, -1: none."""
        dense = np.zeros((self.ranks, self.ranks, steps), dtype=np.int64)
        for step, batch in enumerate(batches):
            for rank in range(self.ranks) if batch >= 0 else ():
                for vertex in of(rank, batch):
                    dense[self.owner(vertex), rank, step] += 1
        source, target = np.nonzero(dense.any(axis=2))
        return Route(source.astype(np.int32), target.astype(np.int32), dense[source, target])


def by_step(per_batch: Ints, batches: Sequence[int]) -> Ints:
    """Numbers [P, steps] from numbers [P, batches]; ``batches``: the batch of each step, -1: zero."""
    wide = np.concatenate([per_batch, np.zeros((len(per_batch), 1), np.int64)], axis=1)
    return wide[:, list(batches)]


def _uneven(begin: int, end: int, parts: int) -> Ints:
    shares = np.cumsum(np.arange(parts) + 3)
    return np.concatenate(([begin], begin + (end - begin) * shares // shares[-1]))
