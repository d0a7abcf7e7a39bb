"""Rows moved to the grid of their codes, up or down at random: what makes quantisation right on average.

An element that lies between two codes' values becomes the upper one with the probability that it is past the lower
one. Encoding the nearest code afterwards loses nothing more. See
:meth:`simgnn.policies.codec.stochastic.Stochastic.dithered`.
"""

import numpy as np
from numba import njit, prange

from executor.kernels.quantise import row_range
from simgnn.emit.arrays import UNIT_BITS
from simgnn.graph.hashing import splitmix

_DROPPED = np.uint64(64 - UNIT_BITS)
_UNIT = 2.0**-UNIT_BITS


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def dither(rows, most, keys, moved, first, last):  # type: ignore[no-untyped-def]
    """moved [n, F] from rows [n, F] and keys uint64 [n]; a code's value is the lowest plus so many steps."""
    width = rows.shape[1]
    kind = rows.dtype.type
    for i in range(first, last):
        row, out, key = rows[i], moved[i], keys[i]
        low, high, finite = row_range(row)
        step = (high - low) / kind(most)
        if not (finite and np.isfinite(step) and step > 0):
            for c in range(width):
                out[c] = row[c]
            continue
        for c in range(width):
            drawn = float(splitmix(key, np.uint64(c)) >> _DROPPED) * _UNIT
            code = min(max(np.floor(np.float64((row[c] - low) / step) + drawn), 0.0), float(most))
            out[c] = high if code == most or row[c] == high else low + step * kind(code)


@njit(nogil=True, cache=True, parallel=True)  # type: ignore[untyped-decorator]
def dither_parallel(rows, most, keys, moved, bounds):  # type: ignore[no-untyped-def]
    """The same on several threads."""
    for part in prange(len(bounds) - 1):
        dither(rows, most, keys, moved, bounds[part], bounds[part + 1])
