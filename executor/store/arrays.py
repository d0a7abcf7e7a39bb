"""Named arrays in shared memory: one rank of a host makes them, all read them in place.

They lie in one segment: 8 bytes that say how long the table of contents is, the table (JSON: name, type and shape of
each), then the arrays, each from a multiple of 64 bytes on.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from executor.state.context import GroupHandle
from executor.store.shared import agree, rank_of, shared_rows

ALIGNED_TO = 64
HEADER_BYTES = 8


def shared_arrays(
    make: Callable[[], Mapping[str, NDArray[Any]]], creator: int, group: GroupHandle
) -> dict[str, NDArray[Any]]:
    """Arrays that this rank shares with its host, read only. Every member of the group calls it.

    ``creator``: the rank of this host that alone calls ``make``. What fails on one rank fails on all:
    :class:`~simgnn.errors.BackendError`, or on that rank its own error.
    """
    arrays: Mapping[str, NDArray[Any]] = {}
    fault: Exception | None = None
    size = ""
    if creator == rank_of(group):
        try:
            arrays = make()
            size = str(_places(_contents(arrays))[1])
        except Exception as error:  # agreed on below, then raised
            fault = error
    sizes = agree(size, fault, group)

    def fill(rows: torch.Tensor) -> None:
        _pack(arrays, rows.view(-1).numpy())

    shape = int(sizes[group.members.index(creator)]), 1
    return _unpack(shared_rows(shape, torch.uint8, creator, fill, group).view(-1).numpy())


def _contents(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    return json.dumps([[name, array.dtype.str, array.shape] for name, array in arrays.items()]).encode()


def _places(contents: bytes) -> tuple[list[tuple[str, np.dtype[Any], tuple[int, ...], int]], int]:
    """Name, type, shape and first byte of each array; where the last one ends."""
    at, found = HEADER_BYTES + len(contents), []
    for name, kind, shape in json.loads(contents):
        at = -(-at // ALIGNED_TO) * ALIGNED_TO
        dtype = np.dtype(kind)
        found.append((name, dtype, tuple(shape), at))
        at += dtype.itemsize * int(np.prod(shape))
    return found, at


def _pack(arrays: Mapping[str, NDArray[Any]], raw: NDArray[np.uint8]) -> None:
    contents = _contents(arrays)
    raw[:HEADER_BYTES] = np.frombuffer(len(contents).to_bytes(HEADER_BYTES, "little"), np.uint8)
    raw[HEADER_BYTES : HEADER_BYTES + len(contents)] = np.frombuffer(contents, np.uint8)
    for name, dtype, shape, at in _places(contents)[0]:
        _view(raw, dtype, shape, at)[...] = arrays[name]


def _unpack(raw: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
    length = int.from_bytes(raw[:HEADER_BYTES].tobytes(), "little")
    contents = raw[HEADER_BYTES : HEADER_BYTES + length].tobytes()
    found = {name: _view(raw, dtype, shape, at) for name, dtype, shape, at in _places(contents)[0]}
    for array in found.values():
        array.flags.writeable = False  # all ranks of the host read them
    return found


def _view(raw: NDArray[np.uint8], dtype: np.dtype[Any], shape: tuple[int, ...], at: int) -> NDArray[Any]:
    nbytes = dtype.itemsize * int(np.prod(shape))
    return raw[at : at + nbytes].view(dtype).reshape(shape)
