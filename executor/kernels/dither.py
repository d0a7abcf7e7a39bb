"""Rows moved to the grid of their codes, up or down at random: what makes quantisation right on average.

An element that lies between two codes' values becomes the upper one with the probability that it is past the lower
one. Encoding the nearest code afterwards loses nothing more. See :class:`simgnn.policies.codec.stochastic.Stochastic`.
"""

import numpy as np
import torch
from numba import njit, prange

from executor.kernels.balance import default_threads
from executor.kernels.draws import UNIT_BITS, units
from executor.kernels.launch import even_parts, launch
from executor.kernels.quantise import row_range
from executor.kernels.views import array, compiled_for
from simgnn.graph.hashing import splitmix

_DROPPED = np.uint64(64 - UNIT_BITS)
_UNIT = 2.0**-UNIT_BITS


def dithered(rows: torch.Tensor, bits: int, keys: torch.Tensor) -> torch.Tensor:
    """Rows [n, F] on the grids of ``bits`` bits between their smallest and largest values, which stay as they are.

    ``keys`` int64 [n]: the stream of random numbers of each row. Rows of one value, and those that have no grid (not
    finite, or a range that overflows), stay as they are.
    """
    if not len(rows):
        return rows
    most = (1 << bits) - 1
    if not compiled_for(rows):
        return _dithered(rows, most, keys)
    moved = torch.empty_like(rows)
    arguments = array(rows), most, keys.contiguous().numpy().view(np.uint64), moved.numpy()
    launch(dither, dither_parallel, arguments, even_parts(len(rows), default_threads()))
    return moved


def _dithered(rows: torch.Tensor, most: int, keys: torch.Tensor) -> torch.Tensor:
    """What the compiled kernel does, on any device."""
    low, high = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
    step = (high - low) / high.new_full((), most)  # as in executor.codecs: CUDA divides by a host's number otherwise
    codes = torch.floor(((rows - low) / step).double() + units(keys, rows.shape[1])).clamp(0, most)
    moved = torch.where((codes == most) | (rows == high), high, low + step * codes.to(rows.dtype))
    return torch.where(torch.isfinite(step) & (step > 0), moved, rows)


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True, parallel=True)
def dither_parallel(rows, most, keys, moved, bounds):  # type: ignore[no-untyped-def]
    """The same on several threads."""
    for part in prange(len(bounds) - 1):
        dither(rows, most, keys, moved, bounds[part], bounds[part + 1])
