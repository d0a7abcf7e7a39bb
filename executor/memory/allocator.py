"""glibc's allocator: its settings for a run, and its heap while allocated memory is measured.

glibc hands blocks above a threshold to ``mmap`` and returns them on ``free``, so that the kernel zeroes every large
temporary, page by page, on first touch. Raised thresholds keep freed blocks in the process. The settings decide times
and memory of a run, so they are recorded with it.

While allocated memory is measured (:mod:`executor.memory.peak`), the heap's holes are filled, and small blocks get
room beforehand. A run makes objects that are no arrays: ops and their records, queues, what libraries store about each
call. With what is kept for its threads (:mod:`executor.rank.lanes`) they took 1.2 to 1.6 MiB of a rank's 9. They are
blocks below a page, in the heap of the C library or in Python's own, and do not grow with the graph; a GPU's allocator
counts none of them. Here they lie in room that the idle process was given, which no array of a page or more can use;
``result.json`` says so.
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
"""Smallest block that is mapped by itself while allocated memory is measured, and what its size is rounded up to."""
ROOM = 4 * 2**20
"""Bytes of room in the C library's heap, and as many in Python's. Objects that need more count as allocated."""
SMALL = PAGE - 96
"""Bytes of a free piece of the heap: too few for a block of a page, and without a whole page that trimming the heap
would give back."""
FENCE = 24
"""Bytes that stay at the beginning of each piece and separate it from the one before it."""
OBJECT = 400
"""Bytes of an object while room is made: Python's own heap holds those of up to 512."""
KEPT = 1000
"""One object of so many stays, so that some stay in each of the pieces (1 MiB) that Python's heap takes and returns."""
LARGEST_HOLE = 2**30


@dataclass(frozen=True)
class AllocatorSettings:
    """The settings made. ``applied`` is false where one was not possible, and ``reason`` says which and why.

    ``mmap_threshold``, ``trim_threshold``, ``top_pad`` in bytes; ``mmap_max`` 0: no block is mapped; ``arenas``: heaps
    that threads share. None: left as it was.
    """

    applied: bool
    reason: str
    mmap_threshold: int | None = None
    mmap_max: int | None = None
    trim_threshold: int | None = None
    top_pad: int | None = None
    arenas: int | None = None

    def provenance(self) -> dict[str, object]:
        """The settings as the result of a run records them."""
        return asdict(self)


def tune_allocator() -> AllocatorSettings:
    """Raise glibc's thresholds for this process; with another C library nothing happens, and the reason is given.

    Call it before other threads allocate. Freed memory then stays with the process; blocks above 2 GiB are still
    mapped afresh. All threads share one heap: heaps of their own end at 64 MiB, and larger blocks would be mapped.
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
    """Give freed memory back to the system; with another C library nothing happens."""
    if sys.platform.startswith("linux") and platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


@dataclass
class Room:
    """Room for small blocks and objects, kept by ``fences`` (addresses) between pieces of the C library's heap and
    ``objects`` in each piece of Python's."""

    fences: list[int] = field(default_factory=list)
    objects: list[bytes] = field(default_factory=list)

    def close(self) -> None:
        """Give the room back to both heaps: every allocation of a process that runs again searches free pieces."""
        if self.fences:
            library = c_library()
            while self.fences:
                library.free(self.fences.pop())
        self.objects.clear()


def make_room(nbytes: int = ROOM) -> Room:
    """Allocate so many bytes of small blocks and as many of small objects, write to them, and free them in place."""
    library = c_library()
    pieces = [library.malloc(SMALL) for _ in range(nbytes // SMALL)]
    for piece in pieces:
        ctypes.memset(piece, 1, SMALL)
    fences = [int(library.realloc(piece, FENCE)) for piece in pieces]  # shrinks where it is, and stays
    return Room(fences, [bytes(OBJECT) for _ in range(nbytes // OBJECT)][::KEPT])


def fill_holes() -> list[int]:
    """Allocate the free pieces of the heap that blocks of a page would fit into; the addresses of the new blocks.

    Such pieces would serve blocks of a page or more before any is mapped, and their pages would stay when those are
    freed. Nothing is written to the new blocks, so they cost no memory.
    """
    library, taken, size = c_library(), [], LARGEST_HOLE
    while size >= PAGE:
        mapped = library.mallinfo().hblks
        block = library.malloc(size)
        if block is None or library.mallinfo().hblks > mapped:
            library.free(block)
            size //= 2
        else:
            taken.append(int(block))
    return taken


class _Allocator(ctypes.Structure):
    """glibc's ``struct mallinfo``; ``hblks`` counts the blocks that are mapped by themselves."""

    names = "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
    _fields_: ClassVar = [(name, ctypes.c_int) for name in names]


def c_library() -> ctypes.CDLL:
    """Functions of the C library's allocator."""
    library = ctypes.CDLL(None)
    library.malloc.argtypes, library.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    library.realloc.argtypes, library.realloc.restype = [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_void_p
    library.free.argtypes, library.free.restype = [ctypes.c_void_p], None
    library.mallinfo.argtypes, library.mallinfo.restype = [], _Allocator
    return library
