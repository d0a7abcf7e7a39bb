"""What sampling over a graph in parts sends: sizes of every request and reply of a run."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simgnn.program.sizes import Route

IntArray = NDArray[np.int64]
ID_BYTES, DEGREE_BYTES, NEIGHBOUR_BYTES = 8, 4, 8
"""Of a vertex that is asked for; of what answers it, and of each of its neighbours."""


@dataclass(frozen=True)
class SampleRequests:
    """Requests of every batch of a run, exact. ``asked``, ``returned`` int64 [hops, P, P, epochs, steps]: vertices that
    a rank (first P) asks of another (second P) at a hop, and neighbours that come back; the diagonal is what ranks draw
    of their own host's rows. A rank without a batch in a step asks for nothing, and serves as any other.
    """

    asked: IntArray
    returned: IntArray

    @property
    def hops(self) -> int:
        """L."""
        return len(self.asked)

    def answering(self, hop: int) -> Route:
        """Vertices asked for at ``hop`` (from 1), from the rank that answers to the one that asks: :data:`DEGREE_BYTES`
        each, and :data:`ID_BYTES` the other way."""
        return _route(np.swapaxes(self.asked[hop - 1], 0, 1))

    def returning(self, hop: int) -> Route:
        """Neighbours, from the rank that answers to the one that asks; :data:`NEIGHBOUR_BYTES` each."""
        return _route(np.swapaxes(self.returned[hop - 1], 0, 1))

    def drawn(self, hop: int) -> tuple[IntArray, IntArray]:
        """Vertices and neighbours that each rank draws from its host's rows for its own batch, [P, epochs, steps]."""
        return _diagonal(self.asked[hop - 1]), _diagonal(self.returned[hop - 1])

    def payload_bytes(self) -> IntArray:
        """Bytes from each rank (row) to each other in each step, int64 [P, P, epochs, steps].

        Source: docs/systems/distdgl.md, its sampling part. Counts go ahead beside them: 8 bytes a pair and hop, as
        control."""
        ids, replies = ID_BYTES * self.asked, DEGREE_BYTES * self.asked + NEIGHBOUR_BYTES * self.returned
        total: IntArray = (ids + np.swapaxes(replies, 1, 2)).sum(axis=0)
        ranks = np.arange(total.shape[0])
        total[ranks, ranks] = 0
        return total


def _diagonal(dense: IntArray) -> IntArray:
    """[P, P, ...] -> [P, ...]."""
    ranks = np.arange(len(dense))
    return np.asarray(dense[ranks, ranks])


def _route(dense: IntArray) -> Route:
    """From [sender, receiver, epochs, steps]; what stays is not sent."""
    apart = ~np.eye(len(dense), dtype=np.bool_)
    source, target = np.nonzero(dense.any(axis=(2, 3)) & apart)
    return Route(source.astype(np.int32), target.astype(np.int32), dense[source, target])
