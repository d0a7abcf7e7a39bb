"""Features, labels and splits in files of their own: ``graph.features``, ``graph.labels``, ``graph.splits``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import GraphError
from simgnn.graph.complete import checked_features, checked_labels, checked_mask
from simgnn.graph.graph import MASKS, Graph
from simgnn.graph.readers.vertex_rows import (
    Rows,
    read_features,
    read_ids,
    read_labels,
    read_split_folder,
    read_split_names,
)
from simgnn.graph.readers.vertex_table import SUFFIXES
from simgnn.graph.splits import SPLIT_NAMES, shared_masks
from simgnn.graph.vertex_ids import ListedIds, positions, shown_id
from simgnn.outside import followed

FILES = ("features", "labels", "splits")
"""Keys of ``[graph]`` that state a file."""
Find = Callable[[str, str], Path]
"""Finds the path that a key of ``[graph]`` states, as ``find(text, key)``."""


@dataclass(frozen=True)
class SideFiles:
    """What files beside the graph's own hold. ``splits``: a column with the name of the part of each row, or by part
    the ids of its vertices, or by part its share of the labelled vertices, drawn with ``seed``."""

    features: Rows | None = None
    labels: Rows | None = None
    splits: Rows | Mapping[str, Rows] | Mapping[str, float] | None = None
    seed: int = 0

    @classmethod
    def read(cls, options: Mapping[str, Any], find: Find) -> "SideFiles":
        """Read the files that options of ``[graph]`` state. Raises :class:`GraphError`."""
        splits = options.get("splits")
        found = {key: find(options[key], f"graph.{key}") for key in FILES if isinstance(options.get(key), str)}
        for key, file in (("feature_columns", "features"), ("label_column", "labels"), ("split_column", "splits")):
            if options.get(key) is not None and (file not in found or not _has_columns(found[file])):
                got = found[file].name if file in found else "a table"
                raise GraphError(
                    f"graph.{key}: got {options[key]!r:.80}, expected none: it is a column of graph.{file}, and {got} "
                    "has none; remove it"
                )
        # one file may be stated in two ways: columns of labels are no features
        options = {**options, **{key: str(followed(path)) for key, path in found.items()}}
        parts: Rows | Mapping[str, Rows] | Mapping[str, float] | None = None
        seed = 0
        if isinstance(splits, Mapping):
            given = {part: splits[part] for part in MASKS if part in splits}
            seed = int(splits.get("seed", 0))
            if any(isinstance(value, str) for value in given.values()):
                keys = {part: f"graph.splits.{part}" for part in given}
                parts = {part: read_ids(find(text, keys[part]), keys[part], options) for part, text in given.items()}
            else:
                parts = {part: float(share) for part, share in given.items()}
        elif splits is not None:
            path = found["splits"]
            parts = read_split_folder(path, options) if path.is_dir() else read_split_names(path, options)
        return cls(
            read_features(found["features"], options) if "features" in found else None,
            read_labels(found["labels"], options) if "labels" in found else None,
            parts,
            seed,
        )

    @property
    def listed(self) -> tuple[ListedIds, ...]:
        """Ids in tables of features and labels: vertices that the edges may lack."""
        tables = (rows for rows in (self.features, self.labels) if rows is not None)
        return tuple(ListedIds(rows.path, rows.ids) for rows in tables if rows.ids is not None)

    @property
    def least_vertices(self) -> int:
        """Rows of the files that have a row for each vertex in order; 0 without such files."""
        tables = (self.features, self.labels)
        return max((len(rows.values) for rows in tables if rows is not None and rows.ids is None), default=0)

    def added_to(self, graph: Graph, source: str) -> Graph:
        """Return the graph with the features, labels and masks of these files, checked. Raises :class:`GraphError`,
        also for features or labels that the graph has already."""
        notes = list(graph.notes)
        if self.features is not None:
            if graph.features is not None:
                raise GraphError(f"graph.features: '{source}' has features of its own; remove the key")
            by_vertex = _every_row(self.features, graph)
            features, converted = checked_features(by_vertex, graph.vertices, str(self.features.path))
            left = f", without {', '.join(self.features.left[:10])}" if self.features.left else ""
            notes += [f"features from {self.features.path.name}{_joined(self.features)}{left}", *converted]
            graph = replace(graph, features=features)
        if self.labels is not None:
            if graph.labels is not None:
                raise GraphError(f"graph.labels: '{source}' has labels of its own; remove the key")
            values = _known_rows(self.labels, graph)
            labels, classes, several = checked_labels(values, 0, graph.vertices, str(self.labels.path))
            names = self.labels.class_names
            notes.append(f"labels from {self.labels.path.name}{_joined(self.labels)}")
            if names:
                notes.append(f"classes are numbered by name: {', '.join(names[:10])}{', ...' if names[10:] else ''}")
            graph = replace(graph, labels=labels, classes=classes, multilabel=several, class_names=names)
        return replace(graph, notes=tuple(notes))

    def split(self, graph: Graph, source: str) -> Graph:
        """Return the graph with the masks that ``graph.splits`` states, in place of any others."""
        if self.splits is None:
            return graph
        if graph.labels is None:
            raise GraphError(
                f"graph.splits: '{source}' has no labels to train on; state graph.labels or remove the key"
            )
        labelled = np.ones(graph.vertices, np.bool_) if graph.multilabel else graph.labels >= 0
        if isinstance(self.splits, Rows):
            masks, told = _masks_by_name(self.splits, graph), self.splits.path.name + _joined(self.splits)
        elif shares := {part: share for part, share in self.splits.items() if isinstance(share, float)}:
            masks = shared_masks(labelled, shares, self.seed)
            told = ", ".join(f"{part} {share:g}" for part, share in shares.items()) + f", seed {self.seed}"
        else:
            lists = {part: rows for part, rows in self.splits.items() if isinstance(rows, Rows)}
            masks = {part: _mask_of(rows, graph) for part, rows in lists.items()}
            told = ", ".join(rows.path.name for rows in lists.values())
        _check_masks(masks, labelled, graph)
        replaced = any(getattr(graph, f"{name}_mask") is not None for name in MASKS)
        notes = (*graph.notes, f"splits: {told}{' (those of the source are not used)' if replaced else ''}")
        fields: dict[str, Any] = {f"{part}_mask": masks.get(part) for part in MASKS}
        return replace(graph, notes=notes, **fields)


def _has_columns(path: Path) -> bool:
    return not path.is_dir() and path.suffix.lower() != ".npy"


def _joined(rows: Rows) -> str:
    return "" if rows.ids is None else ", joined by id"


def _places(rows: Rows, graph: Graph, once: bool = True) -> NDArray[np.int64]:
    """Return the vertex of each row. Raises :class:`GraphError` for ids of no vertex, and for repeats if ``once``."""
    assert rows.ids is not None
    places = positions(rows.ids, graph.vertex_ids, graph.vertices)
    if len(places) and places.min() < 0:
        unknown = rows.ids[int(np.argmin(places))].as_py()
        kind = f"0..{graph.vertices - 1}" if graph.vertex_ids is None else "an id of the edge list or of graph.features"
        raise GraphError(f"{rows.path}: got the id {unknown!r}, expected {kind}")
    if once and len(np.unique(places)) < len(places):
        ordered = np.sort(places)
        twice = int(ordered[1:][ordered[1:] == ordered[:-1]][0])
        raise GraphError(
            f"{rows.path}: the id {shown_id(graph.vertex_ids, twice)} is in several rows; keep one of them"
        )
    return places


def _every_row(rows: Rows, graph: Graph) -> NDArray[Any]:
    """Return the rows by vertex; each vertex must have one."""
    if rows.ids is None:
        _check_order(rows, graph)
        return rows.values
    places = _places(rows, graph)
    if len(places) < graph.vertices:
        without = np.ones(graph.vertices, np.bool_)
        without[places] = False
        first = shown_id(graph.vertex_ids, int(np.argmax(without)))
        count = int(np.count_nonzero(without))
        raise GraphError(f"{rows.path}: {count:,} vertices have no row, such as {first}: give each vertex one")
    out = np.empty_like(rows.values)
    out[places] = rows.values
    return out


def _known_rows(rows: Rows, graph: Graph) -> NDArray[Any]:
    """Return labels by vertex; vertices without a row have none."""
    if rows.ids is None:
        _check_order(rows, graph)
        return rows.values
    places = _places(rows, graph)
    missing = 0 if rows.values.ndim == 2 else -1
    out = np.full((graph.vertices, *rows.values.shape[1:]), missing, rows.values.dtype)
    out[places] = rows.values
    return out


def _check_order(rows: Rows, graph: Graph) -> None:
    if graph.vertex_ids is None:
        return
    names = f"the vertices have names, such as {shown_id(graph.vertex_ids, 0)}"
    numbers = ""
    if graph.vertex_ids.dtype.kind == "i":
        numbers = "; if they are the numbers of its rows, state graph.ids = 'numbers'"
    if rows.columns:
        raise GraphError(
            f"{rows.path}: which column holds the ids? {names}: state graph.id_column; got the columns "
            f"{', '.join(rows.columns[:20])}{numbers}"
        )
    raise GraphError(
        f"{rows.path} has a row for each vertex in order, but {names}: write a table with a column of ids "
        f"({', '.join(SUFFIXES[1:])}){numbers}"
    )


def _masks_by_name(rows: Rows, graph: Graph) -> dict[str, NDArray[np.bool_]]:
    names = [str(value).strip().lower() for value in rows.values]
    for row, name in enumerate(names):
        if name and name not in SPLIT_NAMES and name not in ("none", "nan", "unused"):
            known = "train, validation, test, or nothing for a vertex that is not used"
            raise GraphError(f"{rows.path}: row {row + 1}: got {rows.values[row]!r:.40}, expected {known}")
    if rows.ids is None:
        _check_order(rows, graph)
        if len(names) != graph.vertices:
            raise GraphError(
                f"{rows.path}: expected a row a vertex, {graph.vertices}; got {len(names)}: add the others"
            )
    places = np.arange(graph.vertices) if rows.ids is None else _places(rows, graph)
    parts = np.array([SPLIT_NAMES.get(name, "") for name in names], dtype=object)
    masks = {}
    for part in MASKS:
        masks[part] = np.zeros(graph.vertices, np.bool_)
        masks[part][places[parts == part]] = True
    return masks


def _mask_of(rows: Rows, graph: Graph) -> NDArray[np.bool_]:
    if rows.ids is None:
        _check_order(rows, graph)
        return checked_mask(rows.values, graph.vertices, str(rows.path))
    mask = np.zeros(graph.vertices, np.bool_)
    mask[_places(rows, graph, once=False)] = True
    return mask


def _check_masks(masks: Mapping[str, NDArray[np.bool_]], labelled: NDArray[np.bool_], graph: Graph) -> None:
    """Check that no vertex is in several masks, or in one without a label."""
    count = np.sum([mask.astype(np.int8) for mask in masks.values()], axis=0, dtype=np.int64)
    for bad, one, many, remedy in (
        (count > 1, "is in several parts", "are in several parts", "keep one part of each"),
        ((count > 0) & ~labelled, "has no label", "have no label", "splits list labelled vertices only; remove others"),
    ):
        found = np.flatnonzero(bad)
        if len(found):
            vertex = shown_id(graph.vertex_ids, int(found[0]))
            told = f"{len(found):,} vertices {many}, {vertex} first" if len(found) > 1 else f"the vertex {vertex} {one}"
            raise GraphError(f"graph.splits: {told}: {remedy}")
    if not np.any(masks.get("train", False)):
        raise GraphError("graph.splits: no vertex is in the part train; expected one at least")
