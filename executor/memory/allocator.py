"""Configures glibc's allocator for a run, and prepares its heap for measuring allocated memory.

glibc hands blocks above a threshold to ``mmap`` and returns them on ``free``, so that the kernel zeroes every large
temporary, page by page, on first touch. Raised thresholds keep freed blocks in the process. The settings affect times
and memory of a run, so the result records them.

While allocated memory is measured (:mod:`executor.memory.peak`), holes in the heap are filled, and room for small
blocks is made in advance. A run makes objects that are not arrays: ops and their records, queues, data of libraries
about each call. With the data kept for threads (:mod:`executor.rank.lanes`) they took 1.2 to 1.6 MiB of a rank's 9.
They are blocks below a page, in the heap of the C library or of Python, and do not grow with the graph; a GPU's
allocator counts none of them. Here they use room allocated by the idle process, which arrays of a page or more cannot
use; ``result.json`` states this.
"""

import ctypes
import mmap
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import ClassVar

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -3, -4, -8
"""Parameter numbers of ``mallopt`` (malloc.h of glibc)."""
LARGEST_THRESHOLD = 2**31 - 1
"""``mallopt`` takes an int."""
TOP_PAD = 64 * 2**20
PAGE = mmap.PAGESIZE
"""Smallest block that is mapped separately while allocated memory is measured; sizes are rounded up to pages."""
ROOM = 4 * 2**20
"""Bytes of room in the C library's heap, and as many in Python's. Objects that need more count as allocated."""
SMALL = PAGE - 96
"""Bytes of a free piece of the heap: too few for a block of a page, or for trimming to give back."""
FENCE = 24
"""Bytes that stay allocated at the beginning of each piece, which separate it from the previous piece."""
OBJECT = 400
"""Bytes of each object with which room is made in Python's own heap, which holds objects of up to 512 bytes."""
KEPT = 1000
"""One object in so many stays allocated, so that Python keeps each piece (1 MiB) of its heap."""
LARGEST_HOLE = 2**30


@dataclass(frozen=True)
class AllocatorSettings:
    """The allocator settings of a process. ``applied`` is false where one failed; ``reason`` states why.

    ``mmap_threshold``, ``trim_threshold``, ``top_pad`` in bytes; ``mmap_max`` 0: no block is mapped; ``arenas``: heaps
    that threads share. None: unchanged.
    """

    applied: bool
    reason: str
    mmap_threshold: int | None = None
    mmap_max: int | None = None
    trim_threshold: int | None = None
    top_pad: int | None = None
    arenas: int | None = None

    def provenance(self) -> dict[str, object]:
        """Return the settings as the result of a run records them."""
        return asdict(self)


def tune_allocator() -> AllocatorSettings:
    """Raise glibc's thresholds for this process. With another C library nothing happens, and ``reason`` states why.

    Call it before other threads allocate. Freed memory then stays in the process; blocks above 2 GiB are still mapped
    each time. All threads share one heap, since separate heaps end at 64 MiB and larger blocks would be mapped.
    """
    library, version = platform.libc_ver()
    if not sys.platform.startswith("linux") or library != "glibc":
        here = f"{library or sys.platform} {version}".strip()
        return AllocatorSettings(False, f"mallopt's thresholds are glibc's; this is {here}")
    mallopt = ctypes.CDLL(None).mallopt
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    return _apply(mallopt, f"glibc {version}")


def _apply(mallopt: Callable[[int, int], int], where: str) -> AllocatorSettings:
    refused: list[str] = []

    def attempt(name: str, parameter: int, value: int) -> int | None:
        if mallopt(parameter, value) == 1:
            return value
        refused.append(name)
        return None

    threshold = attempt("M_MMAP_THRESHOLD", M_MMAP_THRESHOLD, LARGEST_THRESHOLD)
    mmap_max = None
    if threshold is None:
        # older versions accept no threshold above half a heap; mapping nothing at all does the same
        refused.clear()
        mmap_max = attempt("M_MMAP_MAX", M_MMAP_MAX, 0)
    trim = attempt("M_TRIM_THRESHOLD", M_TRIM_THRESHOLD, LARGEST_THRESHOLD)
    pad = attempt("M_TOP_PAD", M_TOP_PAD, TOP_PAD)
    arenas = attempt("M_ARENA_MAX", M_ARENA_MAX, 1)
    reason = f"{where} refused {', '.join(refused)}" if refused else where
    return AllocatorSettings(not refused, reason, threshold, mmap_max, trim, pad, arenas)


def release_free_memory() -> None:
    """Return freed memory to the system; with another C library than glibc nothing happens."""
    if sys.platform.startswith("linux") and platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


@dataclass
class Room:
    """Free heap space, ready for small blocks and objects. ``fences``: addresses of tiny blocks that stay allocated, so
    that free pieces of the C heap do not merge. ``objects``: objects that keep Python from returning its heap."""

    fences: list[int] = field(default_factory=list)
    objects: list[bytes] = field(default_factory=list)

    def close(self) -> None:
        """Give the room back to both heaps, since every later allocation would search the free pieces."""
        if self.fences:
            library = c_library()
            while self.fences:
                library.free(self.fences.pop())
        self.objects.clear()


def make_room(nbytes: int = ROOM) -> Room:
    """Allocate ``nbytes`` of small blocks and as many of small objects, write to them, and free them in place."""
    library = c_library()
    pieces = [library.malloc(SMALL) for _ in range(nbytes // SMALL)]
    for piece in pieces:
        ctypes.memset(piece, 1, SMALL)
    fences = [int(library.realloc(piece, FENCE)) for piece in pieces]  # shrinks where it is, and stays
    return Room(fences, [bytes(OBJECT) for _ in range(nbytes // OBJECT)][::KEPT])


def fill_holes() -> list[int]:
    """Allocate all free pieces of the heap into which blocks of a page fit; return the addresses of the new blocks.

    Otherwise such pieces would serve blocks of a page or more, and their pages would stay when those blocks are freed.
    The new blocks are never written to, so they cost no memory.
    """
    library, filled, size = c_library(), [], LARGEST_HOLE
    while size >= PAGE:
        mapped = library.mallinfo().hblks
        block = library.malloc(size)
        if block is None or library.mallinfo().hblks > mapped:
            library.free(block)
            size //= 2
        else:
            filled.append(int(block))
    return filled


class _Allocator(ctypes.Structure):
    """glibc's ``struct mallinfo``; ``hblks`` counts the blocks that are mapped separately."""

    names = "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
    _fields_: ClassVar = [(name, ctypes.c_int) for name in names]


def c_library() -> ctypes.CDLL:
    """Return the C library with declared types of its allocator functions."""
    library = ctypes.CDLL(None)
    library.malloc.argtypes, library.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    library.realloc.argtypes, library.realloc.restype = [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_void_p
    library.free.argtypes, library.free.restype = [ctypes.c_void_p], None
    library.mallinfo.argtypes, library.mallinfo.restype = [], _Allocator
    return library
