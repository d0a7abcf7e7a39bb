"""Prepares a process before it trains: one OpenMP runtime, and imports that Python's garbage collector ignores."""

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

NUMBA_NEEDS = "libgomp.so.1.0.0"
"""The file name that Numba's OpenMP threading layer asks for on Linux."""


def share_runtime() -> bool:
    """Load the system's GNU OpenMP runtime before torch does; return whether it is loaded.

    torch brings its own copy, and Numba opens the system's by file name. With two copies in a process, idle workers of
    one spin on cores that the other one needs, after every parallel region. The loader gives torch the copy that is
    already loaded. Where torch was loaded first, or the file does not exist, two copies stay: slower, but correct.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        ctypes.CDLL(NUMBA_NEEDS)
    except OSError:
        return False
    return True


@contextmanager
def lasting_imports() -> Iterator[None]:
    """Import inside this block: the garbage collector is off, and later ignores all objects that exist at its end.

    torch and Numba make half a million objects that live as long as the process. Searching them for cycles takes a
    sixth of the time to import them, and 0.1 s or more at each later collection, also in the middle of an epoch.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
