"""Sums over the edges from some halo rows, chosen anew in each epoch: the edges of these rows, and sums over them."""

from typing import Any

import numpy as np
import torch
from numba import njit, prange
from numpy.typing import NDArray

from executor.kernels.edges.spmm import spmm
from executor.kernels.edges.structure import Scaling, Structure
from executor.kernels.launch import array, balanced_rows, compiled_for, default_threads, launch

NO_WEIGHTS = np.empty(0, np.float32)


def kept_edges(whole: Structure, transpose: Structure, kept: torch.Tensor, first: int) -> tuple[Structure, Structure]:
    """Return the edges from the halo rows ``kept`` int64 [m], ascending, by destination and by source.

    ``whole``: n rows, whose sources from n on are halo rows; ``transpose``: its edges by source. In the first result,
    n rows, kept halo row c is source ``first`` + c; the second has m rows of destinations. Edges keep their order."""
    halo = whole.columns - whole.rows
    place = torch.full((halo,), -1, dtype=whole.indices.dtype, device=kept.device)
    place[kept] = torch.arange(first, first + len(kept), dtype=place.dtype, device=kept.device)
    if kept.device.type == "cpu":
        return _select(whole, place, first + len(kept)), _pick(transpose, whole.rows + kept)
    return _select_anywhere(whole, place, first + len(kept)), _pick_anywhere(transpose, whole.rows + kept)


def _select(whole: Structure, place: torch.Tensor, columns: int) -> Structure:
    edges, csr, rows = whole.halo_edges, whole.csr, whole.rows
    bounds = edges.bounds(default_threads())
    counts = np.zeros(rows + 1, np.int64)
    chosen = (edges.begins, edges.ends, csr.indices, rows, place.numpy())
    launch(_count, _count_parallel, (*chosen, counts[1:]), bounds)
    pointers = np.cumsum(counts)
    sources = np.empty(int(pointers[-1]), csr.indices.dtype)
    given = NO_WEIGHTS if csr.weights is None else csr.weights
    weights = np.empty(0 if csr.weights is None else len(sources), given.dtype)
    launch(_fill, _fill_parallel, (*chosen, given, pointers, sources, weights), bounds)
    return _structure(pointers, sources, columns, None if csr.weights is None else weights)


def _pick(transpose: Structure, rows: torch.Tensor) -> Structure:
    csr, picked = transpose.csr, rows.numpy()
    pointers = np.concatenate(([0], np.cumsum(csr.indptr[picked + 1] - csr.indptr[picked])))
    sources = np.empty(int(pointers[-1]), csr.indices.dtype)
    given = NO_WEIGHTS if csr.weights is None else csr.weights
    weights = np.empty(0 if csr.weights is None else len(sources), given.dtype)
    arguments = (csr.indptr, csr.indices, given, picked, pointers, sources, weights)
    launch(_copy, _copy_parallel, arguments, balanced_rows(pointers, default_threads()))
    return _structure(pointers, sources, transpose.columns, None if csr.weights is None else weights)


def _structure(
    pointers: NDArray[np.int64], sources: NDArray[Any], columns: int, weights: NDArray[Any] | None
) -> Structure:
    parts = torch.from_numpy(pointers), torch.from_numpy(sources)
    return Structure(*parts, columns, None if weights is None else torch.from_numpy(weights))


def _select_anywhere(whole: Structure, place: torch.Tensor, columns: int) -> Structure:
    """:func:`_select` by torch, on devices for which we have no kernel."""
    remote = whole.indices.long() - whole.rows
    found = torch.where(remote >= 0, place[remote.clamp(min=0)], -1)
    chosen = found >= 0
    ends = torch.cat((chosen.new_zeros(1, dtype=torch.int64), torch.cumsum(chosen, 0)))
    return Structure(
        ends[whole.indptr], found[chosen], columns, None if whole.weights is None else whole.weights[chosen]
    )


def _pick_anywhere(transpose: Structure, rows: torch.Tensor) -> Structure:
    begins, lengths = transpose.indptr[rows], transpose.indptr[rows + 1] - transpose.indptr[rows]
    pointers = torch.cat((lengths.new_zeros(1), torch.cumsum(lengths, 0)))
    places = torch.arange(int(pointers[-1]), device=rows.device)
    places += torch.repeat_interleave(begins - pointers[:-1], lengths)
    weights = None if transpose.weights is None else transpose.weights[places]
    return Structure(pointers, transpose.indices[places], transpose.columns, weights)


@njit(cache=True, nogil=True)
def _count(begins: Any, ends: Any, indices: Any, rows: Any, place: Any, counts: Any, first: Any, last: Any) -> None:
    for i in range(first, last):
        for e in range(begins[i], ends[i]):
            counts[i] += place[indices[e] - rows] >= 0


@njit(cache=True, nogil=True, parallel=True)
def _count_parallel(begins: Any, ends: Any, indices: Any, rows: Any, place: Any, counts: Any, bounds: Any) -> None:
    for part in prange(len(bounds) - 1):
        _count(begins, ends, indices, rows, place, counts, bounds[part], bounds[part + 1])


@njit(cache=True, nogil=True)
def _fill(  # type: ignore[no-untyped-def]
    begins, ends, indices, rows, place, given, pointers, sources, weights, first, last
):
    for i in range(first, last):
        at = pointers[i]
        for e in range(begins[i], ends[i]):
            source = place[indices[e] - rows]
            if source >= 0:
                sources[at] = source
                if len(given) > 0:
                    weights[at] = given[e]
                at += 1


@njit(cache=True, nogil=True, parallel=True)
def _fill_parallel(  # type: ignore[no-untyped-def]
    begins, ends, indices, rows, place, given, pointers, sources, weights, bounds
):
    for part in prange(len(bounds) - 1):
        _fill(
            begins, ends, indices, rows, place, given, pointers, sources, weights, bounds[part], bounds[part + 1]
        )  # fmt: skip


@njit(cache=True, nogil=True)
def _copy(  # type: ignore[no-untyped-def]
    indptr, indices, given, picked, pointers, sources, weights, first, last
):
    for i in range(first, last):
        begin = indptr[picked[i]]
        for at in range(pointers[i], pointers[i + 1]):
            sources[at] = indices[begin + at - pointers[i]]
            if len(given) > 0:
                weights[at] = given[begin + at - pointers[i]]


@njit(cache=True, nogil=True, parallel=True)
def _copy_parallel(  # type: ignore[no-untyped-def]
    indptr, indices, given, picked, pointers, sources, weights, bounds
):
    for part in prange(len(bounds) - 1):
        _copy(indptr, indices, given, picked, pointers, sources, weights, bounds[part], bounds[part + 1])


class KeptSums:
    """The part of :class:`~executor.kernels.edges.aggregation.Aggregation` over halo rows, on kept edges.

    ``edges``: n rows, kept halo row c is source n + c; ``reverse``: its m rows of destinations; ``scaling``: that of
    all n + h sources; ``kept`` int64 [m]. The order of sums and all factors are those of a sum over all edges."""

    def __init__(
        self, edges: Structure, reverse: Structure, scaling: Scaling, kept: torch.Tensor, threads: int | None
    ) -> None:
        self.edges, self.reverse, self.threads = edges, reverse, threads
        rows, source = edges.rows, scaling.source
        self.source = None if source is None else torch.cat((source[:rows], source[rows:].index_select(0, kept)))
        self.destination = scaling.destination

    def add_halo(self, total: torch.Tensor, halo: torch.Tensor) -> torch.Tensor:
        """Add the sums over ``halo`` [m, F] to ``total`` [n, F], the result of ``sum_own``."""
        if not compiled_for(total):
            return total + self._products(self.edges, halo, self.edges.rows, forward=True)
        csr, out, dtype = self.edges.csr, torch.empty_like(total), array(total).dtype
        spmm(
            csr.indptr, csr.indices, array(total), array(out), self._bounds(self.edges), halo=array(halo.contiguous()),
            values=csr.weights, source_scale=_numpy(self.source), destination_scale=_numpy(self.destination),
            own_scale=np.ones(len(total), dtype),
        )  # fmt: skip
        return out

    def backward(
        self, gradient: torch.Tensor, inner: bool, halo: bool
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return (None, the gradient of halo rows [m, F]) from the ``gradient`` of the sums [n, F]."""
        assert not inner, "own rows are summed by another op"
        gradient = gradient.contiguous()
        if not compiled_for(gradient):
            return None, self._products(self.reverse, gradient, 0, forward=False)
        csr, rows = self.reverse.csr, self.edges.rows
        out = gradient.new_empty((self.reverse.rows, gradient.shape[1]))
        kept = None if self.source is None else self.source[rows:]
        spmm(
            csr.indptr, csr.indices, array(gradient), array(out), self._bounds(self.reverse), values=csr.weights,
            source_scale=_numpy(self.destination), destination_scale=_numpy(kept),
        )  # fmt: skip
        return None, out

    def _bounds(self, structure: Structure) -> NDArray[np.int64]:
        return structure.bounds(self.threads or default_threads())

    def _products(self, structure: Structure, rows: torch.Tensor, first: int, forward: bool) -> torch.Tensor:
        """Multiply by the edges as a sparse matrix, on devices for which we have no kernel. A sum over own rows has its
        destinations' factors already there."""
        ids = structure.indices.long()
        targets = torch.repeat_interleave(
            torch.arange(structure.rows, device=rows.device), structure.indptr.diff()
        )  # fmt: skip
        values = rows.new_ones(structure.edges) if structure.weights is None else structure.weights.clone()
        of_source, of_destination = (ids, targets) if forward else (targets + self.edges.rows, ids)
        if self.source is not None:
            values *= self.source[of_source]
        if self.destination is not None:
            values *= self.destination[of_destination]
        shape = (structure.rows, len(rows))
        # parts of a matrix whose invariants were checked
        matrix = torch.sparse_csr_tensor(structure.indptr, ids - first, values, size=shape, check_invariants=False)
        return torch.mm(matrix, rows)


def _numpy(values: torch.Tensor | None) -> NDArray[Any] | None:
    return None if values is None else values.numpy()
