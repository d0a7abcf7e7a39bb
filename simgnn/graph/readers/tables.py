"""Edge lists as tables: CSV and TSV (plain or gzip) and Parquet, with vertices by number or by name."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet as pq

from simgnn.errors import GraphError
from simgnn.graph.build import assemble_edges, too_sparse
from simgnn.graph.complete import Found, complete_graph
from simgnn.graph.graph import Graph
from simgnn.graph.readers.text_table import (
    TextLayout,
    is_number,
    is_whole,
    layout_of,
    open_text,
    packed_position,
    text_columns,
)
from simgnn.graph.vertex_ids import UNSTATED, IdChoice, ListedIds, check_shared, number_ids, typed_ids
from simgnn.graph.weights import TAKEN, WeightChoice
from simgnn.memory import check_memory
from simgnn.outside import outside_data, reason_of
from simgnn.progress import SILENT, Progress

SOURCES = ("source", "src", "from", "u", "head")
TARGETS = ("target", "dst", "destination", "to", "v", "tail")
MOST_DIGITS = 18
"""Digits of a number of vertices, all of which fit into an int64."""


@dataclass(frozen=True)
class EdgeColumns:
    """``graph.source_column`` and ``graph.target_column``: names in a header, or numbers from 1 in a list without."""

    source: str | int | None = None
    target: str | int | None = None


BY_HEADER = EdgeColumns()


@dataclass
class Pieces:
    """Edges as they are read: pieces of ids, numbers [2, n] or, where vertices have names, two columns of text; and
    weights [n] in a weighted list."""

    path: Path
    numbers: list[NDArray[Any]] = field(default_factory=list)
    names: list[tuple[pa.Array, pa.Array]] | None = None
    weights: list[NDArray[np.float64]] | None = None
    held: int = 0

    def add(self, source: pa.Array, target: pa.Array, weights: pa.Array | None = None) -> None:
        """Add edges. Raises :class:`GraphError` when the list no longer fits into memory."""
        if self.weights is not None and weights is not None:
            self.weights.append(weights.to_numpy(zero_copy_only=False).astype(np.float64, copy=False))
            self.held += self.weights[-1].nbytes
        if self.names is not None:
            self.names.append((source, target))
            self.held += source.nbytes + target.nbytes
        else:
            pair = [column.to_numpy(zero_copy_only=False) for column in (source, target)]
            fits = max((int(ids.max()) for ids in pair if len(ids)), default=0) < 2**31
            self.numbers.append(np.stack(pair).astype(np.int32 if fits else np.int64, copy=False))
            self.held += self.numbers[-1].nbytes
        # they are joined at the end
        check_memory(self.held, f"{self.path}: its list of edges", "use an .npy edge list, which is sorted on disk")

    def graph(self, left: list[str], vertices: int | None, symmetrise: bool, ids: IdChoice) -> Graph:
        """Build the graph; ``left`` names the columns that were left out."""
        where, vertex_ids = str(self.path), None
        edges = np.empty((2, 0), np.int64)
        if self.numbers:
            edges = self.numbers[0] if len(self.numbers) == 1 else np.concatenate(self.numbers, axis=1)
        if self.names is not None:
            columns = [pa.chunked_array([pair[k] for pair in self.names], pa.large_string()) for k in range(2)]
            typed = [typed_ids(column, where) for column in columns]
        else:
            typed = [pa.array(row) for row in edges.astype(np.int64)] if self._numbered(edges, vertices, ids) else []
        if typed:
            if vertices is not None:
                raise GraphError(f"graph.vertices does not apply to '{where}', whose vertices have names: remove it")
            numbered, vertex_ids = number_ids([*typed, *(table.ids for table in ids.listed)])
            edges, vertices = np.stack(numbered[:2]), len(vertex_ids)
            tables = list(zip(ids.listed, numbered[2:], strict=True))
            check_shared(ListedIds(self.path, typed[0]), edges, tables, vertices)
            if vertex_ids.dtype.kind == "i" and np.array_equal(vertex_ids, np.arange(vertices)):
                vertex_ids = None  # the ids are the numbers themselves
        weights = None if self.weights is None else np.concatenate([np.empty(0), *self.weights])
        least = ids.least_vertices
        built = assemble_edges(
            edges[0], edges[1], vertices, symmetrise, weights=weights, key=where, least_vertices=least
        )
        notes = [f"columns left out: {', '.join(left)}"] if left else []
        if vertex_ids is not None:
            order = "by size" if vertex_ids.dtype.kind == "i" else "as text"
            notes.append(f"{len(vertex_ids):,} vertices have ids of their own, numbered in the order of these, {order}")
        graph = complete_graph(Found(_stem(self.path), where, built, notes=notes))
        return replace(graph, vertex_ids=vertex_ids)

    def _numbered(self, edges: NDArray[Any], vertices: int | None, ids: IdChoice) -> bool:
        """Whether whole numbers are names: where it is stated, where tables of vertices list ids, or where they are too
        far apart for numbers 0..V-1."""
        if vertices is not None or ids.mode == "numbers" or (ids.mode == "auto" and ids.least_vertices):
            return ids.mode == "names"
        sparse = edges.size > 0 and int(edges.min()) >= 0 and too_sparse(int(edges.max()), edges.shape[1])
        return ids.numbered or sparse


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").rsplit(".", 1)[0]


def read_edge_list(
    path: Path,
    *,
    vertices: int | None = None,
    symmetrise: bool = True,
    weights: WeightChoice = TAKEN,
    columns: EdgeColumns = BY_HEADER,
    ids: IdChoice = UNSTATED,
    progress: Progress = SILENT,
) -> Graph:
    """Read ``source<sep>target`` lines; the first line shows the separator (comma, tab, semicolon or blank).

    Lines that start with ``#`` or ``%`` are comments. A first line that is not two numbers is a header: its columns
    ``source``/``src`` and ``target``/``dst`` are taken, else the first two; ``columns`` states others. The column of
    weights is the one that the header names (:class:`WeightChoice`); in a list of three columns without a header, a
    third one of numbers. Further columns are left out and noted. ``vertices``: V, default largest id + 1. ``ids``: see
    :class:`IdChoice`. Raises :class:`GraphError`, also for a file that is cut off.
    """
    pieces, left = Pieces(path), []
    expected = (
        "expected two whole numbers a line and, with weights, a number; one separator throughout; where vertices have "
        "names, state graph.ids = 'names'"
    )
    with outside_data(path, "file"), open_text(path) as stream:
        layout = layout_of(path, stream)
        if layout is not None:
            header, source, target = _edge_columns(layout, columns, path)
            weight = _weight_column(layout.fields, (source, target), header, weights, path)
            labels = layout.fields if header else [f"column {k + 1}" for k in range(len(layout.fields))]
            left = [name for k, name in enumerate(labels) if k not in (source, target, weight)]
            row = layout.second if header else layout.fields
            named = _have_names([row[k] for k in (source, target)] if len(row) > max(source, target) else [], ids, path)
            kind = pa.large_string() if named else pa.int64()
            pieces.names = [] if named else None
            pieces.weights = None if weight is None else []
            kinds = {source: kind, target: kind} | ({} if weight is None else {weight: pa.float64()})
            places = [list(kinds).index(k) for k in (source, target, weight) if k is not None]
            reading = progress.counting(f"reading {path.name}", path.stat().st_size, share=True, patient=True)
            with _explained(path, expected), reading as counter:
                for batch in text_columns(stream, layout, header, kinds):
                    pieces.add(*(batch.column(place) for place in places))
                    counter.at(packed_position(stream))
        elif vertices is None and not ids.listed and not ids.least_vertices:
            raise GraphError(f"{path}: no edges; state graph.vertices for a graph without any")
    return pieces.graph(left, vertices, symmetrise, ids)


@contextmanager
def _explained(path: Path, expected: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise GraphError(f"{path}: not an edge list: {reason_of(error)}; {expected}") from error


def _have_names(row: list[str], ids: IdChoice, path: Path) -> bool:
    """Whether the ids are names rather than whole numbers, by the first row of data and by the ids of its tables."""
    if ids.mode != "auto":
        return ids.mode == "names"
    if any(not pa.types.is_int64(table.ids.type) for table in ids.listed):
        return True  # such as 007, which as a number were 7
    odd = [field for field in row if not is_whole(field)]
    if odd and is_number(odd[0]):
        raise GraphError(f"{path}: not an edge list: got the id '{odd[0]}', expected whole numbers or names")
    return bool(odd)


def _weight_column(
    names: list[str], columns: tuple[int, int], header: bool, weights: WeightChoice, path: Path
) -> int | None:
    """Return which field of a line is the weight; None: lines have none, or it is left out."""
    others = [k for k in range(len(names)) if k not in columns]
    if header:
        found = weights.among([names[k] for k in others], str(path))
        return None if found is None else next(k for k in others if names[k] == found)
    if weights.used and weights.column is None:
        return others[0] if len(names) == 3 and names[others[0]] and is_number(names[others[0]]) else None
    found = weights.among([str(k + 1) for k in others], f"{path} (which has no header: columns count from 1)")
    return None if found is None else int(found) - 1


def read_parquet(
    path: Path,
    *,
    vertices: int | None = None,
    symmetrise: bool = True,
    weights: WeightChoice = TAKEN,
    columns: EdgeColumns = BY_HEADER,
    ids: IdChoice = UNSTATED,
    progress: Progress = SILENT,
) -> Graph:
    """Read the columns that are called as ``SOURCES`` and ``TARGETS`` (or those that ``columns`` states), integers or
    text, and the column of weights (:class:`WeightChoice`), batch by batch. ``vertices``: V; default: the file's
    metadata entry ``vertices``, else the largest id + 1. ``ids``: see :class:`IdChoice`. Other columns are left out and
    noted. Raises :class:`GraphError`."""
    pieces = Pieces(path)
    read = 0
    with outside_data(path, "Parquet file"), pq.ParquetFile(path) as file, ExitStack() as stack:
        schema = file.schema_arrow
        pair = _parquet_pair(schema.names, columns, path)
        stated = (schema.metadata or {}).get(b"vertices", b"").decode("utf-8", "replace")
        if vertices is None and stated:
            if not is_whole(stated) or not 0 <= len(stated) <= MOST_DIGITS:
                raise GraphError(f"{path}: metadata 'vertices' must be a whole number; got {stated!r:.40}")
            vertices = int(stated)
        texts = [_is_text(schema.field(name).type, name, path) for name in pair]
        if any(texts) and ids.mode == "numbers":
            raise GraphError(f"{path}: graph.ids: got 'numbers', but column '{pair[texts.index(True)]}' holds text")
        pieces.names = [] if any(texts) else None
        others = [name for name in schema.names if name not in pair]
        weight = weights.among(others, str(path))
        pieces.weights = None if weight is None else []
        if weight is not None and not _is_numeric(schema.field(weight).type):
            got = schema.field(weight).type
            raise GraphError(f"{path}: column '{weight}' must hold numbers, the weights of edges; got {got}")
        wanted = [*pair, *([] if weight is None else [weight])]
        reading = progress.counting(f"reading {path.name}", file.metadata.num_rows, patient=True)
        batches, counter = file.iter_batches(columns=list(dict.fromkeys(wanted))), stack.enter_context(reading)
        for batch in batches:
            found = [batch.column(name) for name in wanted]
            for name, column in zip(wanted, found, strict=True):
                if column.null_count:
                    raise GraphError(f"{path}: column '{name}' has {column.null_count} empty values: drop those rows")
            pieces.add(*(column.cast(pa.large_string()) if any(texts) else column for column in found[:2]), *found[2:])
            counter.at(read := read + batch.num_rows)
    return pieces.graph([name for name in others if name != weight], vertices, symmetrise, ids)


def _is_numeric(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _parquet_pair(names: list[str], columns: EdgeColumns, path: Path) -> tuple[str, str]:
    for stated, key in ((columns.source, "graph.source_column"), (columns.target, "graph.target_column")):
        if stated is not None and stated not in names:
            raise GraphError(f"{key}: got {stated!r}, expected a column of {path}: {', '.join(names[:20]) or 'none'}")
    source, target = columns.source or _known(names, SOURCES), columns.target or _known(names, TARGETS)
    if source is None or target is None:
        found = ", ".join(names) or "none"
        raise GraphError(
            f"{path}: expected columns source and target, or src and dst; got {found}: state graph.source_column and "
            "graph.target_column"
        )
    return str(source), str(target)


def _known(names: list[str], known: tuple[str, ...]) -> str | None:
    """Return the column with the first of the ``known`` names, in any case; None: there is none."""
    lowered = [name.lower() for name in names]
    return next((names[lowered.index(name)] for name in known if name in lowered), None)


def _is_text(kind: pa.DataType, name: str, path: Path) -> bool:
    inner = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_string(inner) or pa.types.is_large_string(inner):
        return True
    if not pa.types.is_integer(kind):
        raise GraphError(f"{path}: column '{name}' must hold integers or text; got {kind}")
    return False


def _edge_columns(layout: TextLayout, columns: EdgeColumns, path: Path) -> tuple[bool, int, int]:
    """Return whether the first line is a header, and the fields of source and target."""
    fields, stated = layout.fields, (columns.source, columns.target)
    if len(fields) < 2:
        got = repr(fields[0][:60]) if fields else "nothing"
        raise GraphError(f"{path}: expected two columns (comma, tab, semicolon or blank between); got {got}")
    if any(isinstance(column, int) for column in stated):
        if not all(isinstance(column, int) and 1 <= column <= len(fields) for column in stated):
            raise GraphError(
                f"graph.source_column, graph.target_column: got {stated[0]!r} and {stated[1]!r}, expected two numbers "
                f"from 1 to {len(fields)} for a list without a header ({path}), or two names in its header"
            )
        return False, int(stated[0] or 0) - 1, int(stated[1] or 0) - 1
    found: list[int | None] = []
    for column, names, key in (
        (columns.source, SOURCES, "graph.source_column"),
        (columns.target, TARGETS, "graph.target_column"),
    ):
        if column is not None and column not in fields:
            raise GraphError(f"{key}: got {column!r}, expected a column of {path}: {', '.join(fields[:20])}")
        taken = _known(fields, names) if column is None else str(column)
        found.append(None if taken is None else fields.index(taken))
    if found[0] is not None and found[1] is not None:
        return True, found[0], found[1]
    header = not all(is_whole(field) for field in fields[:2])
    by_number = "for a list without a header, state graph.source_column and graph.target_column by number: 1 and 2"
    line = (layout.separator or "").join(fields)
    if header and any(field.lstrip("+-.")[:1].isdigit() for field in fields[:2]):
        raise GraphError(
            f"{path}: line 1: got '{line}', expected two whole numbers, or a header whose "
            f"names do not begin with a digit; {by_number}"
        )
    if header and not all(is_whole(field) for field in layout.second[:2]):
        raise GraphError(
            f"{path}: line 1: got '{line}', expected two whole numbers, or a header; if it "
            f"is one, state graph.source_column and graph.target_column; {by_number}"
        )
    return header, 0, 1
