"""Which ranks form a process group."""

import numpy as np
from numpy.typing import NDArray

from simgnn.program.program import Program


def group_ids(program: Program, members: str) -> NDArray[np.int64]:
    """Which group of a kind each rank belongs to, int64 [P]."""
    if members == "world":
        return np.zeros(program.ranks, dtype=np.int64)
    if members == "host":
        return np.asarray(program.hosts, dtype=np.int64)
    return program.sizes.columns[members]
