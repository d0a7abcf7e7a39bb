"""Rows cut into pieces of equal work, one a thread."""

import os

import numpy as np
import torch
from numpy.typing import NDArray

ROW_COST_EDGES = 2
"""Work of a row without edges (start, scale, write), in edges."""


def available_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_per_rank(ranks_on_host: int) -> int:
    """Threads of each of ``ranks_on_host`` ranks that share this host's cores; at least one."""
    return max(1, available_cores() // max(1, ranks_on_host))


def default_threads() -> int:
    """Threads that a kernel takes when none are named: those that torch takes in this process."""
    return int(torch.get_num_threads())


def balanced_rows(indptr: NDArray[np.int64], parts: int) -> NDArray[np.int64]:
    """int64 [parts + 1]: first row of each piece, so that rows plus edges are spread evenly. Pieces may be empty."""
    rows = len(indptr) - 1
    work = indptr.astype(np.int64) + ROW_COST_EDGES * np.arange(rows + 1, dtype=np.int64)
    goals = work[-1] * np.arange(1, parts, dtype=np.int64) // parts
    bounds = np.zeros(parts + 1, dtype=np.int64)
    bounds[1:-1] = np.searchsorted(work, goals)
    bounds[-1] = rows
    return bounds
