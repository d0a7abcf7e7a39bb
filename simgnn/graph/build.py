"""Builds CSRs: from lists of edges, and by transposing. Counting sorts in Numba, linear in V + E."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from simgnn.errors import GraphError
from simgnn.graph.csr import CSR
from simgnn.graph.weights import checked_weights, merged_weights, symmetrised_weights, transposed_weights
from simgnn.memory import check_memory


@njit(cache=True, nogil=True)
def _transpose(indptr: Any, indices: Any, out_indptr: Any, out_indices: Any) -> None:
    for k in range(len(indices)):
        out_indptr[indices[k] + 1] += 1
    for v in range(len(out_indptr) - 1):
        out_indptr[v + 1] += out_indptr[v]
    place = out_indptr[:-1].copy()
    for v in range(len(indptr) - 1):
        for k in range(indptr[v], indptr[v + 1]):
            u = indices[k]
            out_indices[place[u]] = v
            place[u] += 1


def scatter_rows(
    indptr: NDArray[np.int64], indices: NDArray[Any], columns: int, dtype: type[np.int32] | type[np.int64]
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return ``indptr`` and ``indices``, ascending by row, of the transpose of a CSR; repeated edges are kept."""
    out_indptr = np.zeros(columns + 1, np.int64)
    out_indices = np.empty(len(indices), dtype)
    _transpose(indptr, indices, out_indptr, out_indices)
    return out_indptr, out_indices


def transpose_csr(csr: CSR) -> CSR:
    """Edges grouped by source: rows = ``csr.columns``, columns = ``csr.rows``, each row ascending. O(V + E)."""
    dtype = np.int32 if csr.rows < 2**31 else np.int64
    indptr, indices = scatter_rows(csr.indptr, csr.indices, csr.columns, dtype)
    return CSR(indptr, indices, csr.rows, None if csr.weights is None else transposed_weights(csr, indptr))


@njit(cache=True, nogil=True)
def _reverses_follow(indptr: Any, indices: Any) -> bool:
    """Check symmetry: walk the edges by row v; each source u must list its neighbours v in the order of the walk."""
    place = indptr[:-1].copy()
    for v in range(len(indptr) - 1):
        for k in range(indptr[v], indptr[v + 1]):
            u = indices[k]
            if place[u] >= indptr[u + 1] or indices[place[u]] != v:
                return False
            place[u] += 1
    return True


@njit(cache=True, nogil=True)
def _first_bad_row(indptr: Any, indices: Any, columns: Any) -> Any:
    """The first row that is not made of strictly ascending ids 0..columns-1; -1 if there is none."""
    for v in range(len(indptr) - 1):
        if indptr[v] < 0 or indptr[v] > indptr[v + 1] or indptr[v + 1] > len(indices):
            return v
        last = -1
        for k in range(indptr[v], indptr[v + 1]):
            if indices[k] <= last or indices[k] >= columns:
                return v
            last = indices[k]
    return -1


def check_rows(csr: CSR) -> None:
    """Raise :class:`GraphError` unless each row has strictly ascending ids of columns. O(V + E), without memory."""
    if csr.indptr.dtype != np.int64 or csr.indices.dtype not in (np.int32, np.int64):
        raise GraphError(f"indptr and indices must be int64 and int32; got {csr.indptr.dtype} and {csr.indices.dtype}")
    if csr.indptr.ndim != 1 or csr.indices.ndim != 1 or len(csr.indptr) < 2:
        raise GraphError("indptr and indices must have one dimension, and a graph at least 1 vertex")
    row = int(_first_bad_row(csr.indptr, csr.indices, csr.columns))
    if row >= 0:
        raise GraphError(f"row {row} must be ids from 0 to {csr.columns - 1} in ascending order, each once")


def is_symmetric(csr: CSR) -> bool:
    """Whether a square CSR with strictly ascending rows holds the reverse of each of its edges. O(V + E)."""
    return csr.rows == csr.columns and bool(_reverses_follow(csr.indptr, csr.indices))


# ids this far apart are names, not numbers; memory goes with the largest one
SPARSE_IDS, SPARSE_IDS_PER_EDGE = 1_000_000, 64


@dataclass(frozen=True)
class BuiltGraph:
    """A CSR, and how many edges were dropped or added to make it; ``symmetric``: each edge has its reverse, whatever
    the weights of the two."""

    csr: CSR
    symmetric: bool
    self_loops: int
    duplicates: int
    reversed_edges: int

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that report the dropped and added edges, and the weights."""
        weights = self.csr.weights
        changes = (
            (self.self_loops, "self loops dropped (the layers add their own)"),
            (self.duplicates, "duplicate edges dropped" + ("" if weights is None else ", their weights added up")),
            (self.reversed_edges, "reverse edges added (symmetrised)"),
        )
        found = [f"{count:,} {what}" for count, what in changes if count]
        if weights is not None and len(weights):
            found.append(f"edges have weights, {weights.min():g} to {weights.max():g}")
        return tuple(found)


def index_dtype(columns: int) -> type[np.int32] | type[np.int64]:
    """Type of edge ids: int32, or int64 when there are 2**31 vertices or more."""
    return np.int32 if columns < 2**31 else np.int64


def build_bytes(vertices: int, edges: int, symmetrise: bool) -> int:
    """Return the bytes that :func:`assemble_edges` takes at most, besides the lists that it is given: row pointers (6
    at once), the grouped and the sorted edges, and the reversed and merged ones of a graph that is made symmetric."""
    return 8 * 6 * (vertices + 1) + edges * np.dtype(index_dtype(vertices)).itemsize * (8 if symmetrise else 3)


@njit(cache=True, nogil=True)
def _by_source(source: Any, target: Any, indptr: Any, grouped: Any) -> Any:
    """Group targets by source, self loops left out; ``indptr`` must be zero. Returns the number of self loops."""
    loops = 0
    for k in range(len(source)):
        if source[k] == target[k]:
            loops += 1
        else:
            indptr[source[k] + 1] += 1
    for v in range(len(indptr) - 1):
        indptr[v + 1] += indptr[v]
    place = indptr[:-1].copy()
    for k in range(len(source)):
        u = source[k]
        if u != target[k]:
            grouped[place[u]] = target[k]
            place[u] += 1
    return loops


@njit(cache=True, nogil=True)
def _drop_repeats(indptr: Any, indices: Any) -> Any:
    """Drop equal neighbours in ascending rows, in place. Returns the number of edges left."""
    kept = 0
    begin = indptr[0]
    for v in range(len(indptr) - 1):
        end = indptr[v + 1]
        for k in range(begin, end):
            if k == begin or indices[k] != indices[k - 1]:
                indices[kept] = indices[k]
                kept += 1
        begin = end
        indptr[v + 1] = kept
    return kept


@njit(cache=True, nogil=True)
def _union(pa: Any, ia: Any, pb: Any, ib: Any, indptr: Any, indices: Any) -> Any:
    """Merge two CSRs with ascending rows into one without repeats. Returns the number of edges."""
    n = 0
    for v in range(len(pa) - 1):
        a, b = pa[v], pb[v]
        while a < pa[v + 1] and b < pb[v + 1]:
            x, y = ia[a], ib[b]
            indices[n] = min(x, y)
            a += x <= y
            b += y <= x
            n += 1
        while a < pa[v + 1]:
            indices[n] = ia[a]
            a += 1
            n += 1
        while b < pb[v + 1]:
            indices[n] = ib[b]
            b += 1
            n += 1
        indptr[v + 1] = n
    return n


def symmetrise_csr(csr: CSR) -> CSR:
    """The CSR with the reverse of every edge added, which gets the weight of that edge; rows must ascend strictly."""
    other = transpose_csr(csr.unweighted())
    indptr = np.zeros(csr.rows + 1, np.int64)
    indices = np.empty(2 * csr.edges, csr.indices.dtype)
    edges = _union(csr.indptr, csr.indices, other.indptr, other.indices, indptr, indices)
    both = CSR(indptr, indices if edges == len(indices) else indices[:edges].copy(), csr.columns)
    return both if csr.weights is None else replace(both, weights=symmetrised_weights(csr, both))


def assemble_edges(
    source: ArrayLike,
    target: ArrayLike,
    vertices: int | None = None,
    symmetrise: bool = True,
    *,
    weights: ArrayLike | None = None,
    key: str = "graph.source",
    least_vertices: int = 0,
) -> BuiltGraph:
    """Make a CSR of the edges ``source[k] -> target[k]``: no self loops, no duplicates, rows ascending. ``source``,
    ``target``: integers [edges]. ``vertices``: V; None = largest id + 1, or ``least_vertices`` if these are more.
    ``symmetrise``: add the reverse of every edge. ``weights``: numbers [edges]; those of duplicates are added up, and
    if all are then 1, the graph has none. Raises :class:`GraphError`, which begins with ``key``, for lists of different
    lengths, ids that are not integers, negative or not below V, weights that are not finite, and for a graph without
    vertices."""
    source, target = _edge_ids(source, "source", key), _edge_ids(target, "target", key)
    if len(source) != len(target):
        raise GraphError(
            f"{key}: sources and targets must be lists of one length; got {len(source)} and {len(target)}: "
            "is the file cut off?"
        )
    low, high = 0, -1
    if len(source):
        low, high = int(min(source.min(), target.min())), int(max(source.max(), target.max()))
    vertices = vertex_count(low, high, len(source), vertices, key, least_vertices)
    dtype = index_dtype(vertices)
    check_memory(
        build_bytes(vertices, len(source), symmetrise),
        f"{key}: sorting {len(source):,} edges of {vertices:,} vertices",
        "use an .npy edge list, which is sorted on disk, or a machine with more memory",
    )
    indptr, grouped = np.zeros(vertices + 1, np.int64), np.empty(len(source), dtype)
    loops = int(_by_source(source, target, indptr, grouped))
    # grouping by source and then by target is a radix sort: rows come out ascending without a sort of their own
    indptr, indices = scatter_rows(indptr, grouped[: len(source) - loops], vertices, dtype)
    listed = len(indices)
    edges = int(_drop_repeats(indptr, indices))
    csr = CSR(indptr, indices if edges == listed else indices[:edges].copy(), vertices)
    given = checked_weights(weights, source, target, key)
    if given is not None:
        csr = with_weights(csr, merged_weights(csr, source, target, given), key)
    symmetric = is_symmetric(csr)
    added = 0
    if symmetrise and not symmetric:
        csr = symmetrise_csr(csr)
        added, symmetric = csr.edges - edges, True
    return BuiltGraph(csr, symmetric, loops, listed - edges, added)


def with_weights(csr: CSR, weights: NDArray[np.float64], key: str) -> CSR:
    """Return the CSR with ``weights``, or without any if all are 1. Raises :class:`GraphError`, which begins with
    ``key``, for sums of duplicates that are not finite."""
    if not np.isfinite(weights).all():
        raise GraphError(f"{key}: weights of duplicate edges add up to more than float64 can hold: scale them")
    return csr if np.all(weights == 1) else replace(csr, weights=weights)


def too_sparse(high: int, edges: int) -> bool:
    """Whether ids up to ``high`` are too far apart to be the numbers 0..V-1 of vertices."""
    return high >= SPARSE_IDS + SPARSE_IDS_PER_EDGE * edges


def vertex_count(low: int, high: int, edges: int, vertices: int | None, key: str, least: int = 0) -> int:
    """Return the number of vertices V: as stated, else the largest id + 1, or ``least`` if that is more. ``low`` and
    ``high`` are the smallest and the largest id (-1: none). Raises :class:`GraphError`, which begins with ``key``."""
    if low < 0:
        raise GraphError(f"{key}: vertex ids must be 0 or more; got {low}: renumber the vertices from 0")
    if vertices is None:
        if too_sparse(high, edges) and high >= least:
            raise GraphError(
                f"{key}: vertex ids reach {high:,} with only {edges:,} edges: renumber the vertices from 0, "
                "or state graph.vertices if they are meant"
            )
        vertices = max(high + 1, least)
    if vertices <= 0:
        raise GraphError(f"{key}: a graph needs at least 1 vertex; got {vertices}: state graph.vertices, or give edges")
    if high >= vertices:
        raise GraphError(
            f"{key}: got the vertex id {high}, expected 0..{vertices - 1} (graph.vertices = {vertices}). "
            "State the right number of vertices, or renumber them."
        )
    return vertices


def _edge_ids(ids: ArrayLike, side: str, key: str) -> NDArray[Any]:
    array = np.asarray(ids)
    if array.ndim != 1:
        raise GraphError(f"{key}: {side} ids must be a list of one dimension; got shape {array.shape}")
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu":
        raise GraphError(f"{key}: {side} ids must be integers; got {array.dtype}: convert them without rounding")
    if array.dtype.itemsize < 4:
        return array.astype(np.int32)
    if array.dtype.kind == "u":
        if int(array.max()) >= 2**63:
            raise GraphError(f"{key}: {side} ids must be below 2**63; got {int(array.max())}")
        return array.astype(np.int64)
    return np.ascontiguousarray(array)
