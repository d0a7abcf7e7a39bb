"""The heap of glibc while allocated memory is measured: its holes are filled, and small blocks find room made before.

A run makes objects that are no arrays: ops and their records, queues, words of libraries about each call. With what is
kept for its threads (:mod:`executor.rank.lanes`) they were 1.2 to 1.6 MiB of a rank's 9. They are blocks below a
page, in the heap of the C library or in Python's own, and no graph makes them grow. A GPU's allocator counts none of
them. Here they lie in room that the idle process was given, of which no array of a page or more can take any;
``result.json`` says so.
"""

import ctypes
import mmap
import platform
import sys
from dataclasses import dataclass, field
from typing import ClassVar

PAGE = mmap.PAGESIZE
"""Bytes from which a block is mapped by itself while allocated memory is measured: what it is rounded up to."""
ROOM = 4 * 2**20
"""Bytes of room in the C library's heap, and as many in Python's. What needs more counts as allocated."""
SMALL = PAGE - 96
"""Bytes of a free piece of the heap: too few for a block of a page, and without a whole page that trimming the heap
would give back."""
FENCE = 24
"""Bytes that stay at the beginning of each piece and part it from the one before it."""
OBJECT = 400
"""Bytes of an object while room is made: Python's own heap has those of up to 512."""
KEPT = 1000
"""One object of so many stays: some in each of the pieces that Python's heap takes and gives back (1 MiB)."""
LARGEST_HOLE = 2**30


def release_free_memory() -> None:
    """Give freed memory back to the system. glibc only; elsewhere nothing happens."""
    if sys.platform.startswith("linux") and platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


@dataclass
class Room:
    """What keeps room for small blocks and objects: ``fences`` between pieces of the C library's heap, ``objects`` in
    each piece of Python's."""

    fences: list[int] = field(default_factory=list)
    objects: list[bytes] = field(default_factory=list)

    def close(self) -> None:
        """Let both heaps have their room back: a process that runs again makes it anew, and each allocation looks
        through what lies free."""
        if self.fences:
            library = c_library()
            while self.fences:
                library.free(self.fences.pop())
        self.objects.clear()


def make_room(nbytes: int = ROOM) -> Room:
    """Take so many bytes of small blocks and as many of small objects, write to them, and free them where they are."""
    library = c_library()
    pieces = [library.malloc(SMALL) for _ in range(nbytes // SMALL)]
    for piece in pieces:
        ctypes.memset(piece, 1, SMALL)
    fences = [int(library.realloc(piece, FENCE)) for piece in pieces]  # shrinks where it is, and stays
    return Room(fences, [bytes(OBJECT) for _ in range(nbytes // OBJECT)][::KEPT])


def fill_holes() -> list[int]:
    """Take the free pieces of the heap that blocks of a page would fit into; addresses of what was taken.

    Such pieces would serve blocks of a page or more before any is mapped, and their pages would stay when those are
    freed. Nothing is written to what is taken, so it costs no memory.
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
