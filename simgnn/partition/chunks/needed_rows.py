"""Which rows each chunk of a partitioned graph needs, as masks: for each vertex, the chunks or batches that need it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.graph.bits import words_for
from simgnn.graph.csr import CSR
from simgnn.memory import check_memory
from simgnn.partition.chunks.bounds import chunk_bounds
from simgnn.partition.chunks.kernels import count_members, count_rows, mark_neighbors
from simgnn.partition.chunks.volumes import Volumes
from simgnn.partition.local.contiguous_ids import IdMaps
from simgnn.program.sizes import IntArray

Masks = NDArray[np.uint64]
MASKS_AT_ONCE = 4
"""Masks of all vertices that are in memory at the same time."""


@dataclass(frozen=True)
class ChunkedGraph:
    """An edge-cut whose partitions are divided into C contiguous chunks each.

    ``bounds`` int64 [P, C + 1]: first row of each chunk among the rows of its rank, in the order of ``ids``.
    ``order`` int64 [P, C]: the chunk that each rank works on in each batch, at first chunk j in batch j. ``with_self``:
    a chunk needs the rows of its own vertices, too.
    """

    csr: CSR
    ids: IdMaps
    bounds: IntArray
    order: IntArray
    with_self: bool = True

    @classmethod
    def of(
        cls, csr: CSR, owner: NDArray[np.int32], ranks: int, chunks: int, vertex_weight: float, with_self: bool
    ) -> "ChunkedGraph":
        """Divide each partition into ``chunks`` of equal work (:func:`chunk_bounds`). Raises :class:`ConfigError` for
        more chunks than a partition has vertices, and where masks do not fit into memory."""
        check_memory(
            (MASKS_AT_ONCE * 8 * words_for(chunks) + 32) * csr.rows,
            f"partition.chunks: dividing {csr.rows:,} vertices into {chunks} chunks a rank",
            "use fewer chunks, or a machine with more memory",
            ConfigError,
        )
        ids = IdMaps.of(owner, ranks)
        bounds = chunk_bounds(csr.degrees(), ids, chunks, vertex_weight)
        return cls(csr, ids, bounds, np.tile(np.arange(chunks), (ranks, 1)), with_self)

    def ordered(self, order: IntArray) -> "ChunkedGraph":
        """Return the same chunks in another order, int64 [P, C]."""
        return replace(self, order=order)

    @property
    def ranks(self) -> int:
        """Number of ranks P."""
        return self.ids.parts

    @property
    def chunks(self) -> int:
        """Number of chunks of each rank, C."""
        return int(self.bounds.shape[1]) - 1

    @property
    def positions(self) -> IntArray:
        """The batch in which each rank works on each chunk, int64 [P, C]."""
        return np.argsort(self.order, axis=1)

    def owned(self, rank: int) -> slice:
        """The gids of a rank's own vertices."""
        return slice(int(self.ids.node_map[rank]), int(self.ids.node_map[rank + 1]))

    def empty_masks(self) -> Masks:
        """Allocate masks in which no batch needs any vertex, uint64 [V, words], by gid."""
        return np.zeros((self.csr.rows, words_for(self.chunks)), dtype=np.uint64)

    def needed(self, rank: int) -> Masks:
        """Compute the batches in which ``rank`` needs the row of each vertex, uint64 [V, words], by gid."""
        masks = self.empty_masks()
        own = self.owned(rank)
        indptr, indices = np.asarray(self.csr.indptr), np.asarray(self.csr.indices)
        members, positions = self.ids.core(rank), self.positions[rank]
        mark_neighbors(
            indptr, indices, members, self.ids.old2new, self.bounds[rank], positions, own.start, self.with_self, masks
        )
        return masks

    def all_needed(self) -> Iterator[Masks]:
        """Yield :meth:`needed` of each rank, in rank order, one at a time."""
        return map(self.needed, range(self.ranks))

    def held(self, needed: Masks, transition: Masks, rank: int) -> Masks:
        """Turn ``needed`` of ``rank``, in place, into the batches in which its merged buffer holds each row: rows that
        it needs, and own rows that any rank needs."""
        own = self.owned(rank)
        needed[own] = transition[own]
        return needed


@dataclass(frozen=True)
class Measured:
    """What an order of chunks amounts to. ``buffer_rows`` int64 [P]: rows of each rank's merged buffer."""

    volumes: Volumes
    buffer_rows: IntArray


def measure_order(graph: ChunkedGraph, transition: Masks) -> Measured:
    """Count the volumes and merged buffers of a graph's chunks in their order. ``transition``: masks
    of the batches in which any rank needs each row, in this order."""
    whole = count_rows(transition, 0, 0)[0]
    needed = np.zeros((2, 2), dtype=np.int64)
    buffers = np.zeros(graph.ranks, dtype=np.int64)
    for rank, masks in enumerate(graph.all_needed()):
        own = graph.owned(rank)
        needed += count_rows(masks, own.start, own.stop)
        buffers[rank] = count_members(graph.held(masks, transition, rank), graph.chunks).max()
    (v_ori, v_reuse_only), (v_dd, v_ddr) = needed.tolist()
    v_p2p, v_ru = whole.tolist()
    return Measured(Volumes(v_ori, v_reuse_only, v_p2p, v_ru, v_dd, v_ddr), buffers)
