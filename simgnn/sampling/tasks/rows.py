"""Input rows that tasks fetch: held in the memory of a host, gathered and put in order without the interpreter lock."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from simgnn.sampling.tasks.places import Places


@dataclass(frozen=True)
class RowTable:
    """Input rows ``held`` [n, F] of this host by local id. ``places``: None where this host has the rows of all
    vertices, by vertex."""

    held: NDArray[Any]
    places: Places | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return int(self.held.itemsize * self.held.shape[1])


@dataclass(frozen=True)
class RowPiece:
    """Input rows ``rows`` [k, F] of ``vertices`` [k]."""

    vertices: Any
    rows: NDArray[Any]


def gathered(table: NDArray[Any], places: NDArray[Any]) -> NDArray[Any]:
    """Return the rows [k, F] of ``table`` [n, F] at ``places`` [k]."""
    out = np.empty((len(places), table.shape[1]), table.dtype)
    _gather(table, places, out)
    return out


@njit(cache=True, nogil=True)
def _gather(table: Any, places: Any, out: Any) -> None:
    for k in range(len(places)):
        row = places[k]
        for j in range(table.shape[1]):
            out[k, j] = table[row, j]


@njit(cache=True, nogil=True)
def scatter(rows: Any, places: Any, out: Any) -> None:
    """Copy row k of ``rows`` [k, F] to row ``places[k]`` of ``out``."""
    for k in range(len(places)):
        row = places[k]
        for j in range(rows.shape[1]):
            out[row, j] = rows[k, j]
