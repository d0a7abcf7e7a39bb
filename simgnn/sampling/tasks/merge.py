"""The last task of a batch: pieces that tasks drew, in any order, become the blocks of the one-shot sampler."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simgnn.graph.bits import ones
from simgnn.sampling.draw.sampler import Assembly, Block, mark, number, position
from simgnn.sampling.tasks.structure import Piece

_ONE = np.uint64(1)


class PiecedAssembly(Assembly):
    """Builds the batch of one branch. The bits of hop h are at once the claims of that hop: whatever entered a front
    there, that is the frontier of hop h - 1 and all neighbours that it drew."""

    def claims(self, hop: int) -> NDArray[np.uint64]:
        """The claims of a hop, flat, with stride 2 (:mod:`simgnn.sampling.tasks.claims`)."""
        flat: NDArray[np.uint64] = self._marks[hop].reshape(-1)
        return flat

    def merge(self, pieces: Sequence[Piece], claimed: bool) -> None:
        """End the next hop, for which ``pieces`` hold each vertex of the frontier exactly once. ``claimed``: tasks have
        claimed the neighbours that they drew."""
        hop = self.hop
        if not claimed:
            for piece in pieces:
                mark(self._marks[hop : hop + 1], piece.chosen)
        fresh = self._settled(hop)
        places, bounds = [], np.zeros(len(self.frontier) + 1, np.int64)
        for piece in pieces:
            place = np.empty(len(piece.vertices), np.int64)
            number(self._marks, hop - 1, piece.vertices, self._places, place)
            _put_lengths(place, piece.bounds, bounds)
            places.append(place)
        assert sum(map(len, places)) == len(self.frontier), "tasks claim each vertex of a frontier exactly once"
        np.cumsum(bounds, out=bounds)
        self.check_edges(int(bounds[-1]))
        sources = np.empty(int(bounds[-1]), np.int32)
        for piece, place in zip(pieces, places, strict=True):
            _put_sources(self._marks, hop, self._places, place, piece.bounds, piece.chosen, bounds, sources)
        self._grow(fresh, Block(bounds.astype(np.int32), sources))

    def positions(self, vertices: Any) -> NDArray[np.int32]:
        """Positions of ``vertices`` [k] among all vertices of the batch, whose hops have all ended, int32 [k]."""
        out = np.empty(len(vertices), np.int32)
        number(self._marks, self.hop - 1, vertices, self._places, out)
        return out


@njit(cache=True, nogil=True)
def _put_lengths(places: Any, starts: Any, bounds: Any) -> None:
    for k in range(len(places)):
        bounds[places[k] + 1] = starts[k + 1] - starts[k]


@njit(cache=True, nogil=True)
def _put_sources(
    marks: Any, hop: Any, seed_places: Any, places: Any, starts: Any, chosen: Any, bounds: Any, sources: Any
) -> None:
    """Write the positions of the neighbours of row ``places[k]`` to ``sources`` from ``bounds[places[k]]`` on."""
    for k in range(len(places)):
        at = bounds[places[k]]
        for j in range(starts[k], starts[k + 1]):
            sources[at] = position(marks, hop, chosen[j], seed_places)
            at += 1


@njit(cache=True, nogil=True)
def ranks_among(bits: Any, vertices: Any, out: Any) -> None:
    """Write the rank of each of ``vertices`` among a set; ``bits`` uint64 [words, 2] as in the sampler, numbered."""
    for k in range(len(vertices)):
        vertex = vertices[k]
        row = bits[vertex >> 6]
        out[k] = np.int64(row[1]) + ones(row[0] & ((_ONE << np.uint64(vertex & 63)) - _ONE))
