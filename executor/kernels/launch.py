"""How compiled kernels are started: on the calling thread, or on several threads of Numba."""

import threading
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

_one_at_a_time = threading.Lock()


def launch(serial: Any, parallel: Any, arguments: tuple[Any, ...], bounds: NDArray[np.int64]) -> None:
    """Run a kernel over units (rows, blocks) ``bounds[0]``..``bounds[-1]``, part k on a thread of its own.

    ``serial(*arguments, first, last)`` does the units first..last; ``parallel(*arguments, bounds)`` all parts at once.
    Neither holds the GIL. May be called from several threads: where Numba's threading layer cannot run two kernels
    at a time, they take turns.
    """
    parts = len(bounds) - 1
    if parts == 1:
        serial(*arguments, bounds[0], bounds[1])
        return
    wanted = min(parts, numba.config.NUMBA_NUM_THREADS)
    if numba.get_num_threads() != wanted:
        numba.set_num_threads(wanted)
    if _kernels_may_overlap():
        parallel(*arguments, bounds)
    else:
        with _one_at_a_time:
            parallel(*arguments, bounds)


def _kernels_may_overlap() -> bool:
    """Whether Numba runs kernels of several threads at once; known after the first kernel."""
    try:
        return bool(numba.threading_layer() != "workqueue")
    except ValueError:
        return False


def even_parts(units: int, threads: int) -> NDArray[np.int64]:
    """int64 [threads + 1]: units cut evenly."""
    return units * np.arange(threads + 1, dtype=np.int64) // threads
