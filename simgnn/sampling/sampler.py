"""From seed vertices to blocks: one mini-batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import GraphError
from simgnn.graph.csr import CSR, IndexArray
from simgnn.sampling.choose import choose, count_choices
from simgnn.sampling.marks import list_marked, mark, number, rank_seeds, settle

MOST_EDGES = 2**31 - 1
"""Of one block: its pointers are int32."""


@dataclass(frozen=True)
class Block:
    """The sampled edges of one hop, by destination: edges point towards the seeds.

    ``indptr`` int32 [destinations + 1]; ``sources`` int32 [edges], places in the batch's ``vertices``. Destination k is
    place k, so that the first rows of a block's sources are its destinations themselves.
    """

    indptr: NDArray[np.int32]
    sources: NDArray[np.int32]


@dataclass(frozen=True)
class Batch:
    """A mini-batch. ``vertices`` [m], the ids of its input rows: seeds in their order, then what each hop brought in,
    ascending. ``sizes`` int64 [hops + 1]: the first ``sizes[h]`` are the rows after hop h; ``blocks[h - 1]`` is hop h.

    Layer l of L uses block L - l.
    """

    vertices: IndexArray
    sizes: NDArray[np.int64]
    blocks: tuple[Block, ...]

    @property
    def seeds(self) -> IndexArray:
        """The vertices whose outputs the batch is for."""
        return self.vertices[: self.sizes[0]]

    def global_sources(self, hop: int) -> Any:
        """Ids of the sources of every edge of ``hop`` (from 1)."""
        return self.vertices[self.blocks[hop - 1].sources]


class Sampler:
    """Samples batches of one graph. Keeps (hops + 1) * V / 4 bytes to work with; one thread at a time.

    ``fanouts``: neighbours of each vertex at most, by hop from the seeds; -1 for all. A vertex that an earlier hop
    brought in is expanded again at each later hop.
    """

    def __init__(self, csr: CSR, fanouts: Sequence[int]) -> None:
        self.fanouts = tuple(fanouts)
        self.vertices = csr.rows
        self._indptr = np.asarray(csr.indptr)  # Numba knows no memory-mapped arrays, NumPy sees them as plain ones
        self._indices = np.asarray(csr.indices)
        self._marks = np.zeros((len(self.fanouts) + 1, -(-csr.rows // 64), 2), np.uint64)

    def sample(self, seeds: NDArray[Any], batch_seed: int) -> Batch:
        """The batch of ``seeds``, different vertices [n], under a seed of ``simgnn.sampling.seeds.batch_seed``.

        A pure function of the graph's rows, ``seeds``, ``batch_seed`` and fan-outs. Raises :class:`GraphError` for
        seeds that are no vertices or not different, and for a block of 2**31 edges or more.
        """
        marks = self._marks
        marks[:] = 0
        vertices, places = self._seeds(seeds)
        sizes = [len(vertices)]
        blocks = []
        for hop, fanout in enumerate(self.fanouts, start=1):
            bounds = np.empty(len(vertices) + 1, np.int64)
            edges = count_choices(self._indptr, vertices, fanout, bounds)
            if edges > MOST_EDGES:
                raise GraphError(
                    f"batching.fanouts: hop {hop} of a batch would draw {edges} edges, expected at most {MOST_EDGES}: "
                    "lower batching.batch_size or the fan-outs"
                )
            chosen = np.empty(edges, self._indices.dtype)
            choose(self._indptr, self._indices, vertices, np.uint64(batch_seed), hop, bounds, chosen, marks[hop])
            fresh = np.empty(settle(marks, hop, len(vertices)), self._indices.dtype)
            list_marked(marks, hop, fresh)
            sources = np.empty(edges, np.int32)
            number(marks, hop, chosen, places, sources)
            blocks.append(Block(bounds.astype(np.int32), sources))
            vertices = np.concatenate((vertices, fresh))
            sizes.append(len(vertices))
        return Batch(vertices, np.array(sizes, np.int64), tuple(blocks))

    def _seeds(self, seeds: NDArray[Any]) -> tuple[Any, NDArray[np.int64]]:
        """The seeds in the type of the graph's ids, marked; and their places by id."""
        if len(seeds) and not 0 <= int(seeds.min()) <= int(seeds.max()) < self.vertices:
            raise GraphError(f"seeds: expected vertices 0..{self.vertices - 1}, got {seeds.min()}..{seeds.max()}")
        typed = seeds.astype(self._indices.dtype)
        mark(self._marks, typed)
        different = settle(self._marks, 0, 0)
        if different != len(typed):
            raise GraphError(f"seeds: got {len(typed)} of which {different} are different, expected no vertex twice")
        places = np.empty(len(typed), np.int64)
        rank_seeds(self._marks, typed, places)
        return typed, places
