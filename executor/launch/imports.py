"""What a process imports before it works, kept out of the sight of Python's collector of reference cycles."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lasting_imports() -> Iterator[None]:
    """Import inside: the collector waits, and never looks at what is there at the end.

    torch and Numba make half a million objects that live as long as the process. Searching them for cycles takes a
    sixth of the time to import them, and 0.1 s or more at each later collection, in the midst of an epoch as well.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
