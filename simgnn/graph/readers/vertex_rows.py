"""Reads features, labels and splits from tables with a row for each vertex, and lists of ids."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from simgnn.errors import GraphError
from simgnn.graph.readers.text_table import is_whole
from simgnn.graph.readers.vertex_table import (
    ID_NAMES,
    SUFFIXES,
    TEXT_SUFFIXES,
    VertexTable,
    open_table,
    read_array,
    suffix_of,
)
from simgnn.graph.splits import SPLIT_NAMES
from simgnn.graph.vertex_ids import typed_ids
from simgnn.outside import outside_data

LABEL_NAMES = ("label", "labels", "y", "class")
SPLIT_COLUMNS = ("split", "fold", "set")
"""Names of columns where ``graph.label_column`` and ``graph.split_column`` state none."""
NO_FEATURES = ("label", "labels", "class", *SPLIT_COLUMNS)
"""Names of columns that are no features, unless they are stated to be."""
NUMBER = r"^[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|[nN][aA][nN]|[iI]nf(inity)?)$"

Options = Mapping[str, Any]
"""Options of ``[graph]``: paths of files, ``id_column``, ``label_column``, ``split_column``, ``feature_columns``."""


@dataclass(frozen=True)
class Rows:
    """Values of a file, a row each. ``ids``: the vertices that they belong to; None: vertex 0, 1, 2 and so on.
    ``left``: columns that were left out; ``columns``: all of a table, none of an array."""

    path: Path
    ids: pa.Array | None
    values: NDArray[Any]
    class_names: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


def read_features(path: Path, options: Options) -> Rows:
    """Read features: the stated columns, else all but those of ids, labels and splits. Raises :class:`GraphError`."""
    if suffix_of(path, "graph.features") == ".npy":
        return Rows(path, None, read_array(path))
    table = open_table(path, "graph.features")
    ids = table.id_name(options.get("id_column"))
    stated = options.get("feature_columns")
    if stated:
        names = [table.named(name, "graph.feature_columns") for name in stated]
    else:
        taken = {name for name in table.names if name.strip().lower() in NO_FEATURES} | {ids}
        if options.get("labels") == options["features"]:
            taken.add(_label_name(table, ids, options))
        if options.get("splits") == options["features"]:
            taken.add(_split_name(table, ids, options))
        names = [name for name in table.names if name not in taken]
    if not names:
        raise GraphError(f"{path}: no columns of features; got {', '.join(table.names)}")
    left = tuple(name for name in table.names if name not in (ids, *names))
    return Rows(path, table.ids(ids), table.numbers(names), left=left, columns=table.names)


def read_labels(path: Path, options: Options) -> Rows:
    """Read labels: a column of numbers or of words, or a column of 0 and 1 for each class. Raises
    :class:`GraphError`."""
    if suffix_of(path, "graph.labels") == ".npy":
        return Rows(path, None, read_array(path))
    table = open_table(path, "graph.labels")
    ids = table.id_name(options.get("id_column"))
    name = _label_name(table, ids, options)
    if name is None:
        names = [column for column in table.names if column != ids]
        try:
            classes = table.numbers(names)
        except GraphError as error:
            raise _which_column(table, names) from error
        if not np.isin(classes, (0, 1)).all():
            raise _which_column(table, names)
        return Rows(path, table.ids(ids), classes, columns=table.names)
    values, names_of = _classes(table, name)
    return Rows(path, table.ids(ids), values, names_of, columns=table.names)


def _label_name(table: VertexTable, ids: str | None, options: Options) -> str | None:
    """Return the column of labels; None: every column but that of ids is a class of its own, with 0 or 1 a vertex."""
    stated = options.get("label_column")
    if stated is not None:
        return table.named(stated, "graph.label_column")
    others = [name for name in table.names if name != ids]
    known = [name for name in others if name.strip().lower() in LABEL_NAMES]
    if len(known) == 1 or len(others) == 1:
        return (known or others)[0]
    if known or not others or options.get("features") == options.get("labels"):
        raise _which_column(table, others)
    return None


def _which_column(table: VertexTable, names: Sequence[str]) -> GraphError:
    got = ", ".join(names[:20]) or "none"
    return GraphError(f"{table.path}: which column holds the labels? state graph.label_column; got {got}")


def _classes(table: VertexTable, name: str) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Read a column of labels: numbers as they are, words as classes numbered in sorted order (none: -1)."""
    column = table.read([name], None)[0]
    where = f"{table.path}: column '{name}'"
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        if pa.types.is_boolean(kind):
            column = column.cast(pa.int8())
        return np.asarray(column.to_numpy()), ()
    with outside_data(table.path, "table"):
        words = table.words(name)
    empty = pc.equal(words, "")
    numeric = pc.or_(pc.match_substring_regex(words, NUMBER), empty)
    if pc.all(numeric).as_py():
        numbers = pc.if_else(empty, "nan", words)
        with outside_data(table.path, "table of labels"):
            found = numbers.cast(pa.float64()).to_numpy(zero_copy_only=False)
        return found, ()
    if pc.any(pc.and_(numeric, pc.invert(empty))).as_py():
        first, odd = (words[pc.index(numeric, flag).as_py()].as_py() for flag in (True, False))
        raise GraphError(f"{where} holds numbers and words, such as {first!r} and {odd!r}; expected one kind of them")
    known = pc.unique(words.filter(pc.invert(empty)))
    known = known.take(pc.sort_indices(known))
    codes = pc.fill_null(pc.index_in(words, value_set=known), -1).to_numpy(zero_copy_only=False)
    return codes.astype(np.int64), tuple(known.to_pylist())


def _split_name(table: VertexTable, ids: str | None, options: Options) -> str:
    stated = options.get("split_column")
    if stated is not None:
        return table.named(stated, "graph.split_column")
    others = [name for name in table.names if name != ids]
    known = [name for name in others if name.strip().lower() in SPLIT_COLUMNS]
    if len(known) == 1 or len(others) == 1:
        return (known or others)[0]
    got = ", ".join(others[:20]) or "none"
    raise GraphError(f"{table.path}: which column holds train, validation, test? state graph.split_column; got {got}")


def read_split_names(path: Path, options: Options) -> Rows:
    """Read a column that names the part of each row. Raises :class:`GraphError`."""
    if suffix_of(path, "graph.splits") == ".npy":
        raise GraphError(
            f"graph.splits: got '{path.name}', expected a table with a column of train, validation, test, a folder "
            "with a file of ids each, or a table such as { train = 'train.npy', test = 'test.npy' }"
        )
    table = open_table(path, "graph.splits", lambda fields: not any(_is_part(field) for field in fields))
    ids = table.id_name(options.get("id_column"))
    words = table.words(_split_name(table, ids, options))
    return Rows(path, table.ids(ids), np.array(words.to_pylist(), dtype=object), columns=table.names)


def read_split_folder(folder: Path, options: Options) -> dict[str, Rows]:
    """Read the lists of ids in a folder: one file for each part, called ``train``, ``validation`` (``valid``, ``val``)
    and ``test``, with any known suffix."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        stem, _, suffix = path.name.lower().partition(".")
        if stem in SPLIT_NAMES and f".{suffix.removesuffix('.gz')}" in SUFFIXES:
            found.setdefault(SPLIT_NAMES[stem], []).append(path)
    several = [paths for paths in found.values() if len(paths) > 1]
    if several:
        names = ", ".join(path.name for path in several[0])
        raise GraphError(f"graph.splits: {folder} has several files of one part ({names}); keep one of them")
    if "train" not in found:
        raise GraphError(f"graph.splits: {folder} has no file train{SUFFIXES[1]} (or {', '.join(SUFFIXES)}) of ids")
    return {part: read_ids(paths[0], "graph.splits", options) for part, paths in found.items()}


def read_ids(path: Path, key: str, options: Options) -> Rows:
    """Read a file of ids: its column of ids, or its only column. An array of bool is a mask. Raises
    :class:`GraphError`, which names ``key``."""
    if suffix_of(path, key) == ".npy":
        array = read_array(path)
        if array.ndim == 1 and array.dtype == np.bool_:
            return Rows(path, None, np.asarray(array))
        if array.ndim != 1 or array.dtype.kind not in "iu":
            got = f"{array.dtype} of shape {list(array.shape)}"
            raise GraphError(f"{path}: expected ids, integers of one dimension, or a mask of bool; got {got}")
        return Rows(path, typed_ids(pa.array(np.asarray(array)), str(path)), np.empty(0))
    if suffix_of(path, key) in TEXT_SUFFIXES and path.stat().st_size == 0:
        return Rows(path, pa.array([], pa.int64()), np.empty(0))
    stated = options.get("id_column")
    known = {*(name for name in ID_NAMES if name), *([stated] if isinstance(stated, str) else [])}
    table = open_table(path, key, lambda fields: any(field in known for field in fields))
    name = table.id_name(stated if stated in table.names or isinstance(stated, int) else None)
    if name is None and len(table.names) > 1:
        raise GraphError(
            f"{path}: expected one column of ids; got {', '.join(table.names[:20])}: state graph.id_column"
        )
    return Rows(path, table.ids(name or table.names[0]), np.empty(0))


def _is_part(field: str) -> bool:
    """Whether a field of a first line shows that it is no header: the name of a part, or a whole number."""
    return field.lower() in SPLIT_NAMES or is_whole(field)
