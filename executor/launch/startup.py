"""One OpenMP runtime for torch and Numba."""

import ctypes
import sys

NUMBA_NEEDS = "libgomp.so.1.0.0"
"""The file name that Numba's OpenMP threading layer asks for on Linux."""


def share_runtime() -> bool:
    """Load the system's GNU OpenMP runtime, before torch does; whether it is loaded now.

    torch brings its own copy and Numba opens the system's by file name. With two copies in a process, the idle workers
    of one spin on the cores that the other one needs, after every parallel region. The loader hands torch the copy that
    is loaded already; where torch came first, or where there is no such file, two copies stay, slower but as correct.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        ctypes.CDLL(NUMBA_NEEDS)
    except OSError:
        return False
    return True
