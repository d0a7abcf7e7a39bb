"""Requests of tasks to other hosts, their replies, and the side that serves them. Who carries them does not matter."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import GraphError
from simgnn.sampling.batches.sizes import DEGREE_BYTES, ID_BYTES, NEIGHBOUR_BYTES
from simgnn.sampling.draw.parted import HostStructure
from simgnn.sampling.tasks.rows import gathered

IntArray = NDArray[np.int64]
GROUP_BYTES = 24
"""Bytes ahead of the ids of one sample request: batch seed, hop and branch, number of ids."""


@dataclass(frozen=True)
class SampleRequest:
    """Asks rank ``server`` for neighbours of its host's vertices ``lids`` int64 [k]: those that a batch with ``seed``
    draws at ``hop``. ``task``, ``part``: which task of the batch asks, and which of its requests this is.
    ``reply_bytes``: exact."""

    server: int
    task: int
    part: int
    seed: int
    hop: int
    branch: int
    lids: IntArray
    reply_bytes: int

    @property
    def ask_bytes(self) -> int:
        """Bytes of the request without its group of :data:`GROUP_BYTES`."""
        return ID_BYTES * len(self.lids)


@dataclass(frozen=True)
class RowRequest:
    """Asks rank ``server`` for input rows of its host's vertices ``lids`` int64 [k]; else as :class:`SampleRequest`."""

    server: int
    task: int
    part: int
    lids: IntArray
    reply_bytes: int

    @property
    def ask_bytes(self) -> int:
        """Bytes of the request."""
        return ID_BYTES * len(self.lids)


Request = SampleRequest | RowRequest


@dataclass(frozen=True)
class SampleReply:
    """``degrees`` int32 [k]: number of drawn neighbours of each requested vertex; ``neighbours`` int64: their gids."""

    degrees: NDArray[np.int32]
    neighbours: IntArray


Reply = SampleReply | NDArray[Any]
"""The reply to a :class:`RowRequest` is the rows [k, F]."""


def sample_reply_bytes(degrees: NDArray[Any], fanout: int) -> int:
    """Bytes of the reply to a request for neighbours of vertices with these full ``degrees`` [k]."""
    kept = degrees if fanout < 0 else np.minimum(degrees, fanout)
    return DEGREE_BYTES * len(degrees) + NEIGHBOUR_BYTES * int(kept.sum(dtype=np.int64))


@dataclass(frozen=True)
class Server:
    """Serves requests of other ranks from what this host holds: its part of the structure (None where each host has all
    of it) and its input rows ``table`` [n, F] (None where tasks fetch none). Any thread may call it."""

    structure: HostStructure | None
    table: NDArray[Any] | None
    fanouts: Sequence[int]

    def sample(self, seed: int, hop: int, lids: IntArray) -> SampleReply:
        """Draw what a batch with ``seed`` draws at ``hop`` for the vertices ``lids`` int64 [k] of this host. Raises
        :class:`GraphError` for a hop or a vertex that does not exist here."""
        if self.structure is None or not 1 <= hop <= len(self.fanouts):
            held = "the whole graph" if self.structure is None else f"{len(self.fanouts)} hops"
            raise GraphError(f"received a request to sample at hop {hop}, but this rank plans with {held}: {DIFFERENT}")
        reply = self.structure.serve(lids, (len(lids),), (seed,), hop, self.fanouts[hop - 1])
        return SampleReply(reply.degrees, reply.neighbours)

    def rows(self, lids: IntArray) -> NDArray[Any]:
        """Return input rows [k, F] of the vertices ``lids`` int64 [k] of this host. Raises :class:`GraphError` for a
        vertex that does not exist here."""
        table = self.table
        if table is None or (len(lids) and not 0 <= int(lids.min()) <= int(lids.max()) < len(table)):
            held = 0 if table is None else len(table)
            raise GraphError(f"received a request for input rows, but this host holds {held} of them: {DIFFERENT}")
        return gathered(table, lids)


DIFFERENT = "the ranks have different partitions or settings; prepare the run again"
