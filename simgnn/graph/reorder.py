"""Orders of vertices that bring neighbours together."""

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph

from simgnn.errors import GraphError
from simgnn.graph.csr import CSR
from simgnn.graph.transpose import is_symmetric


def reverse_cuthill_mckee(csr: CSR) -> NDArray[np.int64]:
    """Reverse Cuthill-McKee order of a square CSR: int64 [V], ``order[k]`` is the old id of the vertex at place k.

    Directed graphs are ordered as if each edge had its reverse. Isolated vertices keep a place. Cuthill and McKee, ACM
    National Conference 1969; the implementation is scipy's.
    """
    if csr.rows != csr.columns:
        raise GraphError(
            f"reverse Cuthill-McKee needs as many rows as columns; got {csr.rows} and {csr.columns}: "
            "keep owned columns only"
        )
    matrix = sparse.csr_matrix(
        (np.ones(csr.edges, np.int8), np.asarray(csr.indices), np.asarray(csr.indptr)), shape=(csr.rows, csr.columns)
    )
    return np.asarray(csgraph.reverse_cuthill_mckee(matrix, symmetric_mode=is_symmetric(csr)), dtype=np.int64)
