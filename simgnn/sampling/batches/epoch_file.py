"""One worker's batches of one epoch in memory-mapped files, and :class:`Tally`, sums over them.

``index`` int64 [batches * (2 hops + 1)]: for each batch its number of rows after hops 0..L, then of edges in hops 1..L.
Their prefix sums are offsets of the batches in the flat arrays ``vertices`` (ids), ``pointers`` (int32, hop after hop)
and ``sources`` (int32). ``remote_vertices`` (ascending): rows of other ranks that the epoch needs; ``remote_counts``:
number of batches that need each. Batches of unsupervised training have their pairs in ``pairs`` (int32), and the
numbers of them in ``pair_counts`` int64 [batches].
"""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.graph.thread_pool import in_order
from simgnn.partition.folder import ArtifactWriter, OpenedArtifact
from simgnn.program.sizes import IntArray
from simgnn.sampling.batches.plan import WorkerEpoch
from simgnn.sampling.draw.branches import BranchSampler
from simgnn.sampling.draw.sampler import Batch, Block, Sampler

WHAT = "presampled"


@dataclass(frozen=True)
class Tally:
    """Sums over the batches of one worker in one epoch, or of several workers and epochs.

    ``vertices`` int64 [hops + 1]: rows after each hop (entry 0: seeds); ``edges`` int64 [hops]; ``largest`` int64 [hops
    + 1]: most rows of one batch. ``rows[w, o]`` int64 [P, P]: input rows of worker w that rank o owns.
    ``frequencies[n]``: number of rows of other ranks that a worker needs in n batches of an epoch.
    """

    batches: int
    vertices: IntArray
    edges: IntArray
    largest: IntArray
    rows: IntArray
    frequencies: Mapping[int, int]

    def __add__(self, other: "Tally") -> "Tally":
        frequencies = dict(sorted((Counter(self.frequencies) + Counter(other.frequencies)).items()))
        return Tally(
            self.batches + other.batches,
            self.vertices + other.vertices,
            self.edges + other.edges,
            np.maximum(self.largest, other.largest),
            self.rows + other.rows,
            frequencies,
        )

    def as_dict(self) -> dict[str, Any]:
        """Convert to plain values, with ``rows`` as (worker, owner, rows); :meth:`from_dict` is the inverse."""
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
        rows = np.zeros((ranks, ranks), np.int64)
        for worker, owner, number in table["rows"]:
            rows[worker, owner] = number
        vertices, edges, largest = (np.array(table[name], np.int64) for name in ("vertices", "edges", "largest"))
        frequencies = {int(times): int(held) for times, held in table["frequencies"]}
        return cls(int(table["batches"]), vertices, edges, largest, rows, frequencies)

    @property
    def duplicates(self) -> IntArray:
        """Count the sampled edges of each hop whose source was already in the batch: rows that deduplication saves."""
        return self.edges - np.diff(self.vertices)

    def remote_rows(self, places: IntArray) -> int:
        """Count input rows whose owner and worker differ in ``places`` [P], the number or the host of each rank."""
        return int(self.rows[places[:, None] != places[None, :]].sum())


def write_part(
    turn: WorkerEpoch,
    writer: ArtifactWriter,
    samplers: "SimpleQueue[Sampler | BranchSampler]",
    done: Callable[[], None],
) -> Tally:
    """Sample and write every batch of the worker and epoch ``turn``, with a thread for each of ``samplers``. ``done``
    is called after each batch. Memory: one batch per thread, one more, and 1 to 4 bytes per vertex of the graph."""
    plan, worker, owner = turn.plan, turn.worker, np.asarray(turn.plan.owner)
    hops = len(plan.fanouts)

    def work(number: int) -> tuple[Batch, IntArray, NDArray[Any]]:
        """Sample a batch; also return its input rows by owner, int64 [P], and the ids of those that others own."""
        sampler = samplers.get()
        try:
            batch = turn.sample(number, sampler)
        finally:
            samplers.put(sampler)
        owners = owner[batch.vertices]
        return batch, np.bincount(owners, minlength=plan.ranks), batch.vertices[owners != worker]

    counts = np.zeros(plan.csr.rows, np.min_scalar_type(len(turn)))
    rows, largest = np.zeros((2, hops + 1), np.int64)
    edges, by_owner = np.zeros(hops, np.int64), np.zeros((plan.ranks, plan.ranks), np.int64)
    with ExitStack() as stack:
        index = stack.enter_context(writer.stream("index", np.int64))
        vertices = stack.enter_context(writer.stream("vertices", np.asarray(plan.csr.indices).dtype))
        pointers = stack.enter_context(writer.stream("pointers", np.int32))
        sources = stack.enter_context(writer.stream("sources", np.int32))
        pairs = stack.enter_context(writer.stream("pairs", np.int32)) if plan.negatives else None
        for batch, owned, far in in_order(work, len(turn), samplers.qsize()):
            drawn = np.array([len(block.sources) for block in batch.blocks], np.int64)
            index(np.concatenate((batch.sizes, drawn)))
            vertices(batch.vertices)
            for block in batch.blocks:
                pointers(block.indptr)
                sources(block.sources)
            if pairs is not None and batch.pairs is not None:
                pairs(batch.pairs.reshape(-1))
            rows += batch.sizes
            edges += drawn
            np.maximum(largest, batch.sizes, out=largest)
            by_owner[worker] += owned
            counts[far] += 1  # once in a batch, even where several of its rows are one vertex
            done()
    if plan.negatives:
        writer.array("pair_counts", (1 + plan.negatives) * plan.seeds_in(worker))
    remote = np.flatnonzero(counts)
    writer.array("remote_vertices", remote.astype(np.asarray(plan.csr.indices).dtype))
    writer.array("remote_counts", counts[remote].astype(np.int32))
    times, held = np.unique(counts[remote], return_counts=True)
    frequencies = dict(zip(times.tolist(), held.tolist(), strict=True))
    return Tally(len(turn), rows, edges, largest, by_owner, frequencies)


class Part(OpenedArtifact):
    """The written batches of one worker and epoch: views of memory-mapped files."""

    what = WHAT

    @cached_property
    def tally(self) -> Tally:
        details = self.folder.details
        return Tally.from_dict(details["tally"], int(details["made_from"]["ranks"]))

    def __len__(self) -> int:
        return len(self._index)

    @cached_property
    def remote(self) -> tuple[NDArray[Any], NDArray[np.int32]]:
        """Return the rows of other ranks that the epoch needs, ascending, and the number of batches that need each."""
        return self.folder.array("remote_vertices"), self.folder.array("remote_counts")

    @property
    def rows(self) -> NDArray[np.int64]:
        """Number of rows of every batch after hops 0..L, int64 [batches, L + 1]."""
        return self._index[:, : self._hops + 1]

    @property
    def edges(self) -> NDArray[np.int64]:
        """Number of edges of every batch by hop, int64 [batches, L]."""
        return self._index[:, self._hops + 1 :]

    def inputs(self, number: int) -> NDArray[Any]:
        """Return the ids of the input rows of batch ``number``, without reading its blocks."""
        row = int(self._starts[0][number])
        return self._arrays["vertices"][row : row + int(self.rows[number, -1])]

    def distinct_inputs(self, number: int) -> NDArray[Any]:
        """Like :meth:`inputs`, with each vertex once: in unsupervised training it may be several rows of a batch."""
        return np.unique(self.inputs(number)) if self._negatives else self.inputs(number)

    def batch(self, number: int) -> Batch:
        hops = self._hops
        sizes, edges = self.rows[number], self.edges[number]
        row, pointer, source = (int(starts[number]) for starts in self._starts)
        blocks = []
        for hop in range(hops):
            bounds = self._arrays["pointers"][pointer : pointer + sizes[hop] + 1]
            blocks.append(Block(bounds, self._arrays["sources"][source : source + edges[hop]]))
            pointer, source = pointer + int(sizes[hop]) + 1, source + int(edges[hop])
        return Batch(self._arrays["vertices"][row : row + int(sizes[-1])], sizes, tuple(blocks), self._pairs(number))

    def _pairs(self, number: int) -> NDArray[np.int32] | None:
        if not self._negatives:
            return None
        ends = np.cumsum(self.folder.array("pair_counts"))
        found = self.folder.array("pairs")[ends[number] - self.folder.array("pair_counts")[number] : ends[number]]
        return np.asarray(found).reshape(-1, 1 + self._negatives)

    @cached_property
    def _negatives(self) -> int:
        return int(self.folder.details["made_from"].get("negatives", 0))

    @cached_property
    def _hops(self) -> int:
        return len(self.folder.details["made_from"]["fanouts"])

    @cached_property
    def _index(self) -> NDArray[np.int64]:
        return self.folder.array("index").reshape(-1, 2 * self._hops + 1)

    @cached_property
    def _starts(self) -> tuple[NDArray[np.int64], ...]:
        """Offsets at which each batch begins in ``vertices``, ``pointers`` and ``sources``."""
        lengths = (self.rows[:, -1], (self.rows[:, :-1] + 1).sum(axis=1), self.edges.sum(axis=1))
        return tuple(np.cumsum(length) - length for length in lengths)

    @cached_property
    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {name: self.folder.array(name) for name in ("vertices", "pointers", "sources")}
