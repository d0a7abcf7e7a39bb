"""What policies do with arrays beyond the array API standard: bytes of rows, and numbers drawn by a counter.

Everything here takes NumPy arrays and tensors of any device alike.
"""

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array

from simgnn.graph import hashing
from simgnn.policy import Array

UNIT_BITS = 24
"""Bits of a number in [0, 1): few enough that adding it to a code is exact in float64."""


def dtype_name(rows: Array) -> str:
    """Name of the element type, as programs spell it: "float32"."""
    return str(rows.dtype).removeprefix("torch.")


def contiguous(rows: Array) -> Array:
    """The same rows, one after another in memory."""
    return rows.contiguous() if is_torch_array(rows) else np.ascontiguousarray(rows)


def to_bytes(rows: Array) -> Array:
    """The memory of rows [n, F], uint8 [n, F x item bytes]."""
    xp = array_namespace(rows)
    shape = (rows.shape[0], rows.shape[1] * rows.dtype.itemsize)
    if not rows.shape[0]:  # torch cannot see bytes in a tensor without rows
        return xp.empty(shape, dtype=xp.uint8, device=device(rows))
    return contiguous(rows).view(xp.uint8)


def from_bytes(packed: Array, dtype: str) -> Array:
    """Rows [n, F] of ``dtype`` whose memory is ``packed`` uint8 [n, F x item bytes]."""
    xp = array_namespace(packed)
    kind = getattr(xp, dtype)
    if not packed.shape[0]:
        return xp.empty((0, packed.shape[1] // np.dtype(dtype).itemsize), dtype=kind, device=device(packed))
    flat = xp.reshape(packed, (-1,))  # as one line: torch sees no wider items in rows of odd strides
    if is_torch_array(flat) and flat.storage_offset() % kind.itemsize:
        flat = xp.asarray(flat, copy=True)  # nor where they do not begin at a multiple of an item
    return xp.reshape(flat.view(kind), (packed.shape[0], -1))


def signed(number: int) -> int:
    """A number of 64 bits as int64 holds it."""
    return number - (1 << 64) if number >> 63 else number


GOLDEN, MIX_A, MIX_B = (signed(int(number)) for number in (hashing.GOLDEN, hashing.MIX_A, hashing.MIX_B))


def draws(key: Array | int, counter: Array) -> Array:
    """Number ``counter`` of the random stream ``key``, int64 of their common shape.

    The numbers of :func:`simgnn.graph.hashing.splitmix` in signed integers, whose products wrap.
    """
    z = counter * GOLDEN + key
    z = (z ^ _shifted(z, 30)) * MIX_A
    z = (z ^ _shifted(z, 27)) * MIX_B
    return z ^ _shifted(z, 31)


def units(keys: Array, width: int) -> Array:
    """The first ``width`` numbers in [0, 1) of each stream, float64 [n, width]."""
    xp = array_namespace(keys)
    drawn = draws(keys[:, None], xp.arange(width, dtype=xp.int64, device=device(keys))[None, :])
    return xp.astype(_shifted(drawn, 64 - UNIT_BITS), xp.float64) * 2.0**-UNIT_BITS


def _shifted(z: Array, places: int) -> Array:
    """Shifted right without copies of the sign."""
    return (z >> places) & ((1 << (64 - places)) - 1)


def pick_rows(rows: Array, ids: Array) -> Array:
    """A copy of rows[ids], for int64 ``ids``."""
    return rows.index_select(0, ids) if is_torch_array(rows) else rows[ids]


def put_rows(target: Array, ids: Array, rows: Array) -> Array:
    """target[ids] = rows in place, for int64 ``ids`` without repeats; the target."""
    if is_torch_array(target):
        return target.index_copy_(0, ids, rows)
    target[ids] = rows
    return target


def add_rows(target: Array, ids: Array, rows: Array) -> Array:
    """target[ids] += rows in place, for int64 ``ids`` without repeats; the target."""
    if is_torch_array(target):
        return target.index_add_(0, ids, rows)
    target[ids] += rows
    return target


def places_of(chosen: Array) -> Array:
    """int64 places at which bool [n] is set, ascending."""
    return array_namespace(chosen).nonzero(chosen)[0]


def counted(like: Array, count: int) -> Array:
    """0, 1, .., count - 1 as int64, where ``like`` lies."""
    xp = array_namespace(like)
    return xp.arange(count, dtype=xp.int64, device=device(like))
