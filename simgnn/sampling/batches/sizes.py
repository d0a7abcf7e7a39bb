"""How large every batch of a run is, and what it pulls: all that planning a program needs of presampled batches."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simgnn.program.sizes import Route
from simgnn.sampling.draw.request_sizes import SampleRequests

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class CacheSizes:
    """Caches of hot rows, one an epoch and rank. ``rows`` int64 [P]: of a rank's largest; ``first``: what fills epoch
    0's, from the rank that sends to the one that needs; ``pulled`` [pairs, epochs, steps]: what each step of an epoch
    brings of the next epoch's; ``kept`` int64 [P, epochs, steps]: what it copies from this one's."""

    rows: IntArray
    first: Route
    pulled: Route
    kept: IntArray


@dataclass(frozen=True)
class PartedSizes:
    """Sampling where each host holds a part of the structure. ``structure_bytes`` int64 [P]: of the part that each
    rank's host holds."""

    requests: SampleRequests
    structure_bytes: IntArray


@dataclass(frozen=True)
class BatchSizes:
    """Every batch of a run, int64 [P, epochs, steps] each; a rank without a batch in a step has zeros.

    ``rows`` [hops + 1, ...]: after each hop, entry 0 the seed vertices; ``edges`` [hops, ...]; of its input rows those
    in the memory of its host (``local``) and in the cache (``hits``); ``pulled``: the others, [pairs, epochs, steps]
    from the rank that sends to the one that needs. ``cache``: None without hot rows. ``training`` int64 [P]: training
    vertices of each rank. ``locality``: float64 [P, bins] by the names of tables of ``PartitionStats``, of one batch a
    rank. ``parted``: None where each rank draws alone.
    """

    rows: IntArray
    edges: IntArray
    local: IntArray
    hits: IntArray
    pulled: Route
    cache: CacheSizes | None
    training: IntArray
    locality: Mapping[str, NDArray[np.float64]]
    parted: PartedSizes | None = None

    @property
    def steps(self) -> int:
        """Training steps of an epoch."""
        return int(self.local.shape[-1])
