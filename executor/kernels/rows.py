"""Gathers rows by index into a send buffer, and writes or adds received rows to the rows that an index names."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numba import njit, prange
from numpy.typing import NDArray

from executor.kernels.launch import array, compiled_for, default_threads, even_parts, launch

Ints = NDArray[Any]


def gather_rows(source: torch.Tensor, index: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Copy source[index], of ``source`` [n, F] with ``index`` int [k] in 0..n-1, to ``out`` [k, F] or a new tensor."""
    return torch.index_select(source, 0, index, out=out)


def add_rows(target: torch.Tensor, index: torch.Tensor, rows: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """target[index[k]] += rows[k], in place and in a fixed order: the first ``counts[0]`` rows, then ``counts[1]``...
    ``target`` [n, F], ``index`` int [k], ``rows`` [k, F]; ``counts`` adds up to k, one number a sender in ascending
    order; no id appears twice in one sender's rows. So sums of rows from several ranks are the same in every run."""
    parts = zip(torch.split(index, list(counts)), torch.split(rows, list(counts)), strict=True)
    compiled = target.dim() == 2 and compiled_for(target) and compiled_for(rows) and index.device.type == "cpu"
    if compiled and len(index) and (int(index.min()) < 0 or int(index.max()) >= len(target)):
        raise IndexError(f"row ids must lie in 0..{len(target) - 1}; got {int(index.min())}..{int(index.max())}")
    for ids, part in parts:
        if not len(ids):
            continue
        if compiled:
            arguments = (array(target), ids.numpy(), array(part))
            launch(add_into, add_into_parallel, arguments, even_parts(len(ids), default_threads()))
        else:
            target.index_add_(0, ids, part)
    return target


def max_rows(target: torch.Tensor, index: torch.Tensor, rows: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """target[index[k]] = max(target[index[k]], rows[k]) by element, in place; arguments as in :func:`add_rows`."""
    for ids, part in zip(torch.split(index, list(counts)), torch.split(rows, list(counts)), strict=True):
        target.index_copy_(0, ids, torch.maximum(target.index_select(0, ids), part))
    return target


def move_rows(source: torch.Tensor, picked: Ints | None, target: torch.Tensor, places: Ints) -> int:
    """target[places[k]] = source[picked[k]], in place and without a copy between the two; ``picked`` None: source[k].
    Returns how many rows were moved. ``source`` [n, F], ``target`` [m, F]; ``picked``, ``places`` int [k] arrays, no
    place twice. Raises :class:`IndexError` for an id that is no row."""
    for ids, rows, name in ((places, len(target), "target"), (picked, len(source), "source")):
        if ids is not None and len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < rows:
            raise IndexError(f"{name} rows must lie in 0..{rows - 1}; got {int(ids.min())}..{int(ids.max())}")
    if picked is None and len(source) < len(places):
        raise IndexError(f"got {len(source)} rows to move, expected at least {len(places)}, one for each place")
    if not len(places):
        return 0
    if compiled_for(source) and compiled_for(target) and source.dtype == target.dtype:
        # copies of one type: lists on disk are of several, each of which Numba would compile for anew
        chosen = np.array(places[:0] if picked is None else picked, dtype=np.int64)
        arguments = (array(source), chosen, array(target), np.array(places, dtype=np.int64))
        launch(move, move_parallel, arguments, even_parts(len(places), default_threads()))
        return len(places)
    moved = source[: len(places)] if picked is None else source.index_select(0, _index(picked, source.device))
    target.index_copy_(0, _index(places, target.device), moved.to(target.device, target.dtype))
    return len(places)


def _index(ids: Ints, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.array(ids, dtype=np.int64)).to(device)


@njit(nogil=True, cache=True)
def add_into(target, index, rows, first, last):  # type: ignore[no-untyped-def]
    """target[index[k]] += rows[k]; no id twice."""
    width = target.shape[1]
    for k in range(first, last):
        into, row = target[index[k]], rows[k]
        for c in range(width):
            into[c] += row[c]


@njit(nogil=True, cache=True, parallel=True)
def add_into_parallel(target, index, rows, bounds):  # type: ignore[no-untyped-def]
    for part in prange(len(bounds) - 1):
        add_into(target, index, rows, bounds[part], bounds[part + 1])


@njit(nogil=True, cache=True)
def move(source, picked, target, places, first, last):  # type: ignore[no-untyped-def]
    """target[places[k]] = source[picked[k]]; ``picked`` may be empty: source[k]."""
    width = target.shape[1]
    for k in range(first, last):
        row = source[picked[k]] if len(picked) > 0 else source[k]
        into = target[places[k]]
        for c in range(width):
            into[c] = row[c]


@njit(nogil=True, cache=True, parallel=True)
def move_parallel(source, picked, target, places, bounds):  # type: ignore[no-untyped-def]
    for part in prange(len(bounds) - 1):
        move(source, picked, target, places, bounds[part], bounds[part + 1])
