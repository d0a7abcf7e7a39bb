"""Which vertices of a front lie on this host, and whom to ask for the others."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Away:
    """Vertices of a front that lie on the host of rank ``server``: ``vertices`` [k], and ``lids`` int64 [k], their
    local ids there."""

    server: int
    vertices: Any
    lids: IntArray


@dataclass(frozen=True)
class Places:
    """Where the vertices of a graph in parts lie, for a rank of ``host``. ``node_map`` int64 [M + 1] and ``old2new``
    int64 [V] as in :class:`~simgnn.partition.local.contiguous_ids.IdMaps`; ``servers`` int64 [M]: the rank that serves
    each partition to this one (:attr:`~simgnn.partition.local.serving.Serving.servers`)."""

    host: int
    node_map: IntArray
    old2new: IntArray
    servers: IntArray

    def divide(self, front: Any) -> tuple[Any, IntArray, list[Away]]:
        """Return the vertices of ``front`` that lie here, their local ids, and the others by the rank that serves."""
        first, end = int(self.node_map[self.host]), int(self.node_map[self.host + 1])
        here, lids, far = np.empty_like(front), np.empty(len(front), np.int64), np.empty_like(front)
        own, others = _divide(front, self.old2new, first, end, here, lids, far)
        return here[:own], lids[:own], self.away(far[:others]) if others else []

    def away(self, vertices: Any) -> list[Away]:
        """Group vertices of other hosts by host."""
        gids = self.old2new[vertices]
        hosts = np.searchsorted(self.node_map, gids, side="right") - 1
        order = np.argsort(hosts, kind="stable")
        vertices, gids, hosts = vertices[order], gids[order], hosts[order]
        groups, first = [], 0
        for end in (np.flatnonzero(np.diff(hosts, append=-1)) + 1).tolist():
            host = int(hosts[first])
            groups.append(Away(int(self.servers[host]), vertices[first:end], gids[first:end] - self.node_map[host]))
            first = end
        return groups


def divided(places: Places | None, front: Any) -> tuple[Any, Any, list[Away]]:
    """Divide a front; without ``places`` all vertices lie here, and their ids are local ids."""
    return (front, front, []) if places is None else places.divide(front)


@njit(cache=True, nogil=True)
def _divide(front: Any, old2new: Any, first: Any, end: Any, here: Any, lids: Any, far: Any) -> Any:
    own, others = 0, 0
    for vertex in front:
        gid = old2new[vertex]
        if first <= gid < end:
            here[own] = vertex
            lids[own] = gid - first
            own += 1
        else:
            far[others] = vertex
            others += 1
    return own, others
