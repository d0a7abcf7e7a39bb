"""Edge lists in NumPy's own format, read memory-mapped: the format for graphs larger than memory."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import GraphError
from simgnn.graph.build import assemble_edges, vertex_count
from simgnn.graph.complete import Found, complete_graph
from simgnn.graph.disk_buckets import sort_to_disk
from simgnn.graph.graph import Graph
from simgnn.graph.store import graph_cache, new_folder, open_graph, release_pages, stored_symmetric, write_facts
from simgnn.graph.thread_pool import in_order
from simgnn.npzfile import read_npy as read_array

CHUNK_EDGES = 1 << 20
MEMORY_EDGES = 10_000_000  # above, the graph is kept in the cache and opened from there


def read_npy(path: Path, *, vertices: int | None = None, symmetrise: bool = True) -> Graph:
    """Read an array int32 or int64 [E, 2], a row (source, target) an edge; any order, repeats and self loops allowed.

    ``vertices``: V, default largest id + 1. Above ``MEMORY_EDGES`` rows the list is sorted through files into a folder
    of the graph store, kept in ``$SIMGNN_CACHE`` by the digest of the list; the graph is opened memory-mapped. Raises
    :class:`GraphError`.
    """
    try:
        edges = read_array(path, mapped=True)
    except ValueError as error:
        raise GraphError(f"{path}: not a readable .npy file ({error}): is it cut off? write it again") from error
    if edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype not in (np.int32, np.int64):
        raise GraphError(
            f"{path}: an edge list must be int32 or int64 of shape [edges, 2], a row (source, target) each; "
            f"got {edges.dtype} of shape {list(edges.shape)}"
        )
    if len(edges) <= MEMORY_EDGES:
        built = assemble_edges(edges[:, 0], edges[:, 1], vertices, symmetrise, key=str(path))
        return complete_graph(Found(path.stem, str(path), built))
    with path.open("rb") as stream:
        content = hashlib.file_digest(stream, "sha256").hexdigest()
    key = hashlib.sha256(f"1 npy {content} {vertices} {symmetrise}".encode()).hexdigest()
    folder = graph_cache() / f"{path.stem}-{key[:16]}"
    if not folder.exists():
        _sort_to_disk(edges, path, folder, vertices, symmetrise)
    return open_graph(folder)


def _sort_to_disk(edges: NDArray[Any], path: Path, folder: Path, vertices: int | None, symmetrise: bool) -> None:
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
    count = vertex_count(min(lowest), max(highest), len(edges), vertices, str(path))
    with new_folder(folder) as making:
        stored, loops = sort_to_disk(making, count, len(edges), symmetrise, pairs, chunks)
        what = "stored, in both directions" if symmetrise else "stored"
        note = f"{len(edges):,} edges listed: {loops:,} self loops dropped, {stored:,} different ones {what}"
        facts: dict[str, Any] = dict.fromkeys(("multilabel", "synthetic_features", "synthetic_labels"), False)
        symmetric = symmetrise or stored_symmetric(making)
        write_facts(making, name=path.stem, classes=0, symmetric=symmetric, notes=[note], **facts)
