"""Passes over all rows on the CPU, in Numba: bias, activation and its backward, rows added by index.

Each is one pass over memory. Column sums are taken over blocks of a fixed number of rows and then over the blocks in
order, so that they do not depend on the number of threads. NaN stays NaN: a run that diverges must show it. Each kernel
has a serial form (units first..last) and a parallel one, for :func:`executor.kernels.launch.launch`.
"""

import numpy as np
from numba import njit, prange

BLOCK_ROWS = 1024
"""Rows whose column sums are taken together: part of the arithmetic, not a tuning knob."""
NONE, RELU, ELU = 0, 1, 2
"""Activations."""


@njit(nogil=True, cache=True)
def activate(source, added, bias, activation, out, first, last):  # type: ignore[no-untyped-def]
    """out = source + added + bias, then the activation; ``added`` may be empty, ``out`` may be ``source``."""
    width = out.shape[1]
    for i in range(first, last):
        row, into = source[i], out[i]
        if len(added) > 0:
            other = added[i]
            for c in range(width):
                into[c] = row[c] + other[c]
            row = into
        if activation == RELU:
            for c in range(width):
                value = row[c] + bias[c]
                into[c] = value - value if value < 0 else value
        elif activation == ELU:
            for c in range(width):
                value = row[c] + bias[c]
                into[c] = np.expm1(value) if value < 0 else value
        else:
            for c in range(width):
                into[c] = row[c] + bias[c]


@njit(nogil=True, cache=True, parallel=True)
def activate_parallel(source, added, bias, activation, out, bounds):  # type: ignore[no-untyped-def]
    """The same on several threads."""
    for part in prange(len(bounds) - 1):
        activate(source, added, bias, activation, out, bounds[part], bounds[part + 1])


@njit(nogil=True, cache=True)
def mask_and_sum(gradient, output, masked, sums, activation, kept, first, last):  # type: ignore[no-untyped-def]
    """masked = gradient where output > 0 (both empty: as it is), elsewhere 0, or of ELU times one more than the output
    had been before dropout kept this share; sums[b]: column sums of block b, for each block."""
    width = gradient.shape[1]
    zero, one = gradient.dtype.type(0), gradient.dtype.type(1)
    for block in range(first, last):
        total = sums[block]
        for c in range(width):
            total[c] = zero
        for i in range(block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, len(gradient))):
            row = gradient[i]
            if len(output) > 0 and activation == ELU:
                before, into = output[i], masked[i]
                for c in range(width):
                    value = row[c] if before[c] > 0 else row[c] * (before[c] * kept + one)
                    into[c] = value
                    total[c] += value
            elif len(output) > 0:
                before, into = output[i], masked[i]
                for c in range(width):
                    value = zero if before[c] <= 0 else row[c]
                    into[c] = value
                    total[c] += value
            else:
                for c in range(width):
                    total[c] += row[c]


@njit(nogil=True, cache=True, parallel=True)
def mask_and_sum_parallel(gradient, output, masked, sums, activation, kept, bounds):  # type: ignore[no-untyped-def]
    """The same on several threads."""
    for part in prange(len(bounds) - 1):
        mask_and_sum(gradient, output, masked, sums, activation, kept, bounds[part], bounds[part + 1])


@njit(nogil=True, cache=True)
def add_into(target, index, rows, first, last):  # type: ignore[no-untyped-def]
    """target[index[k]] += rows[k]; no id twice."""
    width = target.shape[1]
    for k in range(first, last):
        into, row = target[index[k]], rows[k]
        for c in range(width):
            into[c] += row[c]


@njit(nogil=True, cache=True, parallel=True)
def add_into_parallel(target, index, rows, bounds):  # type: ignore[no-untyped-def]
    """The same on several threads."""
    for part in prange(len(bounds) - 1):
        add_into(target, index, rows, bounds[part], bounds[part + 1])


@njit(nogil=True, cache=True)
def move(source, picked, target, places, first, last):  # type: ignore[no-untyped-def]
    """target[places[k]] = source[picked[k]]; ``picked`` may be empty: source[k]."""
    width = target.shape[1]
    for k in range(first, last):
        row = source[picked[k]] if len(picked) > 0 else source[k]
        into = target[places[k]]
        for c in range(width):
            into[c] = row[c]


@njit(nogil=True, cache=True, parallel=True)
def move_parallel(source, picked, target, places, bounds):  # type: ignore[no-untyped-def]
    """The same on several threads; no two of ``places`` are equal."""
    for part in prange(len(bounds) - 1):
        move(source, picked, target, places, bounds[part], bounds[part + 1])
