"""From ``graph.source`` and its options to a :class:`Graph`."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from simgnn.errors import GraphError
from simgnn.graph.centring import with_centred_features
from simgnn.graph.graph import Graph
from simgnn.spelling import nearest

GENERATOR_OPTIONS = ("vertices", "edges", "classes", "multilabel", "feature_width")
OPTIONS = (*GENERATOR_OPTIONS, "stand_in_features", "centre", "symmetrise", "root")
SUFFIXES = (".npz", ".npy", ".csv", ".tsv", ".txt", ".parquet", ".mtx", ".bin", ".pt")
PREFIXES = ("synthetic:", "ogb:", "dgl:", "pyg:", "stats:")
STAND_IN_SEED = 0  # fixed, so that a stand-in belongs to the graph and not to the experiment's seed

_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


def load_graph(
    source: str, *, base: Path | None = None, options: Mapping[str, Any] = _NO_OPTIONS, seed: int = 0
) -> Graph:
    """Load or generate the graph that an experiment names.

    ``source``: a path, by its suffix ``.npz``, ``.npy`` (edge list [E, 2]), ``.csv``/``.tsv``/``.txt`` (and ``.gz``),
    ``.parquet``, ``.mtx`` (and ``.gz``), ``.bin`` (DGL), ``.pt`` (PyG), a folder of ``save_graph``;
    ``synthetic:communities``, ``synthetic:rmat``, ``ogb:NAME``, ``dgl:PATH`` or ``pyg:PATH``. Relative paths start at
    ``base``, then at the working directory. ``seed`` seeds the generators only.

    ``options``: ``symmetrise`` (default true); ``vertices`` V of an edge list, Parquet file or generator; ``edges``,
    ``feature_width`` for generators; ``classes``, ``multilabel`` for generators, or random labels and 60/20/20 masks
    for a graph without labels; ``stand_in_features``: width of unit normal float32 features for a graph without any
    (``np.random.default_rng(0)``); ``centre``: see :func:`simgnn.graph.centring.with_centred_features`; ``root``:
    folder of OGB data sets. A value of None is as if absent.

    Raises :class:`GraphError`. Stand-ins are marked in ``synthetic_features``, ``synthetic_labels`` and ``notes``.
    """
    given = {key: value for key, value in options.items() if value is not None}
    _check_options(given)
    prefix, _, rest = source.partition(":")
    if f"{prefix}:" == "synthetic:":
        _refuse(given, ("stand_in_features", "centre", "root"), source)
        return _synthetic(rest, given, seed)
    if f"{prefix}:" == "stats:":
        raise GraphError(
            f"graph.source: '{source}' names statistics, which hold no graph; `simgnn simulate` takes it, "
            "training needs a graph"
        )
    return _finish(_read(source, prefix, rest, base, given), given, source)


def check_source(source: str) -> None:
    """Raise :class:`GraphError` for a path that is not there; whether it can be read is told when it is."""
    prefix, _, rest = source.partition(":")
    if prefix not in ("synthetic", "ogb", "stats"):
        _find(rest if prefix in ("dgl", "pyg") and rest else source, None)


def _read(source: str, prefix: str, rest: str, base: Path | None, given: Mapping[str, Any]) -> Graph:
    symmetrise = bool(given.get("symmetrise", True))
    if prefix == "ogb" and rest:
        # Numba: loaded with the reader or generator of this source
        from simgnn.graph.readers.ogb import read_ogb

        _refuse(given, ("vertices", "edges", "feature_width"), source)
        return read_ogb(rest, _roots(given.get("root"), base), symmetrise=symmetrise)
    _refuse(given, ("root",), source)
    forced = {"dgl": ".bin", "pyg": ".pt"}.get(prefix) if rest else None
    path = _find(rest if forced else source, base)
    if path.is_dir():
        # Numba: loaded with the reader or generator of this source
        from simgnn.graph.build import symmetrise_csr
        from simgnn.graph.store import open_graph

        _refuse(given, ("vertices", "edges", "feature_width"), source)
        saved = open_graph(path)
        if symmetrise and not saved.symmetric:
            return replace(saved, csr=symmetrise_csr(saved.csr), symmetric=True, notes=(*saved.notes, "symmetrised"))
        return saved
    suffix = forced or _suffix(path)
    if suffix in (".npy", ".csv", ".tsv", ".txt", ".parquet"):
        _refuse(given, ("edges", "feature_width"), source)
        return _table(suffix, path, given.get("vertices"), symmetrise)
    _refuse(given, ("vertices", "edges", "feature_width"), source)
    return _reader(suffix)(path, symmetrise=symmetrise)


def _reader(suffix: str) -> Callable[..., Graph]:
    if suffix == ".npz":
        # Numba: loaded with the reader or generator of this source
        from simgnn.graph.readers.npz import read_npz

        return read_npz
    if suffix == ".mtx":
        # Numba: loaded with the reader or generator of this source
        from simgnn.graph.readers.matrix_market import read_matrix_market

        return read_matrix_market
    if suffix == ".bin":
        # Numba: loaded with the reader or generator of this source
        from simgnn.graph.readers.dgl_graph import read_dgl

        return read_dgl
    # Numba: loaded with the reader or generator of this source
    from simgnn.graph.readers.pyg import read_pyg

    return read_pyg


def _table(suffix: str, path: Path, vertices: int | None, symmetrise: bool) -> Graph:
    if suffix == ".npy":
        # Numba: loaded with the reader or generator of this source
        from simgnn.graph.readers.npy import read_npy

        return read_npy(path, vertices=vertices, symmetrise=symmetrise)
    if suffix == ".parquet":
        # Numba: loaded with the reader or generator of this source
        from simgnn.graph.readers.parquet import read_parquet

        return read_parquet(path, vertices=vertices, symmetrise=symmetrise)
    # Numba: loaded with the reader or generator of this source
    from simgnn.graph.readers.edge_list import read_edge_list

    return read_edge_list(path, vertices=vertices, symmetrise=symmetrise)


def _synthetic(kind: str, given: Mapping[str, Any], seed: int) -> Graph:
    # Numba: loaded with the reader or generator of this source
    from simgnn.graph.generators.generate import generated, recipe_of

    shape = {key: value for key, value in given.items() if key in GENERATOR_OPTIONS}
    return generated(recipe_of(kind, shape, seed), symmetrise=bool(given.get("symmetrise", True)))


def _finish(graph: Graph, given: Mapping[str, Any], source: str) -> Graph:
    """Add the stand-ins that were asked for, and masks where a graph has labels and no split."""
    # Numba: loaded with the reader or generator of this source
    from simgnn.graph.generators.generate import split_masks

    width = given.get("stand_in_features")
    if width is not None:
        if graph.features is not None:
            raise GraphError(f"graph.stand_in_features: '{source}' has features of its own; take the option away")
        draws = np.random.default_rng(STAND_IN_SEED).standard_normal((graph.vertices, width), dtype=np.float32)
        note = f"features are stand-ins: {width} random normal numbers a vertex"
        graph = replace(graph, features=draws, synthetic_features=True, notes=(*graph.notes, note))
    if given.get("centre"):
        graph = with_centred_features(graph, source)
    if "classes" in given or given.get("multilabel"):
        if graph.labels is not None:
            raise GraphError(
                f"graph.classes, graph.multilabel: '{source}' has labels of its own; take the options away"
            )
        if "classes" not in given:
            raise GraphError(f"graph.multilabel: '{source}' has no labels; state graph.classes for random ones")
        graph = _random_labels(graph, int(given["classes"]), bool(given.get("multilabel", False)))
    if graph.labels is not None and all(
        mask is None for mask in (graph.train_mask, graph.validation_mask, graph.test_mask)
    ):
        masks: dict[str, Any] = dict(split_masks(graph.vertices, STAND_IN_SEED))
        if not graph.multilabel:
            masks = {name: mask & (graph.labels >= 0) for name, mask in masks.items()}
        graph = replace(graph, **masks, notes=(*graph.notes, "no split in the source: seeded 60/20/20"))
    return graph


def _random_labels(graph: Graph, classes: int, multilabel: bool) -> Graph:
    draw = np.random.default_rng(STAND_IN_SEED + 1)
    labels: Any = draw.integers(0, classes, graph.vertices)
    if multilabel:
        labels = draw.random((graph.vertices, classes)) < 2.0 / classes
    note = f"labels are stand-ins: {classes} random classes"
    notes = (*graph.notes, note)
    return replace(graph, labels=labels, classes=classes, multilabel=multilabel, synthetic_labels=True, notes=notes)


def _check_options(given: Mapping[str, Any]) -> None:
    for key, value in given.items():
        if key not in OPTIONS:
            raise GraphError(f"graph.{key}: no such option{nearest(key, OPTIONS, 0.5)}; known: {', '.join(OPTIONS)}")
        if key in ("symmetrise", "multilabel", "centre"):
            fine = isinstance(value, bool)
            wanted = "true or false"
        elif key == "root":
            fine, wanted = isinstance(value, (str, Path)), "a folder"
        else:
            least = 1 if key in ("vertices", "stand_in_features") else 0
            fine = isinstance(value, int) and not isinstance(value, bool) and value >= least
            wanted = f"a whole number of {least} or more"
        if not fine:
            raise GraphError(f"graph.{key} must be {wanted}; got {value!r}")


def _refuse(given: Mapping[str, Any], keys: tuple[str, ...], source: str) -> None:
    for key in keys:
        if key in given:
            raise GraphError(f"graph.{key} does not apply to '{source}': take it away")


def _roots(root: str | Path | None, base: Path | None) -> list[Path]:
    starts = [Path.cwd()] if base is None else [base, Path.cwd()]
    folder = Path(root).expanduser() if root is not None else Path("dataset")
    return [folder] if folder.is_absolute() else [start / folder for start in starts]


def _find(text: str, base: Path | None) -> Path:
    path = Path(text).expanduser()
    tried = (
        [path] if path.is_absolute() else [start / path for start in ([] if base is None else [base]) + [Path.cwd()]]
    )
    for candidate in tried:
        if candidate.exists():
            return candidate
    places = ", ".join(dict.fromkeys(str(candidate.resolve()) for candidate in tried))
    known = ", ".join((*PREFIXES, *SUFFIXES))
    raise GraphError(f"graph.source: '{text}' not found; tried {places}; a source is a path or one of: {known}")


def _suffix(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = suffixes[-1:] == [".gz"]
    last = suffixes[-2:-1] if packed else suffixes[-1:]
    if not last or last[0] not in SUFFIXES or (packed and last[0] not in (".csv", ".tsv", ".txt", ".mtx")):
        raise GraphError(
            f"graph.source: cannot tell the format of '{path.name}'; known suffixes: {', '.join(SUFFIXES)} "
            "(.csv, .tsv, .txt and .mtx also with .gz), or a prefix: " + ", ".join(PREFIXES)
        )
    return last[0]
