"""How a stage states which rows travel: by a bitmap over all rows that may travel, or by a list of positions."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from array_api_compat import array_namespace, device

from simgnn.emit.arrays import counted, places_of
from simgnn.emit.builder import ProgramBuilder
from simgnn.policy import Array, PolicyContext
from simgnn.program.sizes import IntArray, Route, reverse_of

COUNT_BYTES = 8
"""How many rows travel to a peer: int64."""
ID_BYTES = 4
"""A row's place in the list of its pair: int32."""


def add_mask_route(builder: ProgramBuilder, route: str) -> str:
    """Add the route of the masks over a route's rows, and its reverse: one bit per row, padded to bytes for each pair.

    Adds the columns ``NAME/leaving`` and ``NAME/arriving``: each rank's bytes in the direction of ``route``."""
    return _beside(builder, route, "mask", lambda rows: (rows + 7) // 8)


def add_count_route(builder: ProgramBuilder, route: str) -> str:
    """Add a route of one number per pair that exchanges rows; reverse and columns as in :func:`add_mask_route`."""
    return _beside(builder, route, "count", lambda rows: (rows > 0).astype(np.int64))


def _beside(builder: ProgramBuilder, route: str, what: str, rows_of: Callable[[IntArray], IntArray]) -> str:
    forward = builder.forward_routes.get(route, route)
    beside = f"{forward}/{what}"
    name = beside if forward == route else reverse_of(beside)
    if beside not in builder.routes:
        rows = builder.routes[forward]
        builder.route(beside, Route(rows.source, rows.target, rows_of(rows.rows)))
    found, ranks = builder.routes[name], len(builder.hosts)
    for column, ends in (("leaving", found.source), ("arriving", found.target)):
        builder.column(f"{name}/{column}", np.bincount(ends, found.rows, minlength=ranks))
    return name


class WireMask:
    """The layout of a mask: for each peer, ascending, one bit per row in wire order, padded to whole bytes.

    ``counts``: rows of each peer. Bit k % 8 of byte k // 8 is row k: little-endian. ``like``: an array of the namespace
    and device of the masks."""

    def __init__(self, counts: Sequence[int], like: Array) -> None:
        self.xp, self.device = array_namespace(like), device(like)
        self.counts = tuple(counts)
        byte, self._bounds, places, firsts = 0, [0], [counted(like, 0)], []
        for count in self.counts:
            places.append(counted(like, count) + 8 * byte)
            if count:
                firsts.append(self._bounds[-1])
            self._bounds.append(self._bounds[-1] + count)
            byte += -(-count // 8)
        self.rows, self.nbytes = self._bounds[-1], byte
        self._places = self.xp.concat(places)
        self._weights = self.xp.asarray([1, 2, 4, 8, 16, 32, 64, 128], dtype=self.xp.uint8, device=self.device)
        self._firsts = self.xp.asarray(firsts, dtype=self.xp.int64, device=self.device)

    def pack(self, chosen: Array) -> Array:
        """Pack bool [rows] into a mask, uint8 [bytes]."""
        bits = self.xp.zeros(8 * self.nbytes, dtype=self.xp.uint8, device=self.device)
        bits[self._places] = self.xp.astype(chosen, self.xp.uint8)
        return self.xp.sum(self.xp.reshape(bits, (-1, 8)) * self._weights, axis=1, dtype=self.xp.uint8)

    def unpack(self, mask: Array) -> Array:
        """Unpack a mask, uint8 [bytes], to bool [rows]."""
        bits = self.xp.reshape((self.xp.reshape(mask, (-1, 1)) & self._weights) != 0, (-1,))
        return bits[self._places]

    def chosen_of_peers(self, mask: Array) -> list[int]:
        """Count the rows of each peer that the mask names."""
        sums = self._chosen_sums(self.unpack(mask), empty=True)
        found: list[int] = self.xp.stack(sums).tolist() if sums else []
        return found

    def listed(self, mask: Array) -> tuple[Array, Array]:
        """Convert a mask to lists: the number of named rows of each peer that has any rows, int64 [pairs, 1]; and their
        positions among that peer's rows, peers ascending, int32 [k, 1]."""
        xp, chosen = self.xp, self.unpack(mask)
        sums = self._chosen_sums(chosen, empty=False)
        counts = xp.stack(sums) if sums else self._firsts
        ids = places_of(chosen)
        return counts[:, None], xp.astype(ids - self._first_of(counts, ids), xp.int32)[:, None]

    def mask_of(self, ids: Array, counts: Array) -> Array:
        """Convert the lists of :meth:`listed` back to a mask, uint8 [bytes]."""
        chosen = self.xp.zeros(self.rows, dtype=self.xp.bool, device=self.device)
        places = self.xp.astype(self.xp.reshape(ids, (-1,)), self.xp.int64)
        chosen[places + self._first_of(self.xp.reshape(counts, (-1,)), places)] = True
        return self.pack(chosen)

    def _first_of(self, counts: Array, ids: Array) -> Array:
        """For each of ``ids``, return its peer's first row in the mask. ``counts``: as :meth:`listed` returns."""
        pairs = self.xp.searchsorted(self.xp.cumulative_sum(counts), counted(ids, ids.shape[0]), side="right")
        return self._firsts[pairs]

    def _chosen_sums(self, chosen: Array, empty: bool) -> list[Array]:
        """Count the chosen rows of each peer; ``empty``: include peers that have no rows."""
        pairs = [(first, last) for first, last in pairwise(self._bounds) if empty or last > first]
        return [self.xp.sum(chosen[first:last], dtype=self.xp.int64) for first, last in pairs]


def sent_mask(context: PolicyContext, like: Array) -> WireMask:
    """The mask layout of the rows that a rank sends along an op's route, built once a run."""
    return context.derived(WireMask, context.send, like=like)


def received_mask(context: PolicyContext, like: Array) -> WireMask:
    """The mask layout of the rows that a rank receives along an op's route, built once a run."""
    return context.derived(WireMask, context.receive, like=like)
