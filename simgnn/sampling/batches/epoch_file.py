"""One worker's batches of one epoch on disk: an artefact folder of flat arrays, read memory-mapped.

``index`` int64 [batches * (2 hops + 1)]: of each batch the rows after hops 0..L, then the edges of hops 1..L; with
prefix sums of it, the flat arrays ``vertices`` (ids), ``pointers`` (int32, hop after hop) and ``sources`` (int32) fall
into batches. ``remote_vertices`` (ascending) and ``remote_counts``: rows of other ranks that the epoch needs, and in
how many batches.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cached_property
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.graph.thread_pool import in_order
from simgnn.partition.folder import ArtifactWriter, OpenedArtifact
from simgnn.sampling.batches.plan import WorkerEpoch
from simgnn.sampling.batches.totals import BatchTally, Tally, tally_batch, tally_worker
from simgnn.sampling.draw.sampler import Batch, Block, Sampler

WHAT = "presampled"


def write_part(
    turn: WorkerEpoch, writer: ArtifactWriter, samplers: "SimpleQueue[Sampler]", done: Callable[[], None]
) -> Tally:
    """Sample and write every batch of ``turn``, with as many threads as there are ``samplers``.

    ``done`` is called after each batch. In memory are one batch a thread, one more, and 2 or 4 bytes a vertex of the
    graph.
    """
    plan = turn.plan
    owner = np.asarray(plan.owner)
    hops = len(plan.fanouts)

    def work(number: int) -> tuple[Batch, BatchTally]:
        sampler = samplers.get()
        try:
            batch = turn.sample(number, sampler)
        finally:
            samplers.put(sampler)
        return batch, tally_batch(batch, owner, turn.worker, plan.ranks)

    counts = np.zeros(plan.csr.rows, np.min_scalar_type(len(turn)))
    with ExitStack() as stack:
        index = stack.enter_context(writer.stream("index", np.int64))
        vertices = stack.enter_context(writer.stream("vertices", np.asarray(plan.csr.indices).dtype))
        pointers = stack.enter_context(writer.stream("pointers", np.int32))
        sources = stack.enter_context(writer.stream("sources", np.int32))

        def written() -> Iterator[BatchTally]:
            for batch, tally in in_order(work, len(turn), samplers.qsize()):
                index(np.concatenate((tally.vertices, tally.edges)))
                vertices(batch.vertices)
                for block in batch.blocks:
                    pointers(block.indptr)
                    sources(block.sources)
                yield tally
                done()

        total = tally_worker(written(), counts, turn.worker, hops, plan.ranks)
    remote = np.flatnonzero(counts)
    writer.array("remote_vertices", remote.astype(np.asarray(plan.csr.indices).dtype))
    writer.array("remote_counts", counts[remote].astype(np.int32))
    return total


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
        """Rows of other ranks that the epoch needs, ascending, and in how many batches each."""
        return self.folder.array("remote_vertices"), self.folder.array("remote_counts")

    @property
    def rows(self) -> NDArray[np.int64]:
        """Rows of every batch after hops 0..L, int64 [batches, L + 1]."""
        return self._index[:, : self._hops + 1]

    @property
    def edges(self) -> NDArray[np.int64]:
        """Edges of every batch by hop, int64 [batches, L]."""
        return self._index[:, self._hops + 1 :]

    def inputs(self, number: int) -> NDArray[Any]:
        """The ids of the input rows of batch ``number``; its blocks are not read."""
        row = int(self._starts[0][number])
        return self._arrays["vertices"][row : row + int(self.rows[number, -1])]

    def batch(self, number: int) -> Batch:
        """Batch ``number`` of 0..len-1, as it was sampled."""
        hops = self._hops
        sizes, edges = self.rows[number], self.edges[number]
        row, pointer, source = (int(starts[number]) for starts in self._starts)
        blocks = []
        for hop in range(hops):
            bounds = self._arrays["pointers"][pointer : pointer + sizes[hop] + 1]
            blocks.append(Block(bounds, self._arrays["sources"][source : source + edges[hop]]))
            pointer, source = pointer + int(sizes[hop]) + 1, source + int(edges[hop])
        return Batch(self._arrays["vertices"][row : row + int(sizes[-1])], sizes, tuple(blocks))

    @cached_property
    def _hops(self) -> int:
        return len(self.folder.details["made_from"]["fanouts"])

    @cached_property
    def _index(self) -> NDArray[np.int64]:
        return self.folder.array("index").reshape(-1, 2 * self._hops + 1)

    @cached_property
    def _starts(self) -> tuple[NDArray[np.int64], ...]:
        """Where each batch begins in ``vertices``, ``pointers`` and ``sources``."""
        lengths = (self.rows[:, -1], (self.rows[:, :-1] + 1).sum(axis=1), self.edges.sum(axis=1))
        return tuple(np.cumsum(length) - length for length in lengths)

    @cached_property
    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {name: self.folder.array(name) for name in ("vertices", "pointers", "sources")}
