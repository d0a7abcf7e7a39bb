"""Numba kernels of attention; :mod:`executor.kernels.edges.attention` says what they compute.

The weights of a row's edges are computed first, then its sums, head by head in vector registers. Each kernel takes CSR
arrays and a range of rows, and has a parallel form for :func:`executor.kernels.launch.launch`. A value is summed by one
thread in the order of the edges, a self loop last: results do not depend on the number of threads.
"""

import numpy as np
from numba import njit, prange

from executor.kernels.edges.columns import add_columns
from executor.kernels.edges.vector import products


@njit(nogil=True, cache=True, inline="always")
def _leaky(value, slope):  # type: ignore[no-untyped-def]
    return value if value > 0 else slope * value


@njit(nogil=True, cache=True, inline="always")
def _leaky_gradient(above, value, slope):  # type: ignore[no-untyped-def]
    return above if value > 0 else slope * above


@njit(nogil=True, cache=True)
def row_scores(rows, vectors, out, first, last):  # type: ignore[no-untyped-def]
    """out[i, h] = product of part h of row i with that of ``vectors`` [1, F]."""
    heads = out.shape[1]
    part = rows.shape[1] // heads
    for i in range(first, last):
        for h in range(heads):
            out[i, h] = products(rows, i, vectors, 0, h * part, part)


@njit(nogil=True, cache=True, parallel=True)
def row_scores_parallel(rows, vectors, out, bounds):  # type: ignore[no-untyped-def]
    for part in prange(len(bounds) - 1):
        row_scores(rows, vectors, out, bounds[part], bounds[part + 1])


@njit(nogil=True, cache=True)
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


@njit(nogil=True, cache=True, parallel=True)
def maxima_parallel(indptr, indices, source, target, looped, slope, out, bounds):  # type: ignore[no-untyped-def]
    for part in prange(len(bounds) - 1):
        maxima(indptr, indices, source, target, looped, slope, out, bounds[part], bounds[part + 1])


@njit(nogil=True, cache=True)
def _most_edges(indptr, first, last):  # type: ignore[no-untyped-def]
    """The most edges that one of the rows ``first``..``last`` - 1 has, plus one for a self loop."""
    most = 0
    for i in range(first, last):
        most = max(most, indptr[i + 1] - indptr[i])
    return most + 1


@njit(nogil=True, cache=True, inline="always")
def _edges_of(indptr, indices, looped, i, into):  # type: ignore[no-untyped-def]
    """Write the sources of the edges of row i to ``into``, a self loop last, and return their number."""
    begin = indptr[i]
    count = indptr[i + 1] - begin
    for k in range(count):
        into[k] = indices[begin + k]
    if i < looped:
        into[count] = i
        count += 1
    return count


@njit(nogil=True, cache=True)
def sums(  # type: ignore[no-untyped-def]
    indptr, indices, inner, halo, source, target, maximum, looped, slope, out, first, last
):
    """out[i] = [N | D] of row i."""
    width, heads = inner.shape[1], maximum.shape[1]
    part = width // heads
    slope, one = out.dtype.type(slope), out.dtype.type(1)
    most = _most_edges(indptr, first, last)
    ends, weights = np.empty(most, indices.dtype), np.empty((heads, most), out.dtype)
    for i in range(first, last):
        count = _edges_of(indptr, indices, looped, i, ends)
        for h in range(heads):
            total = one - one
            for k in range(count):
                weight = np.exp(_leaky(source[ends[k], h] + target[i, h], slope) - maximum[i, h])
                weights[h, k] = weight
                total += weight
            out[i, width + h] = total
            left = h * part
            add_columns(ends, weights[h], inner, halo, None, one - one, i, 0, count, one, out, left, left + part)


@njit(nogil=True, cache=True, parallel=True)
def sums_parallel(  # type: ignore[no-untyped-def]
    indptr, indices, inner, halo, source, target, maximum, looped, slope, out, bounds
):
    for part in prange(len(bounds) - 1):
        sums(indptr, indices, inner, halo, source, target, maximum, looped, slope, out, bounds[part], bounds[part + 1])


@njit(nogil=True, cache=True)
def target_gradients(  # type: ignore[no-untyped-def]
    indptr, indices, inner, halo, gradient, source, target, maximum, looped, slope, ceiling, out, first, last
):
    """out[i, h] = gradient of target_score[i, h], summed over the edges of row i. ``ceiling``: limit of exponents."""
    width, heads, owned = inner.shape[1], maximum.shape[1], len(inner)
    part = width // heads
    slope, ceiling = out.dtype.type(slope), out.dtype.type(ceiling)
    for i in range(first, last):
        out[i] = 0
        end = indptr[i + 1] + (1 if i < looped else 0)
        for edge in range(indptr[i], end):
            j = indices[edge] if edge < indptr[i + 1] else i
            for h in range(heads):
                raw = source[j, h] + target[i, h]
                if j < owned:
                    total = products(inner, j, gradient, i, h * part, part)
                else:
                    total = products(halo, j - owned, gradient, i, h * part, part)
                weight = np.exp(min(_leaky(raw, slope) - maximum[i, h], ceiling))
                out[i, h] += _leaky_gradient(weight * (gradient[i, width + h] + total), raw, slope)


@njit(nogil=True, cache=True, parallel=True)
def target_gradients_parallel(  # type: ignore[no-untyped-def]
    indptr, indices, inner, halo, gradient, source, target, maximum, looped, slope, ceiling, out, bounds
):
    for part in prange(len(bounds) - 1):
        target_gradients(
            indptr, indices, inner, halo, gradient, source, target, maximum, looped, slope, ceiling, out,
            bounds[part], bounds[part + 1],
        )  # fmt: skip


@njit(nogil=True, cache=True)
def source_gradients(  # type: ignore[no-untyped-def]
    indptr, indices, rows, gradient, source, target, maximum, looped, slope, ceiling, of_source, out, place, first, last
):
    """Write out[j - place] = gradient of P[j] and of_source[j, h] = gradient of source_score[j, h], for each source j.

    The CSR groups edges by source. The gradient of P[j] leaves out the part through its score. ``rows[0]`` = P[place].
    """
    width, heads = rows.shape[1], maximum.shape[1]
    part = width // heads
    slope, ceiling, one = out.dtype.type(slope), out.dtype.type(ceiling), out.dtype.type(1)
    most = _most_edges(indptr, first, last)
    ends, weights = np.empty(most, indices.dtype), np.empty((heads, most), out.dtype)
    no_rows = gradient[:0]
    for j in range(first, last):
        count = _edges_of(indptr, indices, looped, j, ends)
        of_source[j] = 0
        for k in range(count):
            i = ends[k]
            for h in range(heads):
                raw = source[j, h] + target[i, h]
                weight = np.exp(min(_leaky(raw, slope) - maximum[i, h], ceiling))
                total = gradient[i, width + h] + products(rows, j - place, gradient, i, h * part, part)
                of_source[j, h] += _leaky_gradient(weight * total, raw, slope)
                weights[h, k] = weight
        for h in range(heads):
            left = h * part
            add_columns(
                ends, weights[h], gradient, no_rows, None, one - one, j - place, 0, count, one, out, left, left + part
            )


@njit(nogil=True, cache=True, parallel=True)
def source_gradients_parallel(  # type: ignore[no-untyped-def]
    indptr, indices, rows, gradient, source, target, maximum, looped, slope, ceiling, of_source, out, place, bounds
):
    for part in prange(len(bounds) - 1):
        source_gradients(
            indptr, indices, rows, gradient, source, target, maximum, looped, slope, ceiling, of_source, out, place,
            bounds[part], bounds[part + 1],
        )  # fmt: skip


@njit(nogil=True, cache=True, error_model="numpy")
def quotients(sums, out, first, last):  # type: ignore[no-untyped-def]
    """out[i] = N / D from [N | D]; NaN for rows without edges."""
    width = out.shape[1]
    heads = sums.shape[1] - width
    part = width // heads
    for i in range(first, last):
        for h in range(heads):
            row, into = sums[i, h * part : (h + 1) * part], out[i, h * part : (h + 1) * part]
            weight = sums[i, width + h]
            for c in range(part):
                into[c] = row[c] / weight


@njit(nogil=True, cache=True, parallel=True)
def quotients_parallel(sums, out, bounds):  # type: ignore[no-untyped-def]
    for part in prange(len(bounds) - 1):
        quotients(sums, out, bounds[part], bounds[part + 1])


@njit(nogil=True, cache=True, error_model="numpy")
def quotient_gradients(gradient, sums, result, out, first, last):  # type: ignore[no-untyped-def]
    """out[i] = gradient of row i of [N | D], from ``gradient``, that of ``result`` = N / D."""
    width = gradient.shape[1]
    heads = sums.shape[1] - width
    part = width // heads
    for i in range(first, last):
        for h in range(heads):
            above, into = gradient[i, h * part : (h + 1) * part], out[i, h * part : (h + 1) * part]
            weight = sums[i, width + h]
            for c in range(part):
                into[c] = above[c] / weight
            out[i, width + h] = -products(out, i, result, i, h * part, part)


@njit(nogil=True, cache=True, parallel=True)
def quotient_gradients_parallel(gradient, sums, result, out, bounds):  # type: ignore[no-untyped-def]
    for part in prange(len(bounds) - 1):
        quotient_gradients(gradient, sums, result, out, bounds[part], bounds[part + 1])
