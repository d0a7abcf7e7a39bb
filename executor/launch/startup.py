"""Prepares a process before it trains: no modules from the working directory, one OpenMP runtime, and imports that
Python's garbage collector ignores."""

import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NUMBA_NEEDS = "libgomp.so.1.0.0"
"""The file name that Numba's OpenMP threading layer asks for on Linux."""


def leave_working_directory() -> None:
    """Take the working directory off the module search path, unless simgnn itself lies there: ``python -m``, with which
    torchrun starts ranks, looks there first, and a file ``torch.py`` would be taken for torch."""
    here = os.getcwd()
    if not sys.flags.safe_path and sys.path[0] == here and Path(__file__).resolve().parents[2] != Path(here):
        del sys.path[0]


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
