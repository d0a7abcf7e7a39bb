"""Bit masks over the rows of each pair of ranks: which of them travel. They, or the places of these rows, go ahead of
the rows, so that receivers know sizes."""

from collections.abc import Sequence

from array_api_compat import array_namespace, device

from simgnn.emit.arrays import counted, places_of
from simgnn.policy import Array, PolicyContext


class WireMask:
    """The layout of a mask: for each peer ascending, a bit a row in the order of the wire, padded to whole bytes.

    ``counts``: rows of each peer. Bit k % 8 of byte k // 8 is row k: little-endian. ``like``: an array of the namespace
    and device of the masks.
    """

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
        """uint8 [bytes] from bool [rows]."""
        bits = self.xp.zeros(8 * self.nbytes, dtype=self.xp.uint8, device=self.device)
        bits[self._places] = self.xp.astype(chosen, self.xp.uint8)
        return self.xp.sum(self.xp.reshape(bits, (-1, 8)) * self._weights, axis=1, dtype=self.xp.uint8)

    def unpack(self, mask: Array) -> Array:
        """bool [rows] from uint8 [bytes]."""
        bits = self.xp.reshape((self.xp.reshape(mask, (-1, 1)) & self._weights) != 0, (-1,))
        return bits[self._places]

    def chosen_of_peers(self, mask: Array) -> list[int]:
        """How many rows of each peer the mask names."""
        chosen = self.unpack(mask)
        sums = [self.xp.sum(chosen[first:last], dtype=self.xp.int64) for first, last in self._pairs()]
        found: list[int] = self.xp.stack(sums).tolist() if sums else []
        return found

    def listed(self, mask: Array) -> tuple[Array, Array]:
        """The mask as lists: int64 [pairs, 1], how many rows it names of each peer that has any; int32 [k, 1], their
        places among that peer's rows, peers ascending."""
        xp, chosen = self.xp, self.unpack(mask)
        sums = [xp.sum(chosen[first:last], dtype=xp.int64) for first, last in self._pairs() if last > first]
        counts = xp.stack(sums) if sums else self._firsts
        ids = places_of(chosen)
        return counts[:, None], xp.astype(ids - self._first_of(counts, ids), xp.int32)[:, None]

    def mask_of(self, ids: Array, counts: Array) -> Array:
        """The mask, uint8 [bytes], of which :meth:`listed` made these lists."""
        chosen = self.xp.zeros(self.rows, dtype=self.xp.bool, device=self.device)
        places = self.xp.astype(self.xp.reshape(ids, (-1,)), self.xp.int64)
        chosen[places + self._first_of(self.xp.reshape(counts, (-1,)), places)] = True
        return self.pack(chosen)

    def _first_of(self, counts: Array, ids: Array) -> Array:
        """The first row of the pair that each of the listed ids belongs to."""
        pairs = self.xp.searchsorted(self.xp.cumulative_sum(counts), counted(ids, ids.shape[0]), side="right")
        return self._firsts[pairs]

    def _pairs(self) -> list[tuple[int, int]]:
        return list(zip(self._bounds[:-1], self._bounds[1:], strict=True))


def sent_mask(context: PolicyContext, like: Array) -> WireMask:
    """The layout of the mask over the rows that a rank sends along an op's route, made once a run."""
    return context.derived(WireMask, context.send, like=like)


def received_mask(context: PolicyContext, like: Array) -> WireMask:
    """The same of the rows that it receives."""
    return context.derived(WireMask, context.receive, like=like)
