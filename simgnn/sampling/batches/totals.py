"""What sampled batches add up to: rows and edges by hop, rows by owner, how often each remote row is needed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.program.sizes import IntArray
from simgnn.sampling.draw.sampler import Batch


@dataclass(frozen=True)
class Tally:
    """Sums over the batches of one worker in one epoch, or of several.

    ``vertices`` int64 [hops + 1]: rows after each hop (entry 0: seeds); ``edges`` int64 [hops]; ``largest`` int64
    [hops + 1]: most rows of one batch. ``rows`` int64 [P, P]: input rows that worker (row) needs of owner (column),
    once a batch. ``frequencies``: in how many batches of one worker and epoch a row of another rank is needed -> how
    many such rows there are.
    """

    batches: int
    vertices: IntArray
    edges: IntArray
    largest: IntArray
    rows: IntArray
    frequencies: Mapping[int, int]

    @classmethod
    def none(cls, hops: int, ranks: int) -> "Tally":
        """Of no batch."""
        rows = np.zeros(hops + 1, np.int64)
        return cls(0, rows, np.zeros(hops, np.int64), rows, np.zeros((ranks, ranks), np.int64), {})

    def __add__(self, other: "Tally") -> "Tally":
        frequencies = {
            times: self.frequencies.get(times, 0) + other.frequencies.get(times, 0)
            for times in sorted({*self.frequencies, *other.frequencies})
        }
        return Tally(
            self.batches + other.batches,
            self.vertices + other.vertices,
            self.edges + other.edges,
            np.maximum(self.largest, other.largest),
            self.rows + other.rows,
            frequencies,
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, of which :meth:`from_dict` makes the same again; ``rows`` as (worker, owner, rows)."""
        worker, owner = np.nonzero(self.rows)
        return {
            "batches": self.batches,
            "vertices": self.vertices.tolist(),
            "edges": self.edges.tolist(),
            "largest": self.largest.tolist(),
            "rows": np.stack((worker, owner, self.rows[worker, owner]), axis=1).tolist(),
            "frequencies": [list(entry) for entry in self.frequencies.items()],
        }

    @classmethod
    def from_dict(cls, table: Mapping[str, Any], ranks: int) -> "Tally":
        """What :meth:`as_dict` gave, for P = ``ranks``."""
        rows = np.zeros((ranks, ranks), np.int64)
        for worker, owner, number in table["rows"]:
            rows[worker, owner] = number
        vertices, edges, largest = (np.array(table[name], np.int64) for name in ("vertices", "edges", "largest"))
        frequencies = {int(times): int(held) for times, held in table["frequencies"]}
        return cls(int(table["batches"]), vertices, edges, largest, rows, frequencies)

    @property
    def duplicates(self) -> IntArray:
        """Sampled edges of each hop whose source the batch held already: rows that deduplication saves."""
        return self.edges - np.diff(self.vertices)

    def remote_rows(self, places: IntArray) -> int:
        """Input rows owned elsewhere than at the worker's place; ``places`` [P]: a number for each rank, or host."""
        return int(self.rows[places[:, None] != places[None, :]].sum())


@dataclass(frozen=True)
class BatchTally:
    """What one batch adds: ``owners`` int64 [P] input rows by owner; ``remote``: ids of rows that others own."""

    vertices: IntArray
    edges: IntArray
    owners: IntArray
    remote: NDArray[Any]


def tally_batch(batch: Batch, owner: NDArray[np.int32], worker: int, ranks: int) -> BatchTally:
    """Sizes of a batch of ``worker``, and its input rows by ``owner`` int32 [V]."""
    owners = owner[batch.vertices]
    edges = np.array([len(block.sources) for block in batch.blocks], np.int64)
    counts = np.bincount(owners, minlength=ranks).astype(np.int64)
    return BatchTally(batch.sizes, edges, counts, batch.vertices[owners != worker])


def tally_worker(batches: Iterable[BatchTally], counts: NDArray[Any], worker: int, hops: int, ranks: int) -> Tally:
    """The sum over one worker's batches of an epoch.

    ``counts`` unsigned [V], all 0 before; after: the batches in which each row of another rank is needed.
    """
    number = 0
    vertices, largest = np.zeros(hops + 1, np.int64), np.zeros(hops + 1, np.int64)
    edges, rows = np.zeros(hops, np.int64), np.zeros((ranks, ranks), np.int64)
    for batch in batches:
        number += 1
        vertices += batch.vertices
        edges += batch.edges
        np.maximum(largest, batch.vertices, out=largest)
        rows[worker] += batch.owners
        counts[batch.remote] += 1  # a row occurs once in a batch
    times, held = np.unique(counts[counts > 0], return_counts=True)
    frequencies = dict(zip(times.tolist(), held.tolist(), strict=True))
    return Tally(number, vertices, edges, largest, rows, frequencies)
