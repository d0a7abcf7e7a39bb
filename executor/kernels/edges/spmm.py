"""CSR times dense rows on the CPU, in Numba: the aggregation, and sparse features times a weight matrix.

Source rows lie in two arrays (a rank's own rows, then its halo rows), so that received rows are never copied next to
own ones. Scalings of sources and destinations and the row's own term are part of the one pass over the edges.
Each output value is summed by one thread in the order of the edges: results do not depend on the number of threads.
"""

from typing import Any

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from executor.kernels.edges.columns import add_columns
from executor.kernels.launch import launch

Floats = NDArray[Any]


@njit(nogil=True, cache=True)
def _serial(  # type: ignore[no-untyped-def]
    begins, ends, indices, values, inner, halo, source_scale, destination_scale, own_scale, one, out, first, last
):
    for i in range(first, last):
        start = own_scale[i] if len(own_scale) > 0 else one - one
        factor = destination_scale[i] if len(destination_scale) > 0 else one
        add_columns(
            indices, values, inner, halo, source_scale, start, i, begins[i], ends[i], factor, out,
            0, out.shape[1],
        )  # fmt: skip


@njit(nogil=True, cache=True, parallel=True)
def _parallel(  # type: ignore[no-untyped-def]
    begins, ends, indices, values, inner, halo, source_scale, destination_scale, own_scale, one, out, bounds
):
    for part in prange(len(bounds) - 1):
        _serial(
            begins, ends, indices, values, inner, halo, source_scale, destination_scale, own_scale, one, out,
            bounds[part], bounds[part + 1],
        )  # fmt: skip


def spmm(
    indptr: NDArray[Any],
    indices: NDArray[Any],
    inner: Floats,
    out: Floats,
    bounds: NDArray[np.int64],
    *,
    ends: NDArray[Any] | None = None,
    halo: Floats | None = None,
    values: Floats | None = None,
    source_scale: Floats | None = None,
    destination_scale: Floats | None = None,
    own_scale: Floats | None = None,
) -> None:
    """Write out_i = destination_i * (own_i * inner_i + sum over k of values_k * source_j * x_j), j = indices_k, [n, F].

    ``indptr`` int64 [n + 1] (need not start at 0): where each row's edges begin, and the last row's end; with ``ends``
    int64 [n] a row's edges end there instead, and ``indptr`` has [n]. ``indices`` int32 or int64; x_j is ``inner``
    [m, F] for j < m, else ``halo`` [h, F] at j - m. All float arrays are C-contiguous and of one dtype, float32 or
    float64. ``values`` [edges], ``source_scale`` [m + h] and ``destination_scale`` [n] are ones where None,
    ``own_scale`` [n] zeros. ``bounds`` int64 [parts + 1]: rows of each thread
    (:func:`executor.kernels.launch.balanced_rows`). Ids are not checked. ``out`` must not overlap the inputs.
    """
    dtype = out.dtype
    assert (inner.dtype, inner.shape[1]) == (dtype, out.shape[1]), "rows of one dtype and width"
    none = np.empty(0, dtype)
    arguments = (
        indptr[:-1] if ends is None else indptr,
        indptr[1:] if ends is None else ends,
        indices,
        values,
        inner,
        np.empty((0, out.shape[1]), dtype) if halo is None else halo,
        source_scale,
        none if destination_scale is None else destination_scale,
        none if own_scale is None else own_scale,
        dtype.type(1),
        out,
    )
    launch(_serial, _parallel, arguments, bounds)
