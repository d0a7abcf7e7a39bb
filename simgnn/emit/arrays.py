"""Array functions beyond the array API standard: rows as bytes, counter-based random numbers, gather and scatter.

All functions take NumPy arrays and tensors on any device."""

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array

from simgnn.graph import hashing
from simgnn.policy import Array

UNIT_BITS = 24
"""Bits of a number in [0, 1): few enough that adding it to a code is exact in float64."""


def dtype_name(rows: Array) -> str:
    """Return the name of the element type as programs write it: "float32"."""
    return str(rows.dtype).removeprefix("torch.")


def contiguous(rows: Array) -> Array:
    """Return the rows in contiguous memory; a copy only where they are not contiguous yet."""
    return rows.contiguous() if is_torch_array(rows) else np.ascontiguousarray(rows)


def to_bytes(rows: Array) -> Array:
    """View rows [n, F] as bytes, uint8 [n, F x item bytes]."""
    xp = array_namespace(rows)
    shape = (rows.shape[0], rows.shape[1] * rows.dtype.itemsize)
    if not rows.shape[0]:  # torch cannot see bytes in a tensor without rows
        return xp.empty(shape, dtype=xp.uint8, device=device(rows))
    return contiguous(rows).view(xp.uint8)


def from_bytes(packed: Array, dtype: str) -> Array:
    """Turn bytes, uint8 [n, F x item bytes], back into rows [n, F] of ``dtype``."""
    xp = array_namespace(packed)
    kind = getattr(xp, dtype)
    if not packed.shape[0]:
        return xp.empty((0, packed.shape[1] // np.dtype(dtype).itemsize), dtype=kind, device=device(packed))
    flat = xp.reshape(packed, (-1,))  # as one line: torch sees no wider items in rows of odd strides
    if is_torch_array(flat) and (flat.stride(0) > 1 or flat.storage_offset() % kind.itemsize):
        flat = xp.asarray(flat, copy=True)  # nor where they do not begin at a multiple of an item or lie apart
    return xp.reshape(flat.view(kind), (packed.shape[0], -1))


def signed(number: int) -> int:
    """Reinterpret an unsigned number of 64 bits as int64."""
    return number - (1 << 64) if number >> 63 else number


GOLDEN, MIX_A, MIX_B = (signed(int(number)) for number in (hashing.GOLDEN, hashing.MIX_A, hashing.MIX_B))


def draws(key: Array | int, counter: Array) -> Array:
    """Return random number ``counter`` of each stream ``key``, int64; the two arguments are broadcast to one shape.

    The numbers equal those of :func:`simgnn.graph.hashing.splitmix`; products wrap in signed integers."""
    z = counter * GOLDEN + key
    z = (z ^ _shifted(z, 30)) * MIX_A
    z = (z ^ _shifted(z, 27)) * MIX_B
    return z ^ _shifted(z, 31)


def units(keys: Array, width: int) -> Array:
    """Return the first ``width`` random numbers in [0, 1) of each stream, float64 [n, width]."""
    xp = array_namespace(keys)
    drawn = draws(keys[:, None], xp.arange(width, dtype=xp.int64, device=device(keys))[None, :])
    return xp.astype(_shifted(drawn, 64 - UNIT_BITS), xp.float64) * 2.0**-UNIT_BITS


def _shifted(z: Array, places: int) -> Array:
    return (z >> places) & ((1 << (64 - places)) - 1)


def pick_rows(rows: Array, ids: Array) -> Array:
    """Return a copy of rows[ids]; ``ids``: int64."""
    return rows.index_select(0, ids) if is_torch_array(rows) else rows[ids]


def pick_rows_into(target: Array, rows: Array, ids: Array) -> Array:
    """Copy rows[ids] into ``target``, without memory between the two, and return it; ``ids``: int64."""
    if is_torch_array(rows):
        return array_namespace(rows).index_select(rows, 0, ids, out=target)
    return np.take(rows, ids, axis=0, out=target, mode="clip")  # other modes copy


def put_rows(target: Array, ids: Array, rows: Array) -> Array:
    """Set target[ids] = rows in place and return ``target``; ``ids``: int64 without repeats."""
    if is_torch_array(target):
        return target.index_copy_(0, ids, rows)
    target[ids] = rows
    return target


def add_rows(target: Array, ids: Array, rows: Array) -> Array:
    """Add rows to target[ids] in place and return ``target``; ``ids``: int64 without repeats."""
    if is_torch_array(target):
        return target.index_add_(0, ids, rows)
    target[ids] += rows
    return target


def places_of(chosen: Array) -> Array:
    """Return the positions at which bool [n] is True, ascending int64."""
    return array_namespace(chosen).nonzero(chosen)[0]


def counted(like: Array, count: int) -> Array:
    """Return 0, 1, .., count - 1 as int64 on the device of ``like``."""
    xp = array_namespace(like)
    return xp.arange(count, dtype=xp.int64, device=device(like))
