"""Device memory that PyTorch reserves for the tensors of a rank: a replay of the rules of its caching allocator.

Requests are rounded up to 512 B. Up to 1 MiB they are cut from segments of 2 MiB; larger ones, in a separate pool, from
segments of 20 MiB; from 10 MiB on each gets its own segment, rounded up to 2 MiB. The smallest free block that is large
enough is used; its rest becomes a free block if it has 512 B (small) or more than 1 MiB (large). Returned blocks merge
with their free neighbours; segments stay with the process. Source: PyTorch's notes on CUDA semantics ("Memory
management") and the constants of its header c10/core/AllocatorConfig.h.

A request for which the device has no room left first returns all segments without a taken block to the device; if that
is not enough, memory has run out.

Assumed: no CUDA device has run a program here, so nothing of this was compared with ``max_memory_reserved``. Left out:
a pool for each stream, CUDA's context and NCCL's buffers.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

BLOCK = 512
SMALL = 2**20
"""The largest request that is served from small segments."""
SMALL_SEGMENT, LARGE_SEGMENT = 2 * 2**20, 20 * 2**20
OWN_SEGMENT = 10 * 2**20
"""Requests of at least this size get their own segment, rounded up to ``ROUND_LARGE``."""
ROUND_LARGE = 2 * 2**20


@dataclass(frozen=True)
class Reservation:
    """Memory that the allocator takes from a device. ``peak_bytes``: the most at any time. ``failed``: position of the
    first request that the device cannot serve (-1: one of the blocks that are always held), None if it serves all;
    ``needed_bytes``: of the device for that request, ``held_bytes``: of blocks in use, the request included."""

    peak_bytes: int
    failed: int | None = None
    needed_bytes: int = 0
    held_bytes: int = 0


def reserve(always: Sequence[int], keys: Sequence[int], changes: Sequence[int], capacity: float = inf) -> Reservation:
    """Replay requests on a device of ``capacity`` bytes, up to the first that fails.

    First the blocks ``always`` are allocated, which stay; then, in order, ``changes[i]`` bytes are allocated for
    ``keys[i]``, or, where negative, the block of that key is freed.
    """
    small, large = _Pool(BLOCK), _Pool(SMALL + 1)
    held = peak = 0

    def take(nbytes: int) -> tuple[int, int] | int:
        """Allocate a block; return its place, or the bytes that the device would need if it has fewer."""
        nonlocal held, peak
        pool = small if nbytes <= SMALL else large
        if small.reserved + large.reserved + pool.missing(nbytes) > capacity:
            small.release()
            large.release()
            needed = small.reserved + large.reserved + pool.missing(nbytes)
            if needed > capacity:
                return needed
        place = pool.take(nbytes)
        held += nbytes
        peak = max(peak, small.reserved + large.reserved)
        return place

    for nbytes in always:
        found = take(nbytes)
        if isinstance(found, int):
            return Reservation(peak, -1, found, held + nbytes)
    taken: dict[int, tuple[int, int]] = {}
    over: set[int] = set()
    for position, (key, change) in enumerate(zip(keys, changes, strict=True)):
        if key in taken:
            (small if -change <= SMALL else large).give(taken.pop(key))
            held += change
        elif change < 0:
            over.add(key)  # held from an instant to the same instant: its return comes first, and it is never taken
        elif key not in over:
            found = take(change)
            if isinstance(found, int):
                return Reservation(peak, position, found, held + change)
            taken[key] = found
    return Reservation(peak)


class _Pool:
    """Segments of one kind. ``least``: smallest rest for which a block is split."""

    def __init__(self, least: int) -> None:
        self.reserved = 0
        self._least = least
        self._free: list[tuple[int, int, int]] = []
        """(bytes, segment, start) of free blocks, ascending."""
        self._starts: dict[tuple[int, int], int] = {}
        """(segment, start) -> bytes of every free block."""
        self._ends: dict[tuple[int, int], int] = {}
        """(segment, end) -> start of every free block."""
        self._sizes: dict[tuple[int, int], int] = {}
        """(segment, start) -> bytes of every block that is taken."""
        self._lengths: list[int] = []
        """Bytes of every segment so far, released ones included."""

    def missing(self, nbytes: int) -> int:
        """Return the size of the segment that a request needs from the device; 0 if a free block serves it."""
        size = -(-nbytes // BLOCK) * BLOCK
        return segment_bytes(size) if size and bisect_left(self._free, (size, -1, -1)) == len(self._free) else 0

    def release(self) -> None:
        """Return all segments without a taken block to the device."""
        for block in [block for block in self._free if block[0] == self._lengths[block[1]]]:
            self._remove(block)
            self.reserved -= block[0]

    def take(self, nbytes: int) -> tuple[int, int]:
        """Allocate a block; return its segment and its start there. A request of 0 bytes takes nothing."""
        if nbytes == 0:
            return (-1, 0)
        size = -(-nbytes // BLOCK) * BLOCK
        place = bisect_left(self._free, (size, -1, -1))
        if place == len(self._free):
            length = segment_bytes(size)
            self.reserved += length
            found = (length, len(self._lengths), 0)
            self._lengths.append(length)
        else:
            found = self._free[place]
            self._remove(found)
        length, segment, start = found
        if length - size >= self._least:
            self._add(length - size, segment, start + size)
        else:
            size = length
        self._sizes[segment, start] = size
        return (segment, start)

    def give(self, block: tuple[int, int]) -> None:
        """Free a block that :meth:`take` returned."""
        segment, start = block
        if segment < 0:
            return
        size = self._sizes.pop(block)
        before = self._ends.get((segment, start))
        if before is not None:
            self._remove((start - before, segment, before))
            size, start = size + start - before, before
        after = self._starts.get((segment, start + size))
        if after is not None:
            self._remove((after, segment, start + size))
            size += after
        self._add(size, segment, start)

    def _add(self, size: int, segment: int, start: int) -> None:
        insort(self._free, (size, segment, start))
        self._starts[segment, start] = size
        self._ends[segment, start + size] = start

    def _remove(self, block: tuple[int, int, int]) -> None:
        size, segment, start = block
        del self._free[bisect_left(self._free, block)]
        del self._starts[segment, start]
        del self._ends[segment, start + size]


def segment_bytes(size: int) -> int:
    """Size of the segment that is allocated for a request that no free block can serve."""
    if size <= SMALL:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < OWN_SEGMENT else -(-size // ROUND_LARGE) * ROUND_LARGE
