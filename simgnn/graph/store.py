"""A graph on disk: a folder of ``.npy`` files and ``graph.json``, opened memory-mapped; and the digest of a graph."""

import hashlib
import json
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from simgnn.errors import GraphError
from simgnn.graph.build import is_symmetric
from simgnn.graph.csr import CSR
from simgnn.graph.graph import MASKS, CentredRows, Graph
from simgnn.npzfile import read_npy

FORMAT = "simgnn-graph-1"
FACTS = "graph.json"
DIGEST_BYTES = 1 << 22
_PLAIN = ("labels", *(f"{name}_mask" for name in MASKS))
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
    """Where graphs too large for memory are kept: in ``cache``, else ``$SIMGNN_CACHE``, else ``~/.cache/simgnn``."""
    return (cache or Path(os.environ.get("SIMGNN_CACHE") or Path.home() / ".cache" / "simgnn")) / "graphs"


def stored_symmetric(folder: Path) -> bool:
    """Whether each edge in the folder's ``indptr.npy`` and ``indices.npy`` has its reverse; read into memory."""
    indptr = np.load(folder / "indptr.npy", mmap_mode="r")
    return is_symmetric(CSR(indptr, np.load(folder / "indices.npy"), len(indptr) - 1))


def write_facts(folder: Path, graph: Graph | None = None, **stated: Any) -> None:
    """Write ``graph.json`` from a graph, or from its fields."""
    facts: dict[str, Any] = {"format": FORMAT, **stated}
    if graph is not None:
        facts |= {key: getattr(graph, key) for key in _STATED} | {"notes": list(graph.notes)}
    (folder / FACTS).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def save_graph(graph: Graph, path: Path) -> None:
    """Write the folder ``path``; :class:`GraphError` when it exists."""
    with new_folder(path) as folder:
        np.save(folder / "indptr.npy", graph.csr.indptr)
        np.save(folder / "indices.npy", graph.csr.indices)
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
        write_facts(folder, graph)


def open_graph(path: Path) -> Graph:
    """Open a folder of :func:`save_graph` or ``generate_to_disk``; its arrays are memory-mapped and read-only."""
    try:
        facts = json.loads((path / FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise GraphError(f"{path}: not a folder of a saved graph ({error}); expected {FACTS} in it") from error
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise GraphError(f"{path / FACTS}: expected format '{FORMAT}'; got {facts.get('format') if facts else facts!r}")
    indptr = _array(path, "indptr", required=True)
    csr = CSR(indptr, _array(path, "indices", required=True), len(indptr) - 1)
    if int(indptr[-1]) != csr.edges:
        raise GraphError(f"{path}: indptr ends at {int(indptr[-1])}, but there are {csr.edges} edges: write it again")
    features = _array(path, "features")
    if features is None and (path / "features_shape.npy").exists():
        parts = tuple(_array(path, f"features_{part}", required=True) for part in ("data", "indices", "indptr"))
        features = sparse.csr_array(parts, shape=tuple(_array(path, "features_shape", required=True).tolist()))
        mean = _array(path, "features_mean")
        features = features if mean is None else CentredRows(features, mean)
    return Graph(
        csr=csr,
        features=features,
        notes=tuple(facts.get("notes", ())),
        **{key: _array(path, key) for key in _PLAIN},
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


def _array(path: Path, name: str, required: bool = False) -> Any:
    file = path / f"{name}.npy"
    if not file.exists() and not required:
        return None
    try:
        return read_npy(file, mapped=True)
    except ValueError as error:
        raise GraphError(f"{file}: cannot be read ({error}): write the graph again") from error


def graph_digest(graph: Graph) -> str:
    """SHA-256 (hex) over edges, features, labels, masks and the number of classes; not over names, paths or notes."""
    digest: Any = hashlib.sha256(f"simgnn-graph-1 {graph.csr.columns} {graph.classes} {graph.multilabel}".encode())
    named: dict[str, Any] = {"indptr": graph.csr.indptr, "indices": graph.csr.indices, "labels": graph.labels}
    named |= {name: getattr(graph, f"{name}_mask") for name in MASKS}
    features, stored = graph.features, graph.sparse_rows
    if stored is None:
        named["features"] = features
    else:
        named |= {"sparse-indptr": stored.indptr.astype(np.int64), "sparse-indices": stored.indices}
        named["sparse-data"] = stored.data
        digest.update(f"width {stored.shape[1]}".encode())
    if isinstance(features, CentredRows):
        named["mean"] = features.mean
    for name, array in named.items():
        if array is not None:
            plain = np.asarray(array)  # the digest must not depend on whether an array is memory-mapped
            digest.update(f"|{name} {plain.dtype.str} {plain.shape}|".encode())
            data = np.ascontiguousarray(plain).reshape(-1).view(np.uint8)
            for first in range(0, len(data), DIGEST_BYTES):
                digest.update(data[first : first + DIGEST_BYTES])
                release_pages(data)
    return str(digest.hexdigest())
