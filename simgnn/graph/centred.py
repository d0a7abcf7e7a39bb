"""Sparse rows less their mean, without making them dense."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy import sparse

CHUNK_ROWS = 1024
"""Rows that are made dense at a time."""


@dataclass(frozen=True)
class CentredRows:
    """Rows X - s m [n, F], of which X is sparse and m, ``mean`` float64 [F], is what all rows share.

    ``extended``: csr_array [n, F + 1], X with s [n] as its last column. Of features s is 1; of scaled sums of rows it
    is the same sums of ones. So rows may be picked, sent and summed like any sparse rows, and still tell how often m
    is to be taken off.
    """

    extended: sparse.csr_array
    mean: NDArray[np.float64]

    @classmethod
    def of(cls, rows: sparse.csr_array) -> "CentredRows":
        """Rows [n, F] less the mean of each column, which is taken in float64."""
        # rows.mean(dtype=float64) of SciPy adds float32 values up in float32
        mean = np.bincount(rows.indices, rows.data, minlength=rows.shape[1]) / rows.shape[0]
        ones = sparse.csr_array(np.ones((rows.shape[0], 1), rows.dtype))
        extended: Any = sparse.csr_array(sparse.hstack((rows, ones), "csr"))
        extended.sort_indices()
        return cls(extended, mean)

    @property
    def shape(self) -> tuple[int, int]:
        """(n, F)."""
        rows, columns = self.extended.shape
        return int(rows), int(columns) - 1

    def __getitem__(self, rows: Any) -> "CentredRows":
        """Some of the rows: a slice, or their numbers."""
        picked: Any = self.extended[rows]
        return CentredRows(picked, self.mean)

    def toarray(self, dtype: DTypeLike | None = None) -> NDArray[Any]:
        """Dense rows [n, F] of ``dtype`` (None: that of X); differences are taken in float64."""
        found = np.empty(self.shape, self.extended.dtype if dtype is None else dtype)
        for first in range(0, len(found), CHUNK_ROWS):
            part: Any = self.extended[first : first + CHUNK_ROWS]
            rows = part.toarray()
            found[first : first + CHUNK_ROWS] = rows[:, :-1] - rows[:, -1:] * self.mean
        return found
