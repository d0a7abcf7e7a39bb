"""Batches of unsupervised training: seeds, a neighbour of each, and vertices that are none, each with its own blocks.

The three *branches* of a batch are drawn apart, from the seeds, from the distinct positives and from the distinct
negatives, and lie side by side in one :class:`~simgnn.sampling.draw.sampler.Batch`, so that layers compute all of them
with one set of weights: the rows of a hop are those of the seeds' branch, of the positives', of the negatives'. No edge
leads from one branch to another, and a vertex that two branches reach is two rows. Source: ByteGNN (Zheng et al., PVLDB
15(6), 2022, section 4.1), which leaves the draws open; docs/mini_batches.md.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.graph.csr import CSR
from simgnn.sampling.draw.pairs import NONE, branch_seeds, negatives, positives
from simgnn.sampling.draw.sampler import Batch, Block, Sampler

BRANCHES = 3
"""Block sets of a batch: of seeds, positives and negatives."""


class BranchSampler:
    """Samples batches of three branches of one graph, for one thread at a time, with ``negatives`` of each seed.
    ``fanouts``: as of :class:`~simgnn.sampling.draw.sampler.Sampler`."""

    def __init__(self, csr: CSR, fanouts: Sequence[int], negatives: int) -> None:
        self._sampler = Sampler(csr, fanouts)
        self._indptr, self._indices = np.asarray(csr.indptr), np.asarray(csr.indices)
        self.negatives, self.vertices = negatives, csr.rows

    def sample(self, seeds: NDArray[Any], batch_seed: int) -> Batch:
        """Sample the batch of distinct ``seeds`` [n]: a pure function of the graph's rows and the arguments. Raises
        :class:`~simgnn.errors.GraphError` like the sampler of one branch."""
        rows = self._indptr, self._indices, None, np.array(seeds, np.int64), batch_seed
        positive, negative = positives(*rows), negatives(*rows, self.negatives, self.vertices)
        starts = [rows[3], np.unique(positive), np.unique(negative[negative != NONE])]
        drawn = [
            self._sampler.sample(vertices, seed)
            for vertices, seed in zip(starts, branch_seeds(batch_seed, BRANCHES), strict=True)
        ]
        pairs = np.empty((len(seeds), 1 + self.negatives), np.int32)
        pairs[:, 0] = len(seeds) + np.searchsorted(starts[1], positive)
        first = len(seeds) + len(starts[1])
        pairs[:, 1:] = np.where(negative == NONE, NONE, first + np.searchsorted(starts[2], negative))
        return side_by_side(drawn, pairs)


def side_by_side(branches: Sequence[Batch], pairs: NDArray[np.int32]) -> Batch:
    """Join batches, whose vertices may overlap, to one without edges between them. ``pairs``: see :class:`Batch`."""
    sizes = np.stack([batch.sizes for batch in branches])
    total = sizes.sum(axis=0)
    fresh = np.diff(sizes, axis=1, prepend=0)
    before = np.concatenate(([0], total[:-1])) + np.cumsum(fresh, axis=0) - fresh  # first row of each branch and hop
    places = []
    for own, news, first in zip(sizes, fresh, before, strict=True):
        places.append((np.arange(own[-1]) + np.repeat(first - (own - news), news)).astype(np.int32))
    vertices = np.empty(total[-1], branches[0].vertices.dtype)
    for batch, place in zip(branches, places, strict=True):
        vertices[place] = batch.vertices
    blocks = []
    for hop in range(len(total) - 1):
        bounds = np.zeros(total[hop] + 1, np.int64)
        for batch, place in zip(branches, places, strict=True):
            bounds[1:][place[: batch.sizes[hop]]] = np.diff(batch.blocks[hop].indptr)
        np.cumsum(bounds, out=bounds)
        sources = np.empty(bounds[-1], np.int32)
        for batch, place in zip(branches, places, strict=True):
            block = batch.blocks[hop]
            moved = bounds[place[: batch.sizes[hop]]] - block.indptr[:-1]
            edges = np.repeat(moved, np.diff(block.indptr)) + np.arange(len(block.sources))
            sources[edges] = place[block.sources]
        blocks.append(Block(bounds.astype(np.int32), sources))
    return Batch(vertices, total, tuple(blocks), pairs)
