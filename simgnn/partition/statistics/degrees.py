"""How many vertices have which in-degree: what mini-batches of a graph that nobody can load are estimated from."""

import numpy as np
from numpy.typing import NDArray

from simgnn.graph.csr import CSR

DEGREES = "degrees"
"""Table of ``PartitionStats``: int64 [D, 2], an in-degree and how many vertices have it, ascending."""


def degree_table(csr: CSR) -> NDArray[np.int64]:
    """The table of a whole graph."""
    return np.stack(np.unique(csr.degrees(), return_counts=True), axis=1).astype(np.int64)
