"""Settings of the C library's allocator: large tensors keep their pages instead of faulting them in on every op.

glibc hands blocks above a threshold to ``mmap`` and returns them on ``free``, so that every large temporary is zeroed
by the kernel, page by page, on first touch. Raised thresholds keep freed blocks in the process. This is part of how a
run was made, so what was set is reported with it.
"""

import ctypes
import platform
import sys
from dataclasses import asdict, dataclass

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -2, -3, -8
"""Parameter numbers of ``mallopt`` (malloc.h of glibc)."""
LARGEST_THRESHOLD = 2**31 - 1
"""``mallopt`` takes an int."""
TOP_PAD = 64 * 2**20


@dataclass(frozen=True)
class AllocatorSettings:
    """What was set, in bytes; ``applied`` is false where nothing was, and ``reason`` says why."""

    applied: bool
    reason: str
    mmap_threshold: int | None = None
    trim_threshold: int | None = None
    top_pad: int | None = None
    arenas: int | None = None

    def provenance(self) -> dict[str, object]:
        """For the record of a run."""
        return asdict(self)


def tune_allocator() -> AllocatorSettings:
    """Raise glibc's mmap and trim thresholds for this process. Elsewhere nothing happens and the reason is given.

    To be called before other threads allocate. Freed memory then stays with the process; blocks above 2 GiB are still
    mapped afresh. glibc before 2.35 refuses a mmap threshold above 32 MiB: a refusal is reported, never ignored.
    """
    library, version = platform.libc_ver()
    if not sys.platform.startswith("linux") or library != "glibc":
        return AllocatorSettings(
            False, f"mallopt thresholds are glibc's; this is {library or sys.platform} {version}".strip()
        )
    mallopt = ctypes.CDLL(None).mallopt
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    wanted = {
        "M_MMAP_THRESHOLD": (M_MMAP_THRESHOLD, LARGEST_THRESHOLD),
        "M_TRIM_THRESHOLD": (M_TRIM_THRESHOLD, LARGEST_THRESHOLD),
        "M_TOP_PAD": (M_TOP_PAD, TOP_PAD),
        # arenas of other threads cannot grow beyond 64 MiB, so that large blocks of theirs would be mapped all the same
        "M_ARENA_MAX": (M_ARENA_MAX, 1),
    }
    refused = [name for name, (number, value) in wanted.items() if mallopt(number, value) != 1]
    if refused:
        return AllocatorSettings(False, f"glibc {version} refused {', '.join(refused)}")
    return AllocatorSettings(True, f"glibc {version}", LARGEST_THRESHOLD, LARGEST_THRESHOLD, TOP_PAD, 1)
