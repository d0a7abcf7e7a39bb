"""Graphs on disk: folders of ``.npy`` files, opened memory-mapped; CSRs larger than memory; digests.

A CSR larger than memory is made of buckets of rows: edges go to their bucket's file, and each is sorted alone.
"""

import hashlib
import json
import math
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy import sparse

from simgnn.errors import GraphError
from simgnn.graph.build import index_dtype, is_symmetric
from simgnn.graph.csr import CSR
from simgnn.graph.graph import MASKS, CentredRows, Graph
from simgnn.graph.thread_pool import in_order
from simgnn.npzfile import read_npy
from simgnn.outside import outside_data
from simgnn.progress import SILENT, Progress

BUCKET_EDGES = 8_000_000  # 64 MB of keys; a few buckets are in memory at once
MOST_BUCKETS = 512  # open files

_HEADER_BYTES = 128


@njit(cache=True, nogil=True)
def _split(edges: Any, row_bits: Any, id_bits: Any, both: Any, starts: Any, keys: Any) -> Any:
    """Group edges by bucket as keys (row in bucket, source); ``starts`` must be zero. Returns self loops."""
    loops = 0
    low = (np.int64(1) << row_bits) - np.int64(1)
    n = edges.shape[1]
    for k in range(n):
        if edges[0, k] == edges[1, k]:
            loops += 1
            continue
        starts[(edges[1, k] >> row_bits) + 1] += 1
        if both:
            starts[(edges[0, k] >> row_bits) + 1] += 1
    for b in range(len(starts) - 1):
        starts[b + 1] += starts[b]
    place = starts[:-1].copy()
    for k in range(n):
        u, v = edges[0, k], edges[1, k]
        if u == v:
            continue
        b = v >> row_bits
        keys[place[b]] = ((v & low) << id_bits) | u
        place[b] += 1
        if both:
            b = u >> row_bits
            keys[place[b]] = ((u & low) << id_bits) | v
            place[b] += 1
    return loops


@dataclass(frozen=True)
class Keys:
    """Packs edges into sortable integers: row within its bucket, then source. A bucket has ``2**row_bits`` rows."""

    vertices: int
    symmetrise: bool
    buckets: int
    row_bits: int
    id_bits: int

    @classmethod
    def of(cls, vertices: int, symmetrise: bool, wanted: int) -> "Keys":
        """Choose the key layout for about ``wanted`` buckets, at most twice as many."""
        row_bits = max(0, math.ceil(math.log2(max(1.0, vertices / wanted))))
        buckets, id_bits = ((vertices - 1) >> row_bits) + 1, max(1, (vertices - 1).bit_length())
        return cls(vertices, symmetrise, buckets, row_bits, id_bits)

    def split(self, edges: NDArray[np.int64]) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
        """Group edges int64 [2, n] (source, target) by bucket, each also reversed if the graph is symmetrised. Returns
        (self loops left out, ``starts``, ``keys``); keys of bucket b are ``keys[starts[b]:starts[b + 1]]``."""
        starts = np.zeros(self.buckets + 1, np.int64)
        keys = np.empty(edges.shape[1] * (2 if self.symmetrise else 1), np.int64)
        loops = int(_split(edges, self.row_bits, self.id_bits, self.symmetrise, starts, keys))
        return loops, starts, keys[: starts[-1]]

    def rows(self, bucket: int, keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Sort the keys of a bucket in place and drop repeats. Returns (indptr within the bucket, sources)."""
        keys.sort()
        if len(keys):
            fresh = np.empty(len(keys), np.bool_)
            fresh[0] = True
            np.not_equal(keys[1:], keys[:-1], out=fresh[1:])
            keys = keys[fresh]
        rows = min(1 << self.row_bits, self.vertices - (bucket << self.row_bits))
        indptr = np.searchsorted(keys, np.arange(rows + 1, dtype=np.int64) << self.id_bits).astype(np.int64)
        keys &= (1 << self.id_bits) - 1
        return indptr, keys.astype(index_dtype(self.vertices))


def sort_to_disk(
    folder: Path,
    vertices: int,
    edges: int,
    symmetrise: bool,
    pairs: Callable[[int], NDArray[np.int64]],
    chunks: int,
    threads: int | None = None,
    progress: Progress = SILENT,
) -> tuple[int, int]:
    """Write ``indptr.npy`` and ``indices.npy`` into ``folder``; returns the edges stored and the self loops dropped.
    ``pairs(k)``: chunk k of ``chunks`` chunks, int64 [2, n] (source, target), in any order; called on several threads.
    ``edges``: their number; it only sets the number of buckets. Temporary files take 8 bytes per stored edge."""
    stored = (2 if symmetrise else 1) * edges
    layout = Keys.of(vertices, symmetrise, min(MOST_BUCKETS, max(1, math.ceil(stored / BUCKET_EDGES))))
    paths = [folder / f"bucket-{b}.keys" for b in range(layout.buckets)]
    loops = total = 0
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("wb")) for path in paths]
        counter = stack.enter_context(progress.counting("listing edges", edges, patient=True))
        split = in_order(lambda chunk: layout.split(pairs(chunk)), chunks, threads)
        for number, (dropped, starts, keys) in enumerate(split, start=1):
            counter.at(number * edges // chunks)
            loops += dropped
            for b in np.flatnonzero(np.diff(starts)).tolist():
                files[b].write(keys[starts[b] : starts[b + 1]].data)
    dtype = np.dtype(index_dtype(vertices))
    indptr = np.zeros(vertices + 1, np.int64)

    def rows(bucket: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
        return layout.rows(bucket, np.fromfile(paths[bucket], np.int64))

    with (
        (folder / "indices.npy").open("wb") as file,
        progress.counting("sorting edges", layout.buckets, share=True, patient=True) as counter,
    ):
        file.write(npy_header(dtype, (0,)))
        for bucket, (bounds, indices) in enumerate(in_order(rows, layout.buckets, threads)):
            first = bucket << layout.row_bits
            indptr[first : first + len(bounds)] = bounds + total
            file.write(indices.data)
            total += len(indices)
            paths[bucket].unlink()
            counter.at(bucket + 1)
        file.seek(0)
        file.write(npy_header(dtype, (total,)))
    np.save(folder / "indptr.npy", indptr)
    return total, loops


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Header of a ``.npy`` file, 128 bytes whatever the shape, so that the shape can be filled in at the end."""
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': {shape}, }}"
    body = text.ljust(_HEADER_BYTES - 11) + "\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body.encode("latin1")


FORMAT = "simgnn-graph-1"
FACTS = "graph.json"
DIGEST_BYTES = 1 << 22
_PLAIN = ("feature_mean", "labels", *(f"{name}_mask" for name in MASKS))
_STATED = ("name", "classes", "multilabel", "symmetric", "synthetic_features", "synthetic_labels")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside ``path`` that becomes ``path`` when the block ends well, and is removed otherwise."""
    if path.exists():
        raise GraphError(f"{path}: exists already; choose another name or remove it")
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        yield folder
        os.replace(folder, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def graph_cache(cache: Path | None = None) -> Path:
    """The folder for graphs too large for memory: in ``cache``, else ``$SIMGNN_CACHE``, else ``~/.cache/simgnn``."""
    return (cache or Path(os.environ.get("SIMGNN_CACHE") or Path.home() / ".cache" / "simgnn")) / "graphs"


def stored_symmetric(folder: Path) -> bool:
    """Whether each edge in the folder's ``indptr.npy`` and ``indices.npy`` has its reverse; read into memory."""
    indptr = np.load(folder / "indptr.npy", mmap_mode="r")
    return is_symmetric(CSR(indptr, np.load(folder / "indices.npy"), len(indptr) - 1))


def write_facts(folder: Path, graph: Graph | None = None, **stated: Any) -> None:
    """Write ``graph.json`` from a graph, or from given fields."""
    facts: dict[str, Any] = {"format": FORMAT, **stated}
    if graph is not None:
        facts |= {key: getattr(graph, key) for key in _STATED} | {"notes": list(graph.notes)}
        facts |= {key: list(getattr(graph, key)) for key in ("class_names", "result_notes") if getattr(graph, key)}
    (folder / FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def save_graph(graph: Graph, path: Path) -> None:
    """Write the folder ``path``. Raises :class:`GraphError` if it exists."""
    with new_folder(path) as folder:
        np.save(folder / "indptr.npy", graph.csr.indptr)
        np.save(folder / "indices.npy", graph.csr.indices)
        if graph.csr.weights is not None:
            np.save(folder / "weights.npy", graph.csr.weights)
        for key in _PLAIN:
            if getattr(graph, key) is not None:
                np.save(folder / f"{key}.npy", getattr(graph, key))
        features, stored = graph.features, graph.sparse_rows
        if stored is not None:
            for part in ("indptr", "indices", "data"):
                np.save(folder / f"features_{part}.npy", getattr(stored, part))
            np.save(folder / "features_shape.npy", np.array(stored.shape, np.int64))
        if isinstance(features, CentredRows):
            np.save(folder / "features_mean.npy", features.mean)
        elif isinstance(features, np.ndarray):
            np.save(folder / "features.npy", features)
        if graph.vertex_ids is not None:
            np.save(folder / "vertex_ids.npy", graph.vertex_ids)
        write_facts(folder, graph)


def open_graph(path: Path, *, mapped: bool = True) -> Graph:
    """Open a folder of :func:`save_graph` or ``generate_to_disk``; its arrays are memory-mapped and read-only, unless
    ``mapped`` is False. Raises :class:`GraphError`."""
    with outside_data(path, "folder of a saved graph", remedy="write it again", folder=True):
        return _opened(path, mapped)


def _opened(path: Path, mapped: bool) -> Graph:
    if not (path / FACTS).is_file():
        raise GraphError(f"{path}: not a folder of a saved graph; expected {FACTS} in it")
    facts = json.loads((path / FACTS).read_text(encoding="utf-8"))
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise GraphError(f"{path / FACTS}: expected format '{FORMAT}'; got {facts.get('format') if facts else facts!r}")

    def array(name: str, required: bool = False) -> Any:
        return _array(path, name, required, mapped)

    indptr = array("indptr", required=True)
    csr = CSR(indptr, array("indices", required=True), len(indptr) - 1, array("weights"))
    if csr.weights is not None and csr.weights.shape != (csr.edges,):
        raise GraphError(f"{path}: {len(csr.weights)} weights, but there are {csr.edges} edges: write it again")
    if int(indptr[-1]) != csr.edges:
        raise GraphError(f"{path}: indptr ends at {int(indptr[-1])}, but there are {csr.edges} edges: write it again")
    features = array("features")
    if features is None and (path / "features_shape.npy").exists():
        parts = tuple(array(f"features_{part}", required=True) for part in ("data", "indices", "indptr"))
        features = sparse.csr_array(parts, shape=tuple(array("features_shape", required=True).tolist()))
        mean = array("features_mean")
        features = features if mean is None else CentredRows(features, mean)
    return Graph(
        csr=csr,
        features=features,
        notes=tuple(facts.get("notes", ())),
        vertex_ids=array("vertex_ids"),
        class_names=tuple(facts.get("class_names", ())),
        result_notes=tuple(facts.get("result_notes", ())),
        **{key: array(key) for key in _PLAIN},
        **{key: facts[key] for key in _STATED},
    )


def release_pages(array: Any) -> None:
    """Let the system take back the resident pages of a memory-mapped, read-only array; they are read again when used.
    Other arrays are left as they are."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    # pages of a private mapping that was written to would be lost
    if isinstance(array.base, mmap.mmap) and not array.flags.writeable:
        array.base.madvise(mmap.MADV_DONTNEED)


def _array(path: Path, name: str, required: bool, mapped: bool) -> Any:
    file = path / f"{name}.npy"
    if not file.exists() and not required:
        return None
    try:
        return read_npy(file, mapped=mapped)
    except ValueError as error:
        raise GraphError(f"{file}: cannot be read ({error}): write the graph again") from error


def graph_digest(graph: Graph) -> str:
    """SHA-256 (hex) over edges, their weights, features, labels, masks, the number of classes, and the ids of vertices
    and names of classes; not over the graph's name, paths or notes. What a graph does not have leaves the digest as it
    is."""
    digest: Any = hashlib.sha256(f"simgnn-graph-1 {graph.csr.columns} {graph.classes} {graph.multilabel}".encode())
    named: dict[str, Any] = {"indptr": graph.csr.indptr, "indices": graph.csr.indices, "labels": graph.labels}
    named |= {"weights": graph.csr.weights, **{name: getattr(graph, f"{name}_mask") for name in MASKS}}
    features, stored = graph.features, graph.sparse_rows
    if stored is None:
        named["features"] = features
    else:
        named |= {"sparse-indptr": stored.indptr.astype(np.int64), "sparse-indices": stored.indices}
        named["sparse-data"] = stored.data
        digest.update(f"width {stored.shape[1]}".encode())
    if isinstance(features, CentredRows):
        named["mean"] = features.mean
    named["ids"] = graph.vertex_ids
    if graph.class_names:
        digest.update(f"classes {list(graph.class_names)!r}".encode())
    for name, array in named.items():
        if array is not None:
            plain = np.asarray(array)  # the digest must not depend on whether an array is memory-mapped
            digest.update(f"|{name} {plain.dtype.str} {plain.shape}|".encode())
            data = np.ascontiguousarray(plain).reshape(-1).view(np.uint8)
            for first in range(0, len(data), DIGEST_BYTES):
                digest.update(data[first : first + DIGEST_BYTES])
                release_pages(data)
    return str(digest.hexdigest())
