"""Passes over all rows on the CPU, in Numba: bias, activation and its backward, rows added by index.

Each is one pass over memory. Column sums are taken over blocks of a fixed number of rows and then over the blocks in
order, so that they do not depend on the number of threads. NaN stays NaN: a run that diverges must show it.
"""

from typing import Any

from numba import njit, prange
from numpy.typing import NDArray

BLOCK_ROWS = 1024
"""Rows whose column sums are taken together: part of the arithmetic, not a tuning knob."""

Floats = NDArray[Any]


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _activate_rows(source, added, bias, relu, out, first, last):  # type: ignore[no-untyped-def]
    width = out.shape[1]
    for i in range(first, last):
        row, into = source[i], out[i]
        if len(added) > 0:
            other = added[i]
            for c in range(width):
                into[c] = row[c] + other[c]
            row = into
        if relu:
            for c in range(width):
                value = row[c] + bias[c]
                into[c] = value - value if value < 0 else value
        else:
            for c in range(width):
                into[c] = row[c] + bias[c]


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _mask_rows(gradient, output, masked, sums, first, last):  # type: ignore[no-untyped-def]
    width = gradient.shape[1]
    zero = gradient.dtype.type(0)
    for c in range(width):
        sums[c] = zero
    for i in range(first, last):
        row = gradient[i]
        if len(output) > 0:
            kept, into = output[i], masked[i]
            for c in range(width):
                value = zero if kept[c] <= 0 else row[c]
                into[c] = value
                sums[c] += value
        else:
            for c in range(width):
                sums[c] += row[c]


@njit(nogil=True, cache=True, parallel=True)  # type: ignore[untyped-decorator]
def activate(source, added, bias, relu, out, parts):  # type: ignore[no-untyped-def]
    """out = source + added + bias, then ReLU if ``relu``; ``added`` may be empty, ``out`` may be ``source``."""
    rows = len(out)
    for part in prange(parts):
        _activate_rows(source, added, bias, relu, out, rows * part // parts, rows * (part + 1) // parts)


@njit(nogil=True, cache=True, parallel=True)  # type: ignore[untyped-decorator]
def mask_and_sum(gradient, output, masked, sums):  # type: ignore[no-untyped-def]
    """masked = gradient where output > 0 (both empty: as it is); sums [blocks, F]: column sums of blocks of rows."""
    for block in prange(len(sums)):
        first = block * BLOCK_ROWS
        _mask_rows(gradient, output, masked, sums[block], first, min(first + BLOCK_ROWS, len(gradient)))


@njit(nogil=True, cache=True, parallel=True)  # type: ignore[untyped-decorator]
def add_into(target, index, rows):  # type: ignore[no-untyped-def]
    """target[index[k]] += rows[k]; no id twice."""
    width = target.shape[1]
    for k in prange(len(index)):
        into, row = target[index[k]], rows[k]
        for c in range(width):
            into[c] += row[c]
