"""Checks what a reader found and makes a :class:`Graph`: shapes, finite features, label range, disjoint masks."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from simgnn.errors import GraphError
from simgnn.graph.build import BuiltGraph, check_rows
from simgnn.graph.graph import MASKS, Features, Graph

CHUNK_ROWS = 65_536
MOST_WIDTH = 2**24
"""Every column of features takes a row of weights."""
MOST_CLASSES = 2**20
"""Labels from here on are taken for ids: every class takes a column of weights and scores."""


@dataclass
class Found:
    """Unchecked content that a reader found in a source. ``where`` begins error messages. ``labels``: integers [V] (-1
    or NaN = no label), [V, 1], or a 0/1 matrix [V, classes] for several labels a vertex. Masks are bool or 0/1 [V], not
    lists of ids. ``classes`` 0: count them from the labels."""

    name: str
    where: str
    edges: BuiltGraph
    features: Any = None
    labels: Any = None
    train_mask: Any = None
    validation_mask: Any = None
    test_mask: Any = None
    classes: int = 0
    synthetic_labels: bool = False
    notes: list[str] = field(default_factory=list)


def complete_graph(found: Found) -> Graph:
    """Check the content that a reader found and return the graph. Raises :class:`GraphError`."""
    vertices, where = found.edges.csr.rows, found.where
    features, converted = checked_features(found.features, vertices, where)
    labels, classes, multilabel = checked_labels(found.labels, found.classes, vertices, where)
    given = {name: getattr(found, f"{name}_mask") for name in MASKS}
    masks: dict[str, Any] = {
        f"{name}_mask": checked_mask(value, vertices, f"{where}: {name}_mask")
        for name, value in given.items()
        if value is not None
    }
    if labels is None and masks:
        raise GraphError(f"{where}: masks without labels; got no labels, expected int64 [{vertices}]")
    _check_masks(masks.values(), labels, multilabel, where)
    return Graph(
        name=found.name,
        csr=found.edges.csr,
        features=features,
        labels=labels,
        classes=classes,
        multilabel=multilabel,
        symmetric=found.edges.symmetric,
        synthetic_labels=found.synthetic_labels,
        notes=(*found.edges.notes, *converted, *found.notes),
        **masks,
    )


def checked_graph(graph: Graph, where: str) -> Graph:
    """Return a graph that was read from a folder, after the checks that any other source goes through. Raises
    :class:`GraphError`, which begins with ``where``."""
    try:
        check_rows(graph.csr)
    except GraphError as error:
        raise GraphError(f"{where}: {error}; write it again") from error
    vertices, stored, weights = graph.vertices, graph.sparse_rows, graph.csr.weights
    if weights is not None and (weights.dtype != np.float64 or not np.isfinite(weights).all()):
        raise GraphError(f"{where}: weights must be finite numbers, float64; got {weights.dtype}; write it again")
    if stored is not None:
        stored.check_format(full_check=True)
        _check_rows(stored.shape, vertices, where)
    else:
        checked_features(graph.features, vertices, where)
    stated = 0 if graph.labels is None else graph.classes
    _, classes, several = checked_labels(graph.labels, stated, vertices, where)
    masks = [getattr(graph, f"{name}_mask") for name in MASKS]
    checked = [checked_mask(mask, vertices, where) for mask in masks if mask is not None]
    _check_masks(checked, graph.labels, graph.multilabel, where)
    if graph.labels is not None and (classes, several) != (graph.classes, graph.multilabel):
        raise GraphError(f"{where}: labels of {classes} classes, but {graph.classes} are stated; write it again")
    if graph.vertex_ids is not None and graph.vertex_ids.shape != (vertices,):
        raise GraphError(f"{where}: expected ids of {vertices} vertices; got {graph.vertex_ids.shape}; write it again")
    return graph


def checked_features(value: Any, vertices: int, where: str) -> tuple[Features | None, list[str]]:
    """Return features as a :class:`Graph` holds them, and notes on what was converted. Raises :class:`GraphError`,
    which begins with ``where``, for other shapes and types, and for numbers that are not finite."""
    if value is None:
        return None, []
    if sparse.issparse(value):
        kept: Any = value
        # scipy has no arithmetic on float16; the values are kept exactly in float32
        matrix: Any = sparse.csr_array(kept).astype(np.float32)
        matrix.sum_duplicates()
        _check_rows(matrix.shape, vertices, where)
        bad = np.flatnonzero(~np.isfinite(matrix.data))
        if len(bad):
            vertex = int(np.searchsorted(matrix.indptr, bad[0], side="right")) - 1
            raise _not_finite(where, vertex, int(matrix.indices[bad[0]]), matrix.data[bad[0]])
        return matrix, []
    array = np.asanyarray(value)
    if array.ndim == 1:
        array = array[:, None]
    _check_rows(array.shape, vertices, where)
    if array.dtype.kind not in "fiub":
        raise GraphError(f"{where}: features must be numbers; got {array.dtype}")
    converted = []
    if array.dtype not in (np.float16, np.float32):
        converted = [f"features converted from {array.dtype} to float32"]
        _check_finite(array, where)
        with np.errstate(over="ignore"):  # found by the check below
            array = array.astype(np.float32)
    _check_finite(array, where)
    return (array if array.flags.c_contiguous else np.ascontiguousarray(array)), converted


def _check_rows(shape: tuple[int, ...], vertices: int, where: str) -> None:
    if len(shape) != 2 or shape[0] != vertices or shape[1] == 0:
        raise GraphError(f"{where}: features must have one row a vertex, shape [{vertices}, width]; got {list(shape)}")
    if shape[1] > MOST_WIDTH:
        raise GraphError(f"{where}: features have {shape[1]:,} columns, expected at most {MOST_WIDTH:,}: drop some")


def _check_finite(array: NDArray[Any], where: str) -> None:
    if array.dtype.kind != "f":
        return
    for first in range(0, len(array), CHUNK_ROWS):
        part = array[first : first + CHUNK_ROWS]
        # a sum is NaN or Inf when a term is; only then is the place looked for
        with np.errstate(over="ignore"):  # finite numbers may have a sum that is not
            total = np.sum(part, dtype=np.float64)
        if not np.isfinite(total):
            bad = np.argwhere(~np.isfinite(part))
            if len(bad):
                vertex, column = (int(k) for k in bad[0])
                raise _not_finite(where, first + vertex, column, part[vertex, column])


def _not_finite(where: str, vertex: int, column: int, value: Any) -> GraphError:
    return GraphError(
        f"{where}: features must be finite; vertex {vertex} has {value} in column {column}: replace or drop such values"
    )


def checked_labels(value: Any, classes: int, vertices: int, where: str) -> tuple[NDArray[Any] | None, int, bool]:
    """Return labels as a :class:`Graph` holds them, the number of classes, and whether a vertex may have several.
    ``classes`` 0: count them. Raises :class:`GraphError`, which begins with ``where``."""
    if value is None:
        return None, 0, False
    array = np.asarray(value)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim not in (1, 2) or len(array) != vertices:
        raise GraphError(f"{where}: labels must have one entry a vertex, [{vertices}]; got shape {list(array.shape)}")
    if array.ndim == 2:
        if not np.all((array == 0) | (array == 1)):
            raise GraphError(f"{where}: labels of several classes a vertex must be 0 or 1; got other values")
        if classes not in (0, array.shape[1]):
            raise GraphError(f"{where}: labels have {array.shape[1]} columns, but {classes} classes are stated")
        return array.astype(np.bool_), int(array.shape[1]), True
    if array.dtype.kind == "f":
        unknown = np.isnan(array)
        whole = np.where(unknown, -1, array)
        if not np.all(whole == np.floor(whole)) or not np.all(np.isfinite(whole)):
            raise GraphError(f"{where}: labels must be whole numbers (NaN = no label); got others")
        array = whole
    elif array.dtype.kind not in "iub":
        raise GraphError(f"{where}: labels must be integers; got {array.dtype}")
    if array.size and float(array.max()) >= MOST_CLASSES:
        raise GraphError(f"{where}: labels must be below {MOST_CLASSES:,}; got {array.max()}: number classes from 0")
    labels = np.ascontiguousarray(array, dtype=np.int64)
    low, high = int(labels.min()), int(labels.max())
    if high < 0 <= low + 1:
        raise GraphError(f"{where}: no vertex has a label (all are -1 or empty): leave the labels out")
    if low < -1 or (classes and high >= classes):
        allowed = f"lie in 0..{classes - 1}" if classes else "be 0 or more"
        raise GraphError(f"{where}: labels must {allowed} (-1 = no label); got {low}..{high}")
    return labels, classes or high + 1, False


def checked_mask(value: Any, vertices: int, where: str) -> NDArray[np.bool_]:
    """Return a mask as bool [V]. Raises :class:`GraphError`, which begins with ``where``."""
    array = np.asarray(value)
    if array.shape != (vertices,):
        raise GraphError(f"{where} must have one entry a vertex, [{vertices}]; got shape {list(array.shape)}")
    if array.dtype != np.bool_:
        if array.dtype.kind not in "iuf" or not np.all((array == 0) | (array == 1)):
            raise GraphError(
                f"{where} must be bool or 0/1; got {array.dtype} with other values: a list of ids is no mask"
            )
        array = array.astype(np.bool_)
    return np.ascontiguousarray(array)


def _check_masks(
    masks: Collection[NDArray[np.bool_]], labels: NDArray[Any] | None, multilabel: bool, where: str
) -> None:
    if labels is None:
        return
    count = sum((mask.astype(np.int8) for mask in masks), np.zeros(len(labels), np.int8))
    if np.any(count > 1):
        raise GraphError(
            f"{where}: train, validation and test masks must be disjoint; "
            f"vertex {int(np.argmax(count > 1))} is in several"
        )
    bad = np.zeros(0, np.intp) if multilabel else np.flatnonzero((count > 0) & (labels < 0))
    if len(bad):
        raise GraphError(f"{where}: vertex {int(bad[0])} is in a mask but has no label: leave it out of the masks")
