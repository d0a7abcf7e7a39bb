"""Edge weights: which ones a file has, what they must be, and how they follow edges that are merged or reordered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from simgnn.errors import GraphError
from simgnn.graph.csr import CSR

NAMES = ("weight", "weights", "w", "edge_weight")
"""Names of columns and arrays that hold weights where ``graph.weight_column`` states none."""
WITHOUT = "or train without weights (graph.weights = 'ignore')"
Weights = NDArray[np.float64]


@dataclass(frozen=True)
class WeightChoice:
    """The keys ``graph.weights`` and ``graph.weight_column``. ``used``: False leaves weights out. ``column``: name of
    the column or array of weights, or its number from 1 in a list without a header; None: one of :data:`NAMES`."""

    used: bool = True
    column: str | int | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "WeightChoice":
        """Return the choice in options of ``[graph]``; a missing key stands for its default."""
        return cls(options.get("weights", "auto") != "ignore", options.get("weight_column"))

    def among(self, names: Sequence[str], where: str, known: Sequence[str] = NAMES) -> str | None:
        """Return which of ``names`` holds the weights: the stated one, else the one of the ``known`` names that is
        there, in any case. None: there are none, or they are left out. Raises :class:`GraphError`, which begins with
        ``where``, for a stated name that is missing, and for several known names."""
        if not self.used:
            return None
        if self.column is not None:
            if str(self.column) not in names:
                got = ", ".join(names) or "none"
                raise GraphError(f"{where}: graph.weight_column: got {self.column!r}, expected one of: {got}")
            return str(self.column)
        found = [name for name in names if name.lower() in known]
        if len(found) > 1:
            raise GraphError(f"{where}: weights under several names ({', '.join(found)}): state graph.weight_column")
        return found[0] if found else None

    def single_column(self, values: Any, what: str) -> tuple[Any, list[str]]:
        """Return ``values`` [edges] or [edges, 1], and no notes; for several columns that nobody stated to be weights,
        nothing and a note that names them (``what``). Nothing either where there are none or weights are left out."""
        if values is None or not self.used:
            return None, []
        if np.ndim(values) == 2 and np.shape(values)[1] != 1 and self.column is None:
            return None, [f"{what} left out: {np.shape(values)[1]} columns, weights have one"]
        return values, []


TAKEN = WeightChoice()
"""The default: weights are used where a file has them."""


def checked_weights(values: ArrayLike | None, source: NDArray[Any], target: NDArray[Any], key: str) -> Weights | None:
    """Return the weights of the edges ``source[k] -> target[k]`` as float64 [edges]; None stays None.

    Raises :class:`GraphError`, which begins with ``key``, for another number of weights, and for weights that are not
    finite real numbers."""
    if values is None:
        return None
    array = np.asarray(values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.shape != (len(source),) or array.dtype.kind not in "fiub":
        raise GraphError(
            f"{key}: weights must be real numbers, one an edge, [{len(source)}]; got {array.dtype} "
            f"{list(array.shape)}: correct them, {WITHOUT}"
        )
    weights = np.ascontiguousarray(array, np.float64)
    bad = np.flatnonzero(~np.isfinite(weights))
    if len(bad):
        first = int(bad[0])
        raise GraphError(
            f"{key}: weights must be finite; the edge {int(source[first])} -> {int(target[first])} has "
            f"{weights[first]}: correct it, {WITHOUT}"
        )
    return weights


@njit(cache=True, nogil=True)
def _place(indices: Any, begin: Any, end: Any, source: Any) -> Any:
    """Place of ``source`` among the ascending ``indices[begin:end]``; ``end`` or another's place if it is not there."""
    while begin < end:
        middle = (begin + end) // 2
        if indices[middle] < source:
            begin = middle + 1
        else:
            end = middle
    return begin


@njit(cache=True, nogil=True)
def _add_up(indptr: Any, indices: Any, source: Any, target: Any, weights: Any, out: Any) -> None:
    for k in range(len(source)):
        if source[k] != target[k]:
            row = target[k]
            out[_place(indices, indptr[row], indptr[row + 1], source[k])] += weights[k]


def merged_weights(csr: CSR, source: NDArray[Any], target: NDArray[Any], weights: Weights) -> Weights:
    """Return the weight of each edge of ``csr``, float64 [edges]: the sum, in order, over the listed edges
    ``source[k] -> target[k]`` that are this one. ``csr`` holds all listed edges but self loops."""
    out = np.zeros(csr.edges, np.float64)
    _add_up(csr.indptr, csr.indices, source, target, weights, out)
    return out


@njit(cache=True, nogil=True)
def _either_way(indptr: Any, indices: Any, weights: Any, both_indptr: Any, both_indices: Any, out: Any) -> None:
    for v in range(len(both_indptr) - 1):
        for k in range(both_indptr[v], both_indptr[v + 1]):
            u = both_indices[k]
            place = _place(indices, indptr[v], indptr[v + 1], u)
            if place == indptr[v + 1] or indices[place] != u:
                place = _place(indices, indptr[u], indptr[u + 1], v)
            out[k] = weights[place]


def symmetrised_weights(csr: CSR, both: CSR) -> Weights:
    """Return the weights of ``both``, the symmetrised edges of a weighted ``csr``: an edge keeps its weight, and an
    added reverse edge has that of the edge that it reverses."""
    out = np.empty(both.edges, np.float64)
    _either_way(csr.indptr, csr.indices, csr.weights, both.indptr, both.indices, out)
    return out


@njit(cache=True, nogil=True)
def _turned(indptr: Any, indices: Any, weights: Any, out_indptr: Any, out: Any) -> None:
    place = out_indptr[:-1].copy()
    for k in range(indptr[-1]):
        out[place[indices[k]]] = weights[k]
        place[indices[k]] += 1


def transposed_weights(csr: CSR, indptr: NDArray[np.int64]) -> NDArray[Any]:
    """Return the weights of a weighted ``csr`` in the order of its transpose, whose row pointers are ``indptr``."""
    assert csr.weights is not None
    out = np.empty(csr.edges, csr.weights.dtype)
    _turned(csr.indptr, csr.indices, csr.weights, indptr, out)
    return out


@njit(cache=True, nogil=True)
def _picked(
    indptr: Any, indices: Any, weights: Any, rows: Any, columns: Any, local_indptr: Any, local_indices: Any, out: Any
) -> None:
    for row in range(len(local_indptr) - 1):
        begin, end = indptr[rows[row]], indptr[rows[row] + 1]
        for k in range(local_indptr[row], local_indptr[row + 1]):
            out[k] = weights[_place(indices, begin, end, columns[local_indices[k]])]


def with_weights_of(csr: CSR, rows: NDArray[np.int64], columns: NDArray[np.int64], part: CSR) -> CSR:
    """Return ``part``, some edges of ``csr`` in local ids, with their weights. ``rows``, ``columns``: the vertex of
    ``csr`` that each row and column of ``part`` stands for."""
    if csr.weights is None:
        return part
    out = np.empty(part.edges, np.float64)
    _picked(csr.indptr, csr.indices, csr.weights, rows, columns, part.indptr, part.indices, out)
    return CSR(part.indptr, part.indices, part.columns, out)


@njit(cache=True, nogil=True)
def _row_sums(indptr: Any, weights: Any, out: Any) -> None:
    for row in range(len(out)):
        total = 0.0
        for k in range(indptr[row], indptr[row + 1]):
            total += weights[k]
        out[row] = total


def weighted_degrees(csr: CSR) -> Weights | None:
    """Return the sum of the weights of each row's in-edges, float64 [rows]; None where edges have no weights."""
    if csr.weights is None:
        return None
    out = np.empty(csr.rows, np.float64)
    _row_sums(csr.indptr, csr.weights, out)
    return out


def check_usable(csr: CSR, normalised: bool, dtype: str, key: str = "graph.source") -> None:
    """Raise :class:`GraphError`, which begins with ``key``, for weights with which a model cannot be trained: negative
    ones where sums are ``normalised`` by weighted degrees, and degrees that are too large for ``dtype``."""
    weights, degrees = csr.weights, weighted_degrees(csr)
    if weights is None or degrees is None or not csr.edges:
        return
    lowest = int(np.argmin(weights))
    if normalised and weights[lowest] < 0:
        target = int(np.searchsorted(csr.indptr, lowest, side="right")) - 1
        raise GraphError(
            f"{key}: the edge {int(csr.indices[lowest])} -> {target} has the weight {weights[lowest]:g}; expected 0 or "
            "more: gcn and sage divide by sums of weights. Choose model.kind = 'gin', which sums rows times weights, "
            f"{WITHOUT}"
        )
    limit, largest = float(np.finfo(dtype).max), float(np.max(np.abs(degrees)))
    if not max(largest, float(np.max(np.abs(weights)))) < limit:
        raise GraphError(
            f"{key}: weights of a vertex's in-edges add up to {largest:g}, which is too large for train.dtype = "
            f"'{dtype}': scale them, {WITHOUT}"
        )
