"""Inverted dropout in place: random elements of rows become zero, and the others are scaled up.

The mask is a pure function of a key, the row's vertex and the column. So every rank that computes a row drops the same
elements, and backward draws the mask again instead of storing it. Each element has a random 16-bit number and is
dropped if that is below ``dropped``. Vertex v seeds a stream of 64-bit numbers with splitmix(key, v); column c has
the 16 bits from bit 16 (c % 4) of number c // 4 of the stream (:func:`simgnn.graph.hashing.splitmix`).
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
    """Multiply elements of ``rows`` [n, F] by 0 or 1 / (1 - dropout rate), in place if contiguous; no autograd.
    ``vertices`` int64 [n]; ``key``: 64 bits; ``dropped``: rate times 65,536, 1..65535. Deterministic. NaN stays NaN."""
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
    """Return the factor of each element, 0 or 1 / (1 - dropout rate): [n, width] on the device of ``vertices`` int64
    [n], bit for bit as the compiled kernel computes them."""
    streams = arrays.draws(arrays.signed(key), vertices)
    drawn = arrays.draws(streams[:, None], torch.arange(-(-width // 4), device=vertices.device))
    shifts = torch.arange(0, 64, 16, device=vertices.device)
    bits = ((drawn[:, :, None] >> shifts) & 0xFFFF).flatten(1)[:, :width]
    scale = torch.tensor(1 / kept_share(dropped), dtype=dtype, device=vertices.device)
    return torch.where(bits >= dropped, scale, torch.zeros_like(scale))


@njit(nogil=True, cache=True)
def drop(rows, vertices, key, dropped, scale, first, last):  # type: ignore[no-untyped-def]
    """Drop elements of ``rows`` [n, F] in place and multiply the rest by ``scale``. ``key``, ``dropped``: uint64."""
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
