"""Edge lists as NumPy arrays, which may exceed memory."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import GraphError
from simgnn.graph.build import vertex_count
from simgnn.graph.graph import Graph
from simgnn.graph.readers.tables import Pieces
from simgnn.graph.store import (
    graph_cache,
    new_folder,
    open_graph,
    release_pages,
    sort_to_disk,
    stored_symmetric,
    write_facts,
)
from simgnn.graph.thread_pool import in_order
from simgnn.graph.vertex_ids import UNSTATED, IdChoice
from simgnn.graph.weights import TAKEN, WeightChoice
from simgnn.npzfile import read_npy as read_array
from simgnn.progress import SILENT, Progress

CHUNK_EDGES = 1 << 20
LARGEST_EXACT = 2**53  # above, not every whole number is a float64
MEMORY_EDGES = 10_000_000  # above, the graph is kept in the cache and opened from there


def read_npy(
    path: Path,
    *,
    vertices: int | None = None,
    symmetrise: bool = True,
    weights: WeightChoice = TAKEN,
    ids: IdChoice = UNSTATED,
    progress: Progress = SILENT,
) -> Graph:
    """Read an array int32 or int64 [E, 2], a row (source, target) an edge; any order, repeats and self loops allowed.
    An array [E, 3] of integers or floats has weights in its third column, and is always sorted in memory. ``vertices``:
    V, default largest id + 1. ``ids``: see :class:`IdChoice`; names are taken up to ``MEMORY_EDGES`` rows. Above, a
    list without weights is sorted through files into a folder in ``$SIMGNN_CACHE``, and the graph is opened
    memory-mapped. Raises :class:`GraphError`."""
    try:
        edges = read_array(path, mapped=True)
    except ValueError as error:
        raise GraphError(f"{path}: not a readable .npy file ({error}): is it cut off? write it again") from error
    if edges.ndim == 2 and edges.shape[1] == 3 and edges.dtype.kind in "if":
        return _weighted_npy(edges, path, vertices, symmetrise, weights, ids)
    if edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype not in (np.int32, np.int64):
        raise GraphError(
            f"{path}: an edge list must be int32 or int64 of shape [edges, 2], a row (source, target) each, or have "
            f"weights as a third column; got {edges.dtype} of shape {list(edges.shape)}"
        )
    if len(edges) <= MEMORY_EDGES:
        return Pieces(path, [edges.T]).graph([], vertices, symmetrise, ids)
    if ids.mode == "names":
        raise GraphError(
            f"graph.ids: got 'names' with {path} of {len(edges):,} edges, which are sorted on disk by number; expected "
            "'numbers': number the vertices from 0"
        )
    least = ids.least_vertices
    with path.open("rb") as stream:
        content = hashlib.file_digest(stream, "sha256").hexdigest()
    key = hashlib.sha256(f"1 npy {content} {vertices} {symmetrise}{f' {least}' * bool(least)}".encode()).hexdigest()
    folder = graph_cache() / f"{path.stem}-{key[:16]}"
    if not folder.exists():
        _sort_to_disk(edges, path, folder, vertices, symmetrise, least, progress)
    return open_graph(folder)


def _weighted_npy(
    edges: NDArray[Any], path: Path, vertices: int | None, symmetrise: bool, weights: WeightChoice, ids: IdChoice
) -> Graph:
    with np.errstate(invalid="ignore"):  # what is no whole number is found below
        pairs = np.asarray(edges[:, :2]).astype(np.int64)
    whole = pairs == edges[:, :2]
    if not whole.all() or (len(pairs) and np.abs(pairs).max() > LARGEST_EXACT):
        wrong = float(edges[:, :2][~whole][0]) if not whole.all() else int(np.abs(pairs).max())
        raise GraphError(
            f"{path}: source and target must be whole numbers up to 2**53; got {wrong!r}: the columns of an array "
            "[edges, 3] are source, target, weight"
        )
    values = [np.asarray(edges[:, 2], np.float64)] if weights.used else None
    return Pieces(path, [pairs.T], weights=values).graph([], vertices, symmetrise, ids)


def _sort_to_disk(
    edges: NDArray[Any],
    path: Path,
    folder: Path,
    vertices: int | None,
    symmetrise: bool,
    least: int,
    progress: Progress,
) -> None:
    chunks = -(-len(edges) // CHUNK_EDGES)

    def chunk(number: int) -> NDArray[Any]:
        return edges[number * CHUNK_EDGES : (number + 1) * CHUNK_EDGES]

    def extremes(number: int) -> tuple[int, int]:
        found = int(chunk(number).min()), int(chunk(number).max())
        release_pages(edges)
        return found

    def pairs(number: int) -> NDArray[np.int64]:
        pair = np.ascontiguousarray(chunk(number).T, dtype=np.int64)
        release_pages(edges)
        return pair

    lowest, highest = zip(*in_order(extremes, chunks), strict=True)
    count = vertex_count(min(lowest), max(highest), len(edges), vertices, str(path), least)
    with new_folder(folder) as making:
        stored, loops = sort_to_disk(making, count, len(edges), symmetrise, pairs, chunks, progress=progress)
        what = "stored, in both directions" if symmetrise else "stored"
        note = f"{len(edges):,} edges listed: {loops:,} self loops dropped, {stored:,} different ones {what}"
        facts: dict[str, Any] = dict.fromkeys(("multilabel", "synthetic_features", "synthetic_labels"), False)
        symmetric = symmetrise or stored_symmetric(making)
        write_facts(making, name=path.stem, classes=0, symmetric=symmetric, notes=[note], **facts)
