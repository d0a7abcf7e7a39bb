"""Linear quantisation of rows on the CPU, in Numba; stochastic rounding; and which rows differ from a cached copy.

A coded row is its smallest value and its step, in the type of the rows, then B bits an element, little-endian, padded
to a byte (:class:`simgnn.emit.row_codes.RowCodes`). Each kernel has a serial form (rows first..last) and a parallel
one, for :func:`executor.kernels.launch.launch`.
"""

import numpy as np
from numba import njit, prange

from simgnn.emit.arrays import UNIT_BITS
from simgnn.graph.hashing import splitmix

_DROPPED = np.uint64(64 - UNIT_BITS)
_UNIT = 2.0**-UNIT_BITS


@njit(nogil=True, cache=True, inline="always")
def row_range(row):  # type: ignore[no-untyped-def]
    """Return the smallest and the largest value of a row, and whether all values are finite."""
    low = high = row[0]
    finite = True
    for value in row:
        finite = finite and np.isfinite(value)
        low = min(low, value)
        high = max(high, value)
    return low, high, finite


@njit(nogil=True, cache=True)
def encode(rows, bits, packed, bad, first, last):  # type: ignore[no-untyped-def]
    """Encode rows [n, F] into packed [n, bytes] uint8; set bad[i] = 1 where row i or its range is not finite."""
    width = rows.shape[1]
    kind = rows.dtype.type
    header = np.empty(2, rows.dtype)
    raw = header.view(np.uint8)
    half, top = kind(0.5), kind((1 << bits) - 1)
    most = (1 << bits) - 1
    for i in range(first, last):
        row, out = rows[i], packed[i]
        low, high, finite = row_range(row)
        step = (high - low) / top
        if not (finite and np.isfinite(step)):
            bad[i] = 1
            continue
        header[0], header[1] = low, step
        for b in range(len(raw)):
            out[b] = raw[b]
        place = len(raw)
        if bits == 16:
            for c in range(width):
                code = _code(row[c], low, step, half, most)
                out[place + 2 * c] = code & 255
                out[place + 2 * c + 1] = code >> 8
        else:
            each = 8 // bits
            for c in range(0, width, each):
                byte = 0
                for k in range(min(each, width - c)):
                    byte |= _code(row[c + k], low, step, half, most) << (k * bits)
                out[place] = byte
                place += 1


@njit(nogil=True, cache=True)
def _code(value, low, step, half, most):  # type: ignore[no-untyped-def]
    """Return the code of one element; 0 in a row whose values are all equal."""
    if step == 0:
        return 0
    return min(max(int(np.floor((value - low) / step + half)), 0), most)


@njit(nogil=True, cache=True, parallel=True)
def encode_parallel(rows, bits, packed, bad, bounds):  # type: ignore[no-untyped-def]
    for part in prange(len(bounds) - 1):
        encode(rows, bits, packed, bad, bounds[part], bounds[part + 1])


@njit(nogil=True, cache=True)
def decode(packed, bits, rows, first, last):  # type: ignore[no-untyped-def]
    """Decode packed [n, bytes] uint8 into rows [n, F] = min + step x code, in the type of the rows."""
    width = rows.shape[1]
    kind = rows.dtype.type
    header = np.empty(2, rows.dtype)
    raw = header.view(np.uint8)
    each, mask = max(8 // bits, 1), (1 << bits) - 1
    for i in range(first, last):
        row, coded = rows[i], packed[i]
        for b in range(len(raw)):
            raw[b] = coded[b]
        low, step = header[0], header[1]
        place = len(raw)
        for c in range(width):
            if bits == 16:
                code = coded[place + 2 * c] | (np.int64(coded[place + 2 * c + 1]) << 8)
            else:
                code = (np.int64(coded[place + c // each]) >> ((c % each) * bits)) & mask
            row[c] = low + step * kind(code)


@njit(nogil=True, cache=True, parallel=True)
def decode_parallel(packed, bits, rows, bounds):  # type: ignore[no-untyped-def]
    for part in prange(len(bounds) - 1):
        decode(packed, bits, rows, bounds[part], bounds[part + 1])


@njit(nogil=True, cache=True)
def moved(rows, cached, epsilon, against_cached, chosen, first, last):  # type: ignore[no-untyped-def]
    """Set chosen[i] = 0 if max|rows[i] - cached[i]| is finite and at most epsilon max|rows[i]| (or cached), else 1."""
    width = rows.shape[1]
    zero = rows.dtype.type(0)
    for i in range(first, last):
        row, old = rows[i], cached[i]
        change = size = zero
        finite = True
        for c in range(width):
            apart = abs(row[c] - old[c])
            finite = finite and np.isfinite(apart)
            change = max(change, apart)
            size = max(size, abs(old[c]) if against_cached else abs(row[c]))
        chosen[i] = not (finite and change <= epsilon * size)


@njit(nogil=True, cache=True, parallel=True)
def moved_parallel(rows, cached, epsilon, against_cached, chosen, bounds):  # type: ignore[no-untyped-def]
    for part in prange(len(bounds) - 1):
        moved(rows, cached, epsilon, against_cached, chosen, bounds[part], bounds[part + 1])


@njit(nogil=True, cache=True)
def dither(rows, most, keys, moved, first, last):  # type: ignore[no-untyped-def]
    """Round rows [n, F] stochastically to values that linear codes can represent, and write these to ``moved`` [n, F].
    An element between two such values becomes the upper one with a probability equal to its distance from the lower one
    in steps, so that its expected value is unchanged. ``keys`` uint64 [n] seed the draws. See
    :meth:`simgnn.policies.codec.stochastic.Stochastic.dithered`."""
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
    for part in prange(len(bounds) - 1):
        dither(rows, most, keys, moved, bounds[part], bounds[part + 1])
