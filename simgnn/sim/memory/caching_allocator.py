"""Device memory that PyTorch reserves for the tensors of a rank: a replay of the rules of its caching allocator.

Requests are rounded up to 512 B. Up to 1 MiB they are cut from segments of 2 MiB; larger ones, in a separate pool, from
segments of 20 MiB; from 10 MiB on each gets its own segment, rounded up to 2 MiB. The smallest free block that is large
enough is used; its rest becomes a free block if it has 512 B (small) or more than 1 MiB (large). Returned blocks merge
with their free neighbours; segments stay with the process. Source: PyTorch's notes on CUDA semantics ("Memory
management") and the constants of its header c10/core/AllocatorConfig.h.

Assumed: no CUDA device has run a program here, so nothing of this was compared with ``max_memory_reserved``. Left out:
a pool for each stream, memory that is returned to the device when a request fails, CUDA's context and NCCL's buffers.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence

BLOCK = 512
SMALL = 2**20
"""The largest request that is served from small segments."""
SMALL_SEGMENT, LARGE_SEGMENT = 2 * 2**20, 20 * 2**20
OWN_SEGMENT = 10 * 2**20
"""Requests of at least this size get their own segment, rounded up to ``ROUND_LARGE``."""
ROUND_LARGE = 2 * 2**20


def reserved_bytes(always: Sequence[int], keys: Sequence[int], changes: Sequence[int]) -> int:
    """Bytes of all segments in the end. First the blocks ``always`` are allocated, which stay; then, in order,
    ``changes[i]`` bytes are allocated for ``keys[i]``, or, where negative, the block of that key is freed."""
    small, large = _Pool(BLOCK), _Pool(SMALL + 1)

    def pool(nbytes: int) -> "_Pool":
        return small if nbytes <= SMALL else large

    for nbytes in always:
        pool(nbytes).take(nbytes)
    taken: dict[int, tuple[int, int]] = {}
    over: set[int] = set()
    for key, change in zip(keys, changes, strict=True):
        if key in taken:
            pool(-change).give(taken.pop(key))
        elif change < 0:
            over.add(key)  # held from an instant to the same instant: its return comes first, and it is never taken
        elif key not in over:
            taken[key] = pool(change).take(change)
    return small.reserved + large.reserved


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
        self._segments = 0

    def take(self, nbytes: int) -> tuple[int, int]:
        """Allocate a block; return its segment and its start there. A request of 0 bytes takes nothing."""
        if nbytes == 0:
            return (-1, 0)
        size = -(-nbytes // BLOCK) * BLOCK
        place = bisect_left(self._free, (size, -1, -1))
        if place == len(self._free):
            length = segment_bytes(size)
            self.reserved += length
            found = (length, self._segments, 0)
            self._segments += 1
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
