"""Compressed sparse rows: the form in which simgnn stores edges."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import GraphError

IndexArray = NDArray[np.int32] | NDArray[np.int64]


@dataclass(frozen=True)
class CSR:
    """Edges grouped by destination. Row = destination, ``indices`` = sources, ascending within each row. ``indptr``
    int64 [rows + 1]; ``indices`` int32 [edges], int64 when ``columns`` is 2**31 or more; ``columns`` is the number of
    sources. ``weights``: float64 [edges] (on a rank: of the training's dtype); None: every edge has weight 1. Arrays
    may be memory-mapped and are not to be written."""

    indptr: NDArray[np.int64]
    indices: IndexArray
    columns: int
    weights: NDArray[Any] | None = None

    @property
    def rows(self) -> int:
        """Number of destinations."""
        return len(self.indptr) - 1

    @property
    def edges(self) -> int:
        """Number of stored edges."""
        return len(self.indices)

    def degrees(self) -> NDArray[np.int64]:
        """In-degree of each row, int64 [rows]."""
        return np.diff(self.indptr)

    def unweighted(self) -> "CSR":
        """Return the same edges without their weights."""
        return self if self.weights is None else replace(self, weights=None)

    def check(self) -> "CSR":
        """Return self, or raise :class:`GraphError` when the arrays do not form a CSR."""
        indptr, indices = self.indptr, self.indices
        if indptr.ndim != 1 or len(indptr) == 0 or indptr[0] != 0 or indptr[-1] != len(indices):
            raise GraphError(
                f"indptr must start at 0 and end at the number of edges ({len(indices)}); "
                f"got {indptr[:1]}...{indptr[-1:]}"
            )
        if self.weights is not None and self.weights.shape != indices.shape:
            raise GraphError(f"expected one weight an edge, [{len(indices)}]; got shape {list(self.weights.shape)}")
        if np.any(indptr[1:] < indptr[:-1]):
            raise GraphError("indptr must not decrease; row " + str(int(np.argmax(indptr[1:] < indptr[:-1]))) + " does")
        if len(indices) and (int(indices.min()) < 0 or int(indices.max()) >= self.columns):
            raise GraphError(
                f"edge ids must lie in 0..{self.columns - 1}; got {int(indices.min())}..{int(indices.max())}: "
                "renumber the vertices or state the right number of vertices"
            )
        return self
