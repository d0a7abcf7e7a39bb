"""Computes columns of one row's weighted sum over edges, in blocks of columns that fit in vector registers."""

from numba import njit

from executor.kernels.edges.vector import BLOCK_VECTORS, VECTOR_BYTES, accumulate


@njit(nogil=True, inline="always")
def add_columns(  # type: ignore[no-untyped-def]
    indices, values, inner, halo, source_scale, start, own, begin, end, factor, out, first, last
):
    """:func:`executor.kernels.edges.vector.accumulate` for columns ``first`` to ``last``."""
    lanes = VECTOR_BYTES // out.itemsize
    column = first
    while column < last:
        block = BLOCK_VECTORS * lanes
        while block > last - column:
            block //= 2
        if block < last - column and 2 * block <= min(last - first, BLOCK_VECTORS * lanes):
            # what is left fits one larger block that ends with the last column: a few columns are computed twice, to
            # the same values, instead of in several narrow blocks
            block *= 2
            column = last - block
        c = column
        if block == 16 * lanes:
            accumulate(16, 0, inner, halo, indices, values, source_scale, start, own, begin, end, c, factor, out)
        elif block == 8 * lanes:
            accumulate(8, 0, inner, halo, indices, values, source_scale, start, own, begin, end, c, factor, out)
        elif block == 4 * lanes:
            accumulate(4, 0, inner, halo, indices, values, source_scale, start, own, begin, end, c, factor, out)
        elif block == 2 * lanes:
            accumulate(2, 0, inner, halo, indices, values, source_scale, start, own, begin, end, c, factor, out)
        elif block == lanes:
            accumulate(1, 0, inner, halo, indices, values, source_scale, start, own, begin, end, c, factor, out)
        elif 2 * block == lanes:
            accumulate(1, 1, inner, halo, indices, values, source_scale, start, own, begin, end, c, factor, out)
        elif 4 * block == lanes:
            accumulate(1, 2, inner, halo, indices, values, source_scale, start, own, begin, end, c, factor, out)
        elif 8 * block == lanes:
            accumulate(1, 3, inner, halo, indices, values, source_scale, start, own, begin, end, c, factor, out)
        else:
            accumulate(1, 4, inner, halo, indices, values, source_scale, start, own, begin, end, c, factor, out)
        column += block
