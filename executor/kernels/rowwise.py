"""Passes over all rows on the CPU, in Numba: bias, activation and its backward, rows added by index.

Each is one pass over memory. Column sums are taken over blocks of a fixed number of rows and then over the blocks in
order, so that they do not depend on the number of threads. NaN stays NaN: a run that diverges must show it. Each kernel
has a serial form (units first..last) and a parallel one, for :func:`executor.kernels.launch.launch`.
"""

from numba import njit, prange

BLOCK_ROWS = 1024
"""Rows whose column sums are taken together: part of the arithmetic, not a tuning knob."""


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def activate(source, added, bias, relu, out, first, last):  # type: ignore[no-untyped-def]
    """out = source + added + bias, then ReLU if ``relu``; ``added`` may be empty, ``out`` may be ``source``."""
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


@njit(nogil=True, cache=True, parallel=True)  # type: ignore[untyped-decorator]
def activate_parallel(source, added, bias, relu, out, bounds):  # type: ignore[no-untyped-def]
    """The same on several threads."""
    for part in prange(len(bounds) - 1):
        activate(source, added, bias, relu, out, bounds[part], bounds[part + 1])


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def mask_and_sum(gradient, output, masked, sums, first, last):  # type: ignore[no-untyped-def]
    """masked = gradient where output > 0 (both empty: as it is); sums[b]: column sums of block b, for each block."""
    width = gradient.shape[1]
    zero = gradient.dtype.type(0)
    for block in range(first, last):
        total = sums[block]
        for c in range(width):
            total[c] = zero
        for i in range(block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, len(gradient))):
            row = gradient[i]
            if len(output) > 0:
                kept, into = output[i], masked[i]
                for c in range(width):
                    value = zero if kept[c] <= 0 else row[c]
                    into[c] = value
                    total[c] += value
            else:
                for c in range(width):
                    total[c] += row[c]


@njit(nogil=True, cache=True, parallel=True)  # type: ignore[untyped-decorator]
def mask_and_sum_parallel(gradient, output, masked, sums, bounds):  # type: ignore[no-untyped-def]
    """The same on several threads."""
    for part in prange(len(bounds) - 1):
        mask_and_sum(gradient, output, masked, sums, bounds[part], bounds[part + 1])


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def add_into(target, index, rows, first, last):  # type: ignore[no-untyped-def]
    """target[index[k]] += rows[k]; no id twice."""
    width = target.shape[1]
    for k in range(first, last):
        into, row = target[index[k]], rows[k]
        for c in range(width):
            into[c] += row[c]


@njit(nogil=True, cache=True, parallel=True)  # type: ignore[untyped-decorator]
def add_into_parallel(target, index, rows, bounds):  # type: ignore[no-untyped-def]
    """The same on several threads."""
    for part in prange(len(bounds) - 1):
        add_into(target, index, rows, bounds[part], bounds[part + 1])


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def move(source, picked, target, places, first, last):  # type: ignore[no-untyped-def]
    """target[places[k]] = source[picked[k]]; ``picked`` may be empty: source[k]."""
    width = target.shape[1]
    for k in range(first, last):
        row = source[picked[k]] if len(picked) > 0 else source[k]
        into = target[places[k]]
        for c in range(width):
            into[c] = row[c]


@njit(nogil=True, cache=True, parallel=True)  # type: ignore[untyped-decorator]
def move_parallel(source, picked, target, places, bounds):  # type: ignore[no-untyped-def]
    """The same on several threads; no two of ``places`` are equal."""
    for part in prange(len(bounds) - 1):
        move(source, picked, target, places, bounds[part], bounds[part + 1])
