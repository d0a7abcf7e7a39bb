"""Messages of rows with unequal numbers of bits: where rows lie in them, and groups of rows of similar weight.

In a message the rows of the most bits come first, those of equal bits in wire order. Both ends hold the bits of each
row, so that they know where it lies and how many bytes travel. All functions take NumPy arrays and tensors."""

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
from array_api_compat import array_namespace, device

from simgnn.emit.arrays import counted, from_bytes, pick_rows, places_of, put_rows
from simgnn.policy import Array
from simgnn.program.ops import ITEM_BYTES


class Layout:
    """Where rows lie in the messages to or from each peer, peers ascending.

    ``bits`` uint8 [n]: of each row, in wire order. ``counts`` [P]: rows of each peer. ``row_bytes``: bytes of a row
    with each number of bits that a row may have."""

    def __init__(self, bits: Array, counts: Sequence[int], row_bytes: Mapping[int, int]) -> None:
        self.xp, self.row_bytes, self.rows = array_namespace(bits), row_bytes, bits.shape[0]
        ends = self.xp.asarray(list(accumulate(counts)), dtype=self.xp.int64, device=device(bits))
        self.places: dict[int, Array] = {}
        self.of_peers: dict[int, list[int]] = {}
        for each in sorted(row_bytes, reverse=True):
            places = places_of(bits == each)
            if places.shape[0]:
                self.places[each] = places
                self.of_peers[each] = np.diff(self.xp.searchsorted(places, ends).tolist(), prepend=0).tolist()
        assert sum(map(sum, self.of_peers.values())) == self.rows, "a row has another number of bits"

    def message_bytes(self) -> list[int]:
        """Bytes of the message of each peer, [P]."""
        found = [[rows * self.row_bytes[bits] for rows in self.of_peers[bits]] for bits in self.places]
        return [sum(parts) for parts in zip(*found, strict=True)]

    def pick(self, rows: Array, bits: int) -> Array:
        """The rows that have so many bits; ``rows`` itself if all have."""
        return rows if self.places[bits].shape[0] == self.rows else pick_rows(rows, self.places[bits])

    def put(self, target: Array | None, bits: int, rows: Array, shape: tuple[int, int]) -> Array:
        """Put rows of so many bits into ``target`` (None: new rows of ``shape``), in wire order; returns it."""
        if rows.shape[0] == self.rows:
            return rows
        if target is None:
            target = self.xp.empty(shape, dtype=rows.dtype, device=device(rows))
        return put_rows(target, self.places[bits], rows)

    def join(self, packed: Mapping[int, Array]) -> Array:
        """The messages, uint8 [bytes, 1], from the bytes of rows by their bits, each [rows, row bytes]."""
        parts = []
        for bits, first, last in self._pieces():
            parts.append(self.xp.reshape(packed[bits][first:last, :], (-1, 1)))
        return parts[0] if len(parts) == 1 else self.xp.concat(parts)

    def split(self, messages: Array) -> dict[int, Array]:
        """The bytes of rows by their bits, each uint8 [rows, row bytes], from the messages, uint8 [bytes, 1]."""
        parts: dict[int, list[Array]] = {bits: [] for bits in self.places}
        begin = 0
        for bits, first, last in self._pieces():
            end = begin + (last - first) * self.row_bytes[bits]
            parts[bits].append(self.xp.reshape(messages[begin:end, :], (last - first, self.row_bytes[bits])))
            begin = end
        return {bits: found[0] if len(found) == 1 else self.xp.concat(found) for bits, found in parts.items()}

    def _pieces(self) -> list[tuple[int, int, int]]:
        """The pieces of messages in order: their bits, and the first and the last of the rows of so many bits."""
        if len(self.places) == 1:
            (bits,) = self.places
            return [(bits, 0, self.rows)]
        begins, found = dict.fromkeys(self.places, 0), []
        for peer in range(len(next(iter(self.of_peers.values()), ()))):
            for bits, of_peers in self.of_peers.items():
                if of_peers[peer]:
                    found.append((bits, begins[bits], begins[bits] + of_peers[peer]))
                    begins[bits] += of_peers[peer]
        return found


def coded_ranges(packed: Array, bits: int, dtype: str) -> Array:
    """The ranges of encoded rows, float64 [n]: the step in their headers times the steps in a range. A function of the
    bytes, so that sender and receiver compute the same."""
    xp = array_namespace(packed)
    step = from_bytes(packed[:, : 2 * ITEM_BYTES[dtype]], dtype)[:, 1]
    return xp.astype(step, xp.float64) * float((1 << bits) - 1)


def group_counts(counts: Sequence[int], size: int) -> list[int]:
    """The number of groups of each message, [P]."""
    return [-(-rows // size) for rows in counts]


def grouped(beta: Array, counts: Sequence[int], size: int) -> Array:
    """Group the rows of each message by weight: the ``size`` rows of the least ``beta`` float64 [n] are its first
    group, and so on; of equal ones the first in wire order comes first. Returns each row's group, int64 [n], counted
    over all messages."""
    xp, rows = array_namespace(beta), beta.shape[0]
    starts = [0, *accumulate(counts)]
    firsts = [0, *accumulate(group_counts(counts, size))]
    order = xp.argsort(beta, stable=True)
    peer = _repeated(beta, range(len(counts)), counts)
    order = order[xp.argsort(peer[order], stable=True)]
    within = counted(beta, rows) - _repeated(beta, starts[:-1], counts)
    found = xp.zeros(rows, dtype=xp.int64, device=device(beta))
    found[order] = within // size + _repeated(beta, firsts[:-1], counts)
    return found


def group_sums(beta: Array, group: Array, groups: int, size: int) -> Array:
    """The sums of ``beta`` float64 [n] in each group, float64 [groups], of at most ``size`` rows each, added in the
    order of their weight."""
    xp, size = array_namespace(beta), min(size, beta.shape[0])
    order = xp.argsort(beta, stable=True)
    order = order[xp.argsort(group[order], stable=True)]
    sorted_group = group[order]
    first = xp.searchsorted(sorted_group, counted(beta, groups))
    place = sorted_group * size + counted(beta, beta.shape[0]) - pick_rows(first, sorted_group)
    table = xp.zeros(groups * size, dtype=xp.float64, device=device(beta))
    table[place] = beta[order]
    return xp.sum(xp.reshape(table, (groups, size)), axis=1)


def group_sizes(counts: Sequence[int], size: int) -> list[int]:
    """The rows of each group, peers ascending: ``size``, and what remains in the last group of a message."""
    return [min(size, rows - first) for rows in counts for first in range(0, rows, size)]


def _repeated(like: Array, values: Sequence[int], counts: Sequence[int]) -> Array:
    xp = array_namespace(like)
    found = np.repeat(np.asarray(values, dtype=np.int64), np.asarray(counts, dtype=np.int64))
    return xp.asarray(found, device=device(like))
