"""The transposed CSR, by a counting sort."""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simgnn.graph.csr import CSR


@njit(cache=True, nogil=True)
def _transpose(indptr: Any, indices: Any, out_indptr: Any, out_indices: Any) -> None:
    for k in range(len(indices)):
        out_indptr[indices[k] + 1] += 1
    for v in range(len(out_indptr) - 1):
        out_indptr[v + 1] += out_indptr[v]
    place = out_indptr[:-1].copy()
    for v in range(len(indptr) - 1):
        for k in range(indptr[v], indptr[v + 1]):
            u = indices[k]
            out_indices[place[u]] = v
            place[u] += 1


def scatter_rows(
    indptr: NDArray[np.int64], indices: NDArray[Any], columns: int, dtype: type[np.int32] | type[np.int64]
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Arrays of the transpose of a CSR that may hold repeats; its rows ascend, repeats side by side."""
    out_indptr = np.zeros(columns + 1, np.int64)
    out_indices = np.empty(len(indices), dtype)
    _transpose(indptr, indices, out_indptr, out_indices)
    return out_indptr, out_indices


def transpose_csr(csr: CSR) -> CSR:
    """Edges grouped by source: rows = ``csr.columns``, columns = ``csr.rows``, each row ascending. O(V + E)."""
    dtype = np.int32 if csr.rows < 2**31 else np.int64
    indptr, indices = scatter_rows(csr.indptr, csr.indices, csr.columns, dtype)
    return CSR(indptr, indices, csr.rows)


@njit(cache=True, nogil=True)
def _reverses_follow(indptr: Any, indices: Any) -> bool:
    """Walk the edges by row; in a symmetric graph with ascending rows, row u meets its neighbours in the same order."""
    place = indptr[:-1].copy()
    for v in range(len(indptr) - 1):
        for k in range(indptr[v], indptr[v + 1]):
            u = indices[k]
            if place[u] >= indptr[u + 1] or indices[place[u]] != v:
                return False
            place[u] += 1
    return True


def is_symmetric(csr: CSR) -> bool:
    """Whether a square CSR with strictly ascending rows holds the reverse of each of its edges. O(V + E)."""
    return csr.rows == csr.columns and bool(_reverses_follow(csr.indptr, csr.indices))
