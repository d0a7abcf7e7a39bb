"""Loads or generates the graph that ``graph.source`` and its options name."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import GraphError
from simgnn.graph.graph import MASKS, CentredRows, Graph
from simgnn.memory import check_memory
from simgnn.outside import check_regular, expanded, outside_data
from simgnn.progress import SILENT, Progress

if TYPE_CHECKING:
    from simgnn.graph.side_files import SideFiles

GENERATOR_OPTIONS = ("vertices", "edges", "classes", "multilabel", "feature_width")
SIZES = ("vertices", "edges", "feature_width")
TYPES = ("relation", "homogeneous")
SIDE_FILES = ("features", "labels")
ID_COLUMNS = ("source_column", "target_column", "ids")
EDGE_COLUMNS = (*ID_COLUMNS, "weight_column")
SUFFIXES = (".npz", ".npy", ".csv", ".tsv", ".txt", ".parquet", ".mtx", ".bin", ".pt")
PREFIXES = ("synthetic:", "ogb:", "dgl:", "pyg:", "stats:")
STAND_IN_SEED, LABEL_SEED = 0, 1  # fixed, so that a stand-in belongs to the graph and not to the experiment's seed
CHUNK_ROWS = 65_536


def load_graph(
    source: str,
    *,
    base: Path | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
    seed: int = 0,
    progress: Progress = SILENT,
) -> Graph:
    """Load or generate the graph that an experiment names. Raises :class:`GraphError`.

    ``source``: a path, by its suffix ``.npz``, ``.npy`` (edge list [E, 2]), ``.csv``/``.tsv``/``.txt`` (and ``.gz``),
    ``.parquet``, ``.mtx`` (and ``.gz``), ``.bin`` (DGL), ``.pt`` (PyG), a folder of ``save_graph``;
    ``synthetic:communities``, ``synthetic:rmat``, ``ogb:NAME``, ``dgl:PATH`` or ``pyg:PATH``. Relative paths start at
    ``base``, then at the working directory. ``seed`` seeds the generators and ``labelled``. ``progress`` is told how
    far generating and reading are.

    ``options``: ``symmetrise`` (default true); ``vertices`` V of an edge list, Parquet file or generator; ``edges``,
    ``feature_width`` for generators; ``classes``, ``multilabel`` for generators, or random labels and 60/20/20 masks
    for a graph without labels; ``weights`` ("ignore": edges have none) and ``weight_column``, see
    :class:`~simgnn.graph.weights.WeightChoice`; ``features``, ``labels``, ``splits`` and ``id_column``,
    ``label_column``, ``split_column``, ``feature_columns``, see :class:`~simgnn.graph.side_files.SideFiles`;
    ``source_column``, ``target_column`` and ``ids`` of an edge list, see :mod:`simgnn.graph.vertex_ids`; ``relation``
    and ``homogeneous`` of a graph with several types, see :class:`~simgnn.graph.typed_graph.TypedGraph`;
    ``stand_in_features``: width of unit normal float32 features for a graph without any; ``centre``: see
    :func:`with_centred_features`; ``labelled``: share of all vertices that stay labelled, see
    :func:`~simgnn.graph.labelled.with_fewer_labels`; ``root``: folder of OGB data sets. None means absent.
    ``synthetic_features``, ``synthetic_labels`` and ``notes`` of the graph mark what is not real.
    """
    given = {key: value for key, value in options.items() if value is not None}
    prefix, _, rest = source.partition(":")
    if prefix == "synthetic":
        # Numba: loaded when a graph is generated
        from simgnn.graph.generators.generate import generated, recipe_of

        _refuse(given, ("stand_in_features", "centre", "root", "weights", *SIDE_FILES, *EDGE_COLUMNS, *TYPES), source)
        shape = {key: value for key, value in given.items() if key in GENERATOR_OPTIONS}
        symmetrise = bool(given.get("symmetrise", True))
        graph = generated(recipe_of(rest, shape, seed), symmetrise=symmetrise, progress=progress)
        return _labelled(_side_files(given, base).split(graph, source) if "splits" in given else graph, given, seed)
    if prefix == "stats":
        raise GraphError(
            f"graph.source: '{source}' names statistics, which hold no graph; `simgnn simulate` takes it, "
            "training needs a graph"
        )
    sides = _side_files(given, base)
    read = _read(source, prefix, rest, base, given, sides, progress)
    return _labelled(_completed(sides.added_to(read, source), given, source, sides), given, seed)


def _labelled(graph: Graph, given: Mapping[str, Any], seed: int) -> Graph:
    if "labelled" not in given:
        return graph
    # Numba: loaded when a graph is read
    from simgnn.graph.labelled import with_fewer_labels

    return with_fewer_labels(graph, float(given["labelled"]), seed)


def check_source(source: str) -> None:
    """Raise :class:`GraphError` for a path that does not exist; its content is not read."""
    prefix, _, rest = source.partition(":")
    if prefix not in ("synthetic", "ogb", "stats"):
        _find(rest if prefix in ("dgl", "pyg") and rest else source, None)


def _side_files(given: Mapping[str, Any], base: Path | None) -> "SideFiles":
    # Numba, SciPy and pyarrow: loaded when a graph is read
    from simgnn.graph.side_files import SideFiles

    return SideFiles.read(given, lambda text, key: _find(text, base, key))


def _read(
    source: str,
    prefix: str,
    rest: str,
    base: Path | None,
    given: Mapping[str, Any],
    sides: "SideFiles",
    progress: Progress,
) -> Graph:
    # Numba, SciPy and pyarrow: loaded when a graph is read
    from simgnn.graph.build import symmetrise_csr
    from simgnn.graph.complete import checked_graph
    from simgnn.graph.readers import dgl_process, edge_array, frameworks, matrix_market, npz, ogb, tables
    from simgnn.graph.store import open_graph
    from simgnn.graph.typed_graph import TypeChoice
    from simgnn.graph.vertex_ids import IdChoice
    from simgnn.graph.weights import WeightChoice

    weights, types = WeightChoice.of(given), TypeChoice.of(given)
    symmetrise = bool(given.get("symmetrise", True))
    if prefix == "ogb" and rest:
        _refuse(given, (*SIZES, *EDGE_COLUMNS), source)
        roots = _candidates(expanded(given.get("root", "dataset")), base)
        return ogb.read_ogb(rest, roots, symmetrise=symmetrise, weights=weights, types=types, progress=progress)
    _refuse(given, ("root",), source)
    forced = {"dgl": ".bin", "pyg": ".pt"}.get(prefix) if rest else None
    path = _find(rest if forced else source, base)
    if path.is_dir():
        _refuse(given, (*SIZES, *EDGE_COLUMNS, *TYPES), source)
        with outside_data(path, "folder of a saved graph", folder=True):
            saved = checked_graph(open_graph(path), str(path))
        if not weights.used:
            saved = replace(saved, csr=saved.csr.unweighted())
        if symmetrise and not saved.symmetric:
            return replace(saved, csr=symmetrise_csr(saved.csr), symmetric=True, notes=(*saved.notes, "symmetrised"))
        return saved
    suffix = forced or _suffix(path)
    if suffix in (".npy", ".mtx"):
        _refuse(given, ("weight_column",), source)
    if suffix in (".bin", ".pt"):
        _refuse(given, (*SIZES, *ID_COLUMNS), source)
        if suffix == ".pt":
            return frameworks.read_pyg(path, symmetrise=symmetrise, weights=weights, types=types, progress=progress)
        with progress.waiting(f"reading {path.name}"):  # DGL reads an array of any size by one call
            return dgl_process.read_dgl(path, symmetrise=symmetrise, weights=weights, types=types)
    _refuse(given, TYPES, source)
    if suffix == ".npz":
        _refuse(given, (*SIZES, *ID_COLUMNS), source)
        return npz.read_npz(path, symmetrise=symmetrise, weights=weights, progress=progress)
    _refuse(given, ("edges", "feature_width"), source)
    vertices = given.get("vertices")
    ids = IdChoice(given.get("ids", "auto"), sides.listed, sides.least_vertices)
    chosen: dict[str, Any] = {"vertices": vertices, "symmetrise": symmetrise, "weights": weights, "progress": progress}
    if suffix == ".mtx":
        _refuse(given, ID_COLUMNS, source)
        return matrix_market.read_matrix_market(path, **chosen)
    if suffix == ".npy":
        _refuse(given, ("source_column", "target_column"), source)
        return edge_array.read_npy(path, ids=replace(ids, mode="names" if ids.mode == "names" else "numbers"), **chosen)
    columns = tables.EdgeColumns(given.get("source_column"), given.get("target_column"))
    read = tables.read_parquet if suffix == ".parquet" else tables.read_edge_list
    return read(path, columns=columns, ids=ids, **chosen)


def _completed(graph: Graph, given: Mapping[str, Any], source: str, sides: "SideFiles") -> Graph:
    """Add the stand-ins that were asked for, then the stated splits, else masks where a graph has labels and none."""
    # Numba: loaded when a graph is read
    from simgnn.graph.generators.generate import split_masks

    width = given.get("stand_in_features")
    if width is not None:
        if graph.features is not None:
            raise GraphError(f"graph.stand_in_features: '{source}' has features of its own; remove the option")
        check_memory(
            4.0 * graph.vertices * width,
            f"graph.stand_in_features: {width:,} numbers for each of {graph.vertices:,} vertices",
            "state a smaller width",
        )
        draws = np.random.default_rng(STAND_IN_SEED).standard_normal((graph.vertices, width), dtype=np.float32)
        note = f"features are stand-ins: {width} random normal numbers a vertex"
        graph = replace(graph, features=draws, synthetic_features=True, notes=(*graph.notes, note))
    if given.get("centre"):
        graph = with_centred_features(graph, source)
    if "classes" in given or given.get("multilabel"):
        if graph.labels is not None:
            raise GraphError(f"graph.classes, graph.multilabel: '{source}' has labels of its own; remove the options")
        if "classes" not in given:
            raise GraphError(f"graph.multilabel: '{source}' has no labels; state graph.classes for random ones")
        classes, several, draw = int(given["classes"]), bool(given.get("multilabel")), np.random.default_rng(LABEL_SEED)
        labels: Any = draw.integers(0, classes, graph.vertices)
        if several:
            labels = draw.random((graph.vertices, classes)) < 2.0 / classes
        notes = (*graph.notes, f"labels are stand-ins: {classes} random classes")
        graph = replace(graph, labels=labels, classes=classes, multilabel=several, synthetic_labels=True, notes=notes)
    graph = sides.split(graph, source)
    if graph.labels is not None and all(getattr(graph, f"{name}_mask") is None for name in MASKS):
        masks: dict[str, Any] = dict(split_masks(graph.vertices, STAND_IN_SEED))
        if not graph.multilabel:
            masks = {name: mask & (graph.labels >= 0) for name, mask in masks.items()}
        graph = replace(graph, **masks, notes=(*graph.notes, "no split in the source: seeded 60/20/20"))
    return graph


def with_centred_features(graph: Graph, source: str, mean: NDArray[np.float64] | None = None) -> Graph:
    """Subtract from each feature column its mean over all vertices, which is taken in float64, or the ``mean`` [F_0] of
    another graph. Sparse features stay
    sparse (:class:`CentredRows`). Dense ones become float32 and lie in memory, 4 V F_0 bytes, even if they were
    memory-mapped. Raises :class:`GraphError` for a graph without features."""
    features: Any = graph.features
    if features is None:
        raise GraphError(f"graph.centre: '{source}' has no features to centre; remove the option")
    if isinstance(features, CentredRows) or graph.feature_mean is not None:
        return graph  # a saved graph that was centred already
    notes = (*graph.notes, "features less the mean of their column")
    if graph.sparse_rows is not None:
        return replace(graph, features=CentredRows.of(graph.sparse_rows, mean), notes=notes)
    check_memory(
        4.0 * features.shape[0] * features.shape[1], f"graph.centre: features of '{source}'", "remove the option"
    )
    if mean is None:
        mean = np.asarray(features.mean(axis=0, dtype=np.float64)).ravel()
    centred = np.empty(features.shape, dtype=np.float32)
    for first in range(0, len(centred), CHUNK_ROWS):
        centred[first : first + CHUNK_ROWS] = np.asarray(features[first : first + CHUNK_ROWS]) - mean
    return replace(graph, features=centred, feature_mean=mean, notes=notes)


def _refuse(given: Mapping[str, Any], keys: tuple[str, ...], source: str) -> None:
    for key in keys:
        if key in given:
            raise GraphError(f"graph.{key} does not apply to '{source}': remove it")


def _candidates(path: Path, base: Path | None) -> list[Path]:
    return [path] if path.is_absolute() else [start / path for start in (base, Path.cwd()) if start is not None]


def _find(text: str, base: Path | None, key: str = "graph.source") -> Path:
    if "\0" in text:
        raise GraphError(f"{key}: got {text!r}, expected a path without a zero byte")
    tried = _candidates(expanded(text), base)
    for candidate in tried:
        if candidate.is_dir():
            return candidate
        if candidate.exists():
            check_regular(candidate)
            return candidate
    places = ", ".join(dict.fromkeys(os.path.abspath(candidate) for candidate in tried))
    known = f"; a source is a path or one of: {', '.join((*PREFIXES, *SUFFIXES))}" if key == "graph.source" else ""
    raise GraphError(f"{key}: '{text}' not found; tried {places}{known}")


def _suffix(path: Path) -> str:
    name = path.name.lower()
    suffix = Path(name.removesuffix(".gz")).suffix
    if suffix not in SUFFIXES or (name.endswith(".gz") and suffix not in (".csv", ".tsv", ".txt", ".mtx")):
        raise GraphError(
            f"graph.source: cannot tell the format of '{path.name}'; known suffixes: {', '.join(SUFFIXES)} "
            "(.csv, .tsv, .txt and .mtx also with .gz), or a prefix: " + ", ".join(PREFIXES)
        )
    return suffix
