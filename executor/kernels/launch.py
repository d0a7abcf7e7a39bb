"""Shared by the compiled CPU kernels: check their tensors, divide rows among threads, start a kernel."""

import threading
from contextlib import nullcontext
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray

COMPILED_DTYPES = (torch.float32, torch.float64)
ROW_COST_EDGES = 2
"""Work of a row without edges (start, scale, write), in edges."""
_one_at_a_time = threading.Lock()


def compiled_for(rows: torch.Tensor) -> bool:
    """Return whether Numba kernels can work on these rows: float32 or float64, dense, contiguous, on the CPU."""
    return (
        rows.device.type == "cpu"
        and rows.dtype in COMPILED_DTYPES
        and rows.layout == torch.strided
        and rows.is_contiguous()
    )


def array(rows: torch.Tensor) -> NDArray[Any]:
    """Return a CPU tensor as a NumPy array that shares its memory, without recording a gradient."""
    return rows.detach().numpy()


def default_threads() -> int:
    """Return the default number of threads of a kernel: as many as torch uses in this process."""
    return int(torch.get_num_threads())


def even_parts(units: int, threads: int) -> NDArray[np.int64]:
    """Divide ``units`` equally among threads; return where each part begins, and the end: int64 [threads + 1]."""
    return units * np.arange(threads + 1, dtype=np.int64) // threads


def balanced_rows(indptr: NDArray[np.int64], parts: int) -> NDArray[np.int64]:
    """Divide CSR rows so that rows plus edges are spread evenly; return each part's first row, int64 [parts + 1]."""
    rows = len(indptr) - 1
    work = indptr.astype(np.int64) + ROW_COST_EDGES * np.arange(rows + 1, dtype=np.int64)
    goals = work[-1] * np.arange(1, parts, dtype=np.int64) // parts
    bounds = np.zeros(parts + 1, dtype=np.int64)
    bounds[1:-1] = np.searchsorted(work, goals)
    bounds[-1] = rows
    return bounds


def launch(serial: Any, parallel: Any, arguments: tuple[Any, ...], bounds: NDArray[np.int64]) -> None:
    """Run a kernel over the units (rows, blocks) ``bounds[0]``..``bounds[-1]``, each part on a thread of its own.
    ``serial(*arguments, first, last)`` does the units first..last, ``parallel(*arguments, bounds)`` all parts at once.
    Neither holds the GIL. Several threads may call this: where Numba's threading layer cannot run two kernels at a
    time, they take turns."""
    parts = len(bounds) - 1
    if parts == 1:
        serial(*arguments, bounds[0], bounds[1])
        return
    wanted = min(parts, numba.config.NUMBA_NUM_THREADS)
    if numba.get_num_threads() != wanted:
        numba.set_num_threads(wanted)
    try:
        may_overlap = numba.threading_layer() != "workqueue"
    except ValueError:  # unknown before the first kernel has run
        may_overlap = False
    with nullcontext() if may_overlap else _one_at_a_time:
        parallel(*arguments, bounds)
