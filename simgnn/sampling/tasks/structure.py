"""Where tasks draw neighbours from: the whole graph, or the part of one host; and what a task draws."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simgnn.graph.csr import CSR
from simgnn.graph.hashing import GOLDEN, splitmix
from simgnn.sampling.draw.parted import HostStructure
from simgnn.sampling.draw.sampler import choose_row, count_choices
from simgnn.sampling.tasks.claims import claim, enter
from simgnn.sampling.tasks.places import Places

IntArray = NDArray[np.int64]
_ONE, _S32 = np.uint64(1), np.uint64(32)


@dataclass(frozen=True)
class Piece:
    """Neighbours chosen by one task for ``vertices`` [k], as ids of the whole graph: those of vertex j are
    ``chosen[bounds[j]:bounds[j + 1]]``, ``bounds`` int64 [k + 1]."""

    vertices: Any
    bounds: IntArray
    chosen: Any


@dataclass(frozen=True)
class Front:
    """Vertices [k] that a task was the first to reach at its hop. ``work``: the sum of their degrees; 0 at the last
    hop, where nothing expands them."""

    vertices: Any
    work: int

    @staticmethod
    def joined(fronts: "list[Front]") -> "Front":
        """The union of fronts, which have no vertex in common."""
        if len(fronts) == 1:
            return fronts[0]
        return Front(np.concatenate([one.vertices for one in fronts]), sum(one.work for one in fronts))


class Structure:
    """In-neighbours by vertex. ``degrees`` int32 or int64 [V]: of all vertices; tasks of other hosts' vertices have a
    cost, too. ``indptr``, ``indices``: rows of this host by local id; ``oid`` int64: the vertex of a local id, or None
    where both are the same; ``places``: None where this host has all rows."""

    def __init__(
        self,
        vertices: int,
        degrees: NDArray[Any],
        indptr: IntArray,
        indices: Any,
        oid: IntArray | None = None,
        places: Places | None = None,
    ) -> None:
        self.vertices, self.degrees = vertices, degrees
        self.ids = np.dtype(np.int32 if vertices < 2**31 else np.int64)
        self.indptr, self.indices, self.oid, self.places = indptr, indices, oid, places

    def expand(
        self, vertices: Any, lids: Any, seed: int, hop: int, fanout: int, claims: Any, last: bool
    ) -> tuple[Piece, Front]:
        """Draw at most ``fanout`` (-1: all) neighbours of ``vertices`` [k] of this host, and claim all that they reach
        in ``claims``; None: nobody asks for what they reach. ``last``: no hop follows."""
        bounds = np.empty(len(lids) + 1, np.int64)
        chosen = np.empty(count_choices(self.indptr, lids, fanout, bounds), self.ids)
        reached = np.empty(0 if claims is None else len(lids) + len(chosen), self.ids)
        degrees = None if last else self.degrees
        found, work = _expand(
            self.indptr, self.indices, self.oid, lids, np.uint64(seed), hop, bounds, chosen, claims, degrees, reached
        )
        return Piece(vertices, bounds, chosen), Front(reached[:found], int(work))

    def reach(self, piece: Piece, claims: Any, last: bool) -> Front:
        """Claim all that a piece that another host drew reaches; arguments as in :meth:`expand`."""
        if claims is None:
            return Front(piece.vertices[:0], 0)
        reached = np.empty(len(piece.vertices) + len(piece.chosen), self.ids)
        degrees = None if last else self.degrees
        own, first = enter(claims, piece.vertices, degrees, reached, 0)
        found, second = enter(claims, piece.chosen, degrees, reached, own)
        return Front(reached[:found], int(first + second))

    def of_gids(self, gids: IntArray) -> Any:
        """Return the vertices of ids as they travel."""
        raise AssertionError("a host that holds the whole graph requests no neighbours")


class WholeStructure(Structure):
    """The whole graph on one host."""

    def __init__(self, csr: CSR) -> None:
        indptr = np.asarray(csr.indptr)  # Numba knows no memory-mapped arrays, NumPy sees them as plain ones
        super().__init__(csr.rows, np.diff(indptr).astype(np.int32), indptr, np.asarray(csr.indices))


class PartStructure(Structure):
    """The part of one host. ``degrees`` int32 [V] of all vertices of the graph; ``servers``: see :class:`Places`."""

    def __init__(self, held: HostStructure, servers: IntArray, degrees: NDArray[np.int32]) -> None:
        part = held.part
        places = Places(held.host, held.node_map, held.old2new, servers)
        super().__init__(len(held.old2new), degrees, part.indptr, part.indices, part.oid, places)
        self._new2old = held.new2old

    def of_gids(self, gids: IntArray) -> Any:
        return self._new2old[gids].astype(self.ids)


@njit(cache=True, nogil=True)
def _expand(
    indptr: Any,
    indices: Any,
    oid: Any,
    lids: Any,
    seed: Any,
    hop: Any,
    bounds: Any,
    chosen: Any,
    claims: Any,
    degrees: Any,
    reached: Any,
) -> Any:
    """Choose like :func:`simgnn.sampling.draw.sampler.choose`, and :func:`enter` each row and its neighbours."""
    state = splitmix(seed, _ONE)
    turn = (np.uint64(hop) << _S32) + GOLDEN
    found, work = 0, np.int64(0)
    for k in range(len(lids)):
        row = lids[k]
        vertex = np.int64(row) if oid is None else np.int64(oid[row])
        first = indptr[row]
        degree = indptr[row + 1] - first
        begin, end = np.int64(bounds[k]), np.int64(bounds[k + 1])
        choose_row(indices, first, degree, vertex, state, turn, chosen, begin, end)
        if oid is not None:
            for j in range(begin, end):
                chosen[j] = oid[chosen[j]]
        if claims is not None:
            if claim(claims, 2, vertex):
                reached[found] = vertex
                found += 1
                work += degree
            for j in range(begin, end):
                source = chosen[j]
                if claim(claims, 2, source):
                    reached[found] = source
                    found += 1
                    if degrees is not None:
                        work += degrees[source]
    return found, work
