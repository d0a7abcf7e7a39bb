"""The ``NAME.npz`` (+ ``NAME.json``) format: CSR arrays, features dense or sparse, labels, masks; never pickled."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from simgnn.errors import GraphError
from simgnn.graph.build import BuiltGraph, assemble_edges, index_dtype, is_symmetric, with_weights
from simgnn.graph.complete import MOST_CLASSES, Found, complete_graph
from simgnn.graph.csr import CSR
from simgnn.graph.graph import Graph
from simgnn.graph.weights import NAMES, TAKEN, WeightChoice, checked_weights
from simgnn.npzfile import read_npz as read_archive
from simgnn.outside import check_regular, outside_data, read_json
from simgnn.progress import SILENT, Progress

SPARSE = ("feat_indptr", "feat_indices", "feat_data", "feat_shape")
SCIPY = "data"
"""Name of the values in a file of ``scipy.sparse.save_npz``."""


def read_npz(
    path: Path, *, symmetrise: bool = True, weights: WeightChoice = TAKEN, progress: Progress = SILENT
) -> Graph:
    """Read ``path`` and, beside it, an optional ``.json`` with ``name``, ``num_classes``, ``labels_kind``.

    Keys: ``indptr`` int [V+1] and ``indices`` int [E] (row = destination); optional ``feat`` float [V, F] or
    ``feat_indptr``/``feat_indices``/``feat_data``/``feat_shape`` (CSR); ``labels`` int [V]; ``train_mask``,
    ``val_mask``, ``test_mask`` bool [V]; ``weights`` float [E] (or another of ``NAMES``, or ``data`` as in files of
    ``scipy.sparse.save_npz``), see :class:`WeightChoice`. Unsorted rows, self loops and repeats are corrected and
    noted. Raises :class:`GraphError` for a file that is cut off, pickled, lacks a key or has wrong shapes.
    """
    with outside_data(path, "graph in an .npz archive"):
        arrays = load_arrays(path, progress)
        with progress.waiting(f"sorting edges of {path.name}"):
            return complete_graph(_found(path, arrays, symmetrise, weights))


def _found(path: Path, arrays: dict[str, NDArray[Any]], symmetrise: bool, weights: WeightChoice) -> Found:
    facts = _facts(path.with_suffix(".json"))
    for key in ("indptr", "indices"):
        if key not in arrays:
            raise GraphError(
                f"{path}: no array '{key}'; got {', '.join(sorted(arrays)) or 'nothing'}: see the format's README"
            )
    layout = arrays.get("format")  # of scipy.sparse.save_npz
    if layout is not None and not (layout.dtype.kind in "SU" and layout == np.array("csr", layout.dtype.kind)):
        raise GraphError(f"{path}: expected a sparse matrix in CSR format: convert it with .tocsr(), and save it again")
    held = weights.among(list(arrays), str(path), (*NAMES, SCIPY))
    values = None if held is None else arrays[held]
    edges = csr_edges(arrays["indptr"], arrays["indices"], symmetrise, str(path), values)
    synthetic = str(facts.get("labels_kind", "")).upper().startswith("SYNTHETIC")
    return Found(
        name=str(facts.get("name", path.stem)),
        where=str(path),
        edges=edges,
        features=_features(arrays, path),
        labels=arrays.get("labels"),
        train_mask=arrays.get("train_mask"),
        validation_mask=arrays.get("val_mask"),
        test_mask=arrays.get("test_mask"),
        classes=0 if "labels" not in arrays or arrays["labels"].ndim == 2 else facts.get("num_classes", 0),
        synthetic_labels=synthetic,
        notes=[f"labels: {facts['labels_kind']}"] if synthetic else [],
    )


def load_arrays(path: Path, progress: Progress = SILENT) -> dict[str, NDArray[Any]]:
    """All arrays of an ``.npz``, without pickle; :class:`GraphError` when it is cut off, pickled or no ``.npz``."""
    check_regular(path)
    if not zipfile.is_zipfile(path):
        raise GraphError(f"{path}: not an .npz archive: is it cut off? write or fetch it again")
    try:
        with progress.counting(f"reading {path.name}", path.stat().st_size, share=True, patient=True) as counter:
            return read_archive(path, counter.at)
    except ValueError as error:
        # NumPy also names pickle where a header is damaged
        if "Object arrays" in str(error):
            raise GraphError(f"{path}: holds pickled objects, which are never loaded: save plain arrays") from error
        raise GraphError(f"{path}: not a readable .npz ({error}): is it cut off? write or fetch it again") from error


def csr_edges(
    indptr: NDArray[Any], indices: NDArray[Any], symmetrise: bool, where: str, weights: NDArray[Any] | None = None
) -> BuiltGraph:
    """Check given CSR arrays, and correct unsorted rows, self loops, repeats and missing reverse edges."""
    for name, array in (("indptr", indptr), ("indices", indices)):
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise GraphError(
                f"{where}: '{name}' must be integers of one dimension; got {array.dtype} {list(array.shape)}"
            )
    vertices = len(indptr) - 1
    if vertices < 1:
        raise GraphError(f"{where}: a graph needs at least 1 vertex; got {max(vertices, 0)}")
    try:
        ids: Any = indices
        csr = CSR(np.ascontiguousarray(indptr, np.int64), ids, vertices).check()
    except GraphError as error:
        raise GraphError(f"{where}: {error}") from error
    ids = np.ascontiguousarray(indices, index_dtype(vertices))
    csr = CSR(csr.indptr, ids, vertices)
    target = np.repeat(np.arange(vertices, dtype=csr.indices.dtype), csr.degrees())
    rising = (csr.indices[1:] > csr.indices[:-1]) | (target[1:] != target[:-1])
    if np.all(rising) and not np.any(csr.indices == target):
        symmetric = is_symmetric(csr)
        if symmetric or not symmetrise:
            given = checked_weights(weights, csr.indices, target, where)
            return BuiltGraph(csr if given is None else with_weights(csr, given, where), symmetric, 0, 0, 0)
    return assemble_edges(csr.indices, target, vertices, symmetrise, weights=weights, key=where)


def _features(arrays: Mapping[str, NDArray[Any]], path: Path) -> Any:
    if "feat" in arrays:
        return arrays["feat"]
    held = [key for key in SPARSE if key in arrays]
    if not held:
        return None
    if len(held) < len(SPARSE):
        missing = ", ".join(key for key in SPARSE if key not in arrays)
        raise GraphError(f"{path}: sparse features need {', '.join(SPARSE)}; missing: {missing}")
    shape = tuple(int(k) for k in np.ravel(arrays["feat_shape"]))
    try:
        parts = (arrays["feat_data"].astype(np.float32), arrays["feat_indices"], arrays["feat_indptr"])
        matrix: Any = sparse.csr_array(parts, shape=shape[:2])  # type: ignore[arg-type]
        matrix.check_format(full_check=True)
    except (ValueError, TypeError) as error:
        raise GraphError(
            f"{path}: sparse features do not form a CSR matrix of shape {list(shape)} ({error})"
        ) from error
    return matrix


def _facts(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    facts = read_json(path, "JSON file", remedy="correct or remove it")
    if not isinstance(facts, dict):
        raise GraphError(f"{path}: expected a JSON object, got {type(facts).__name__}")
    classes = facts.get("num_classes", 0)
    if type(classes) is not int or not 0 <= classes <= MOST_CLASSES:
        raise GraphError(
            f"{path}: num_classes: got {classes!r:.40}, expected a whole number up to {MOST_CLASSES:,}; correct or "
            "remove it"
        )
    return facts
