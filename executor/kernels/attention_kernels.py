"""Numba kernels of attention; :mod:`executor.kernels.attention` says what they compute.

Each takes CSR arrays and a range of rows, and has a parallel form for :func:`executor.kernels.launch.launch`. A value
is summed by one thread in the order of the edges, a self loop last: results do not depend on the number of threads.
"""

import numpy as np
from numba import njit, prange


@njit(nogil=True, cache=True, inline="always")  # type: ignore[untyped-decorator]
def _leaky(value, slope):  # type: ignore[no-untyped-def]
    return value if value > 0 else slope * value


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def maxima(indptr, indices, source, target, looped, slope, out, first, last):  # type: ignore[no-untyped-def]
    """out[i, h] = greatest score over the edges of row i."""
    heads = out.shape[1]
    slope = out.dtype.type(slope)
    for i in range(first, last):
        for h in range(heads):
            best = -np.inf
            for edge in range(indptr[i], indptr[i + 1]):
                best = max(best, _leaky(source[indices[edge], h] + target[i, h], slope))
            if i < looped:
                best = max(best, _leaky(source[i, h] + target[i, h], slope))
            out[i, h] = best


@njit(nogil=True, cache=True, parallel=True)  # type: ignore[untyped-decorator]
def maxima_parallel(indptr, indices, source, target, looped, slope, out, bounds):  # type: ignore[no-untyped-def]
    """The same on several threads."""
    for part in prange(len(bounds) - 1):
        maxima(indptr, indices, source, target, looped, slope, out, bounds[part], bounds[part + 1])


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def sums(  # type: ignore[no-untyped-def]
    indptr, indices, inner, halo, source, target, maximum, looped, slope, out, first, last
):
    """out[i] = [N | D] of row i."""
    width, heads, owned = inner.shape[1], maximum.shape[1], len(inner)
    part = width // heads
    slope = out.dtype.type(slope)
    for i in range(first, last):
        into = out[i]
        into[:] = 0
        end = indptr[i + 1] + (1 if i < looped else 0)
        for edge in range(indptr[i], end):
            j = indices[edge] if edge < indptr[i + 1] else i
            row = inner[j] if j < owned else halo[j - owned]
            for h in range(heads):
                weight = np.exp(_leaky(source[j, h] + target[i, h], slope) - maximum[i, h])
                into[width + h] += weight
                for c in range(h * part, (h + 1) * part):
                    into[c] += weight * row[c]


@njit(nogil=True, cache=True, parallel=True)  # type: ignore[untyped-decorator]
def sums_parallel(  # type: ignore[no-untyped-def]
    indptr, indices, inner, halo, source, target, maximum, looped, slope, out, bounds
):
    """The same on several threads."""
    for part in prange(len(bounds) - 1):
        sums(indptr, indices, inner, halo, source, target, maximum, looped, slope, out, bounds[part], bounds[part + 1])


@njit(nogil=True, cache=True, inline="always")  # type: ignore[untyped-decorator]
def _of_score(row, above, h, part, width, raw, slope, ceiling, maximum):  # type: ignore[no-untyped-def]
    """Weight of an edge and the gradient of its score before the leaky ReLU; ``above``: the gradient of [N | D]."""
    weight = np.exp(min(_leaky(raw, slope) - maximum, ceiling))
    total = above[width + h]
    for c in range(h * part, (h + 1) * part):
        total += row[c] * above[c]
    total *= weight
    return weight, (total if raw > 0 else slope * total)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def target_gradients(  # type: ignore[no-untyped-def]
    indptr, indices, inner, halo, gradient, source, target, maximum, looped, slope, ceiling, out, first, last
):
    """out[i, h]: gradient of target_score, summed over the edges of row i. ``ceiling``: of exponents."""
    width, heads, owned = inner.shape[1], maximum.shape[1], len(inner)
    part = width // heads
    slope, ceiling = out.dtype.type(slope), out.dtype.type(ceiling)
    for i in range(first, last):
        out[i] = 0
        end = indptr[i + 1] + (1 if i < looped else 0)
        for edge in range(indptr[i], end):
            j = indices[edge] if edge < indptr[i + 1] else i
            row = inner[j] if j < owned else halo[j - owned]
            for h in range(heads):
                raw = source[j, h] + target[i, h]
                out[i, h] += _of_score(row, gradient[i], h, part, width, raw, slope, ceiling, maximum[i, h])[1]


@njit(nogil=True, cache=True, parallel=True)  # type: ignore[untyped-decorator]
def target_gradients_parallel(  # type: ignore[no-untyped-def]
    indptr, indices, inner, halo, gradient, source, target, maximum, looped, slope, ceiling, out, bounds
):
    """The same on several threads."""
    for part in prange(len(bounds) - 1):
        target_gradients(
            indptr, indices, inner, halo, gradient, source, target, maximum, looped, slope, ceiling, out,
            bounds[part], bounds[part + 1],
        )  # fmt: skip


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def source_gradients(  # type: ignore[no-untyped-def]
    indptr, indices, rows, gradient, source, target, maximum, looped, slope, ceiling, of_source, out, place, first, last
):
    """out[j - place] = gradient of row P[j] through the sums, of_source[j, h]: of source_score, over the edges from j.

    Edges by source; ``rows`` are P[place], P[place + 1], ...
    """
    width, heads = rows.shape[1], maximum.shape[1]
    part = width // heads
    slope, ceiling = out.dtype.type(slope), out.dtype.type(ceiling)
    for j in range(first, last):
        row, into = rows[j - place], out[j - place]
        into[:] = 0
        of_source[j] = 0
        end = indptr[j + 1] + (1 if j < looped else 0)
        for edge in range(indptr[j], end):
            i = indices[edge] if edge < indptr[j + 1] else j
            above = gradient[i]
            for h in range(heads):
                raw = source[j, h] + target[i, h]
                weight, found = _of_score(row, above, h, part, width, raw, slope, ceiling, maximum[i, h])
                of_source[j, h] += found
                for c in range(h * part, (h + 1) * part):
                    into[c] += weight * above[c]


@njit(nogil=True, cache=True, parallel=True)  # type: ignore[untyped-decorator]
def source_gradients_parallel(  # type: ignore[no-untyped-def]
    indptr, indices, rows, gradient, source, target, maximum, looped, slope, ceiling, of_source, out, place, bounds
):
    """The same on several threads."""
    for part in prange(len(bounds) - 1):
        source_gradients(
            indptr, indices, rows, gradient, source, target, maximum, looped, slope, ceiling, of_source, out, place,
            bounds[part], bounds[part + 1],
        )  # fmt: skip
