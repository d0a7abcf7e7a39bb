"""Dropout: elements of rows become zero at random, and the others grow to make up for it, in place.

Which elements is a pure function of a key, the row's vertex and the column. So every rank that computes a row drops the
same elements, and backward draws the mask again instead of storing it. Element c of vertex v is dropped where 16 bits
are below ``dropped``: those at place c % 4 of number c // 4 of the stream that starts from number v of the stream
``key`` (:func:`simgnn.graph.hashing.splitmix`).
Source: Srivastava et al., JMLR 2014, with inverted scaling.
"""

import numpy as np
import torch
from numba import njit, prange

from executor.kernels.launch import array, compiled_for, default_threads, even_parts, launch
from simgnn.emit import arrays
from simgnn.graph.hashing import splitmix
from simgnn.model.spec import kept_share

BLOCK_ELEMENTS = 1 << 22
"""Elements whose factors torch makes at a time: each takes a few tens of bytes while they are made."""
_BITS, _LOW = np.uint64(16), np.uint64(0xFFFF)


def drop_out(rows: torch.Tensor, vertices: torch.Tensor, key: int, dropped: int) -> torch.Tensor:
    """``rows`` [n, F] times 0 or 1 / the share that is kept, in place where they are contiguous; no autograd.
    ``vertices`` int64 [n]; ``key``: 64 bits; ``dropped``: 65,536ths, 1..65535. Deterministic. NaN stays NaN."""
    if compiled_for(rows):
        places = vertices.contiguous().cpu().numpy()
        scale = array(rows).dtype.type(1 / kept_share(dropped))
        arguments = array(rows), places, np.uint64(key), np.uint64(dropped), scale
        launch(drop, drop_parallel, arguments, even_parts(len(rows), default_threads()))
        return rows
    rows = rows.contiguous()
    block = max(1, BLOCK_ELEMENTS // max(1, rows.shape[1]))
    for first in range(0, len(rows), block):
        part = rows[first : first + block]
        part.mul_(factors(vertices[first : first + block].to(rows.device), rows.shape[1], key, dropped, rows.dtype))
    return rows


def factors(vertices: torch.Tensor, width: int, key: int, dropped: int, dtype: torch.dtype) -> torch.Tensor:
    """What elements are multiplied by, [n, width] on the device of ``vertices`` int64 [n]; equal bit for bit to the
    factors of the compiled kernel."""
    streams = arrays.draws(arrays.signed(key), vertices)
    drawn = arrays.draws(streams[:, None], torch.arange(-(-width // 4), device=vertices.device))
    shifts = torch.arange(0, 64, 16, device=vertices.device)
    bits = ((drawn[:, :, None] >> shifts) & 0xFFFF).flatten(1)[:, :width]
    scale = torch.tensor(1 / kept_share(dropped), dtype=dtype, device=vertices.device)
    return torch.where(bits >= dropped, scale, torch.zeros_like(scale))


@njit(nogil=True, cache=True)
def drop(rows, vertices, key, dropped, scale, first, last):  # type: ignore[no-untyped-def]
    """rows [n, F] in place; ``vertices`` int64 [n], ``key`` and ``dropped`` uint64, ``scale`` of the rows' type."""
    width, zero = rows.shape[1], rows.dtype.type(0)
    for i in range(first, last):
        row, stream = rows[i], splitmix(key, np.uint64(vertices[i]))
        for begin in range(0, width, 4):
            drawn = splitmix(stream, np.uint64(begin >> 2))
            for c in range(begin, min(begin + 4, width)):
                row[c] *= zero if (drawn & _LOW) < dropped else scale
                drawn >>= _BITS


@njit(nogil=True, cache=True, parallel=True)
def drop_parallel(rows, vertices, key, dropped, scale, bounds):  # type: ignore[no-untyped-def]
    for part in prange(len(bounds) - 1):
        drop(rows, vertices, key, dropped, scale, bounds[part], bounds[part + 1])
