"""Settings of the C library's allocator: large tensors keep their pages instead of faulting them in on every op.

glibc hands blocks above a threshold to ``mmap`` and returns them on ``free``, so that every large temporary is zeroed
by the kernel, page by page, on first touch. Raised thresholds keep freed blocks in the process. This is part of how a
run was made, so what was set is reported with it.
"""

import ctypes
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -3, -4, -8
"""Parameter numbers of ``mallopt`` (malloc.h of glibc)."""
LARGEST_THRESHOLD = 2**31 - 1
"""``mallopt`` takes an int."""
TOP_PAD = 64 * 2**20


@dataclass(frozen=True)
class AllocatorSettings:
    """What was set. ``applied`` is false where something was not, and ``reason`` says what and why.

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
        """For the record of a run."""
        return asdict(self)


def tune_allocator() -> AllocatorSettings:
    """Raise glibc's thresholds for this process; elsewhere nothing happens and the reason is given.

    To be called before other threads allocate. Freed memory then stays with the process; blocks above 2 GiB are still
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
        # an older glibc takes no threshold above half a heap; mapping nothing at all does the same
        refused.clear()
        mmap_max = attempt("M_MMAP_MAX", M_MMAP_MAX, 0)
    trim = attempt("M_TRIM_THRESHOLD", M_TRIM_THRESHOLD, LARGEST_THRESHOLD)
    pad = attempt("M_TOP_PAD", M_TOP_PAD, TOP_PAD)
    arenas = attempt("M_ARENA_MAX", M_ARENA_MAX, 1)
    reason = f"{where} refused {', '.join(refused)}" if refused else where
    return AllocatorSettings(not refused, reason, threshold, mmap_max, trim, pad, arenas)
