"""Ids that users give to vertices, as whole numbers or as text, and the numbers 0..V-1 that simgnn gives them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from simgnn.errors import GraphError

VertexIds = NDArray[np.int64] | NDArray[np.str_]
LONGEST_ID = 256
"""Characters of an id: each vertex takes 4 bytes for each character of the longest one."""
_WHOLE = r"^(0|-?[1-9][0-9]{0,17})$"


@dataclass(frozen=True)
class ListedIds:
    """Ids (of :func:`typed_ids`) in a table, and its file."""

    path: Path
    ids: pa.Array


@dataclass(frozen=True)
class IdChoice:
    """``graph.ids``: whether ids in an edge list are the ``numbers`` 0..V-1 themselves, or ``names`` that are numbered;
    ``auto`` decides by what the files hold. ``listed``: ids in tables of vertices that belong to the edges.
    ``least_vertices``: rows of files that have a row for each vertex, in order."""

    mode: Literal["auto", "numbers", "names"] = "auto"
    listed: tuple[ListedIds, ...] = ()
    least_vertices: int = 0

    @property
    def numbered(self) -> bool:
        """Whether even whole numbers are taken as names."""
        return self.mode == "names" or (self.mode == "auto" and bool(self.listed) and not self.least_vertices)


UNSTATED = IdChoice()


def typed_ids(ids: Any, where: str) -> pa.Array:
    """Return a column of ids (an Arrow array) as int64 if all are whole numbers without leading zeros, else as text.
    Raises :class:`GraphError`, which begins with ``where``, for empty ids, very long ones and other types."""
    column = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
    if isinstance(column, pa.ChunkedArray):  # combine_chunks keeps several chunks of very much text
        column = pa.concat_arrays([chunk.cast(pa.large_string()) for chunk in column.chunks])
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.null_count:
        raise GraphError(f"{where}: {column.null_count} rows have no id: give each row one")
    if pa.types.is_integer(column.type):
        if pa.types.is_uint64(column.type) and len(column) and pc.max(column).as_py() >= 2**63:
            raise GraphError(f"{where}: ids must be below 2**63; got {pc.max(column).as_py()}: write them as text")
        return column.cast(pa.int64())
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise GraphError(f"{where}: ids must be whole numbers or text; got {column.type}: convert them")
    column = column.cast(pa.large_string())
    if len(column) == 0:
        return column.cast(pa.int64())
    lengths = pc.utf8_length(column)
    if pc.min(lengths).as_py() == 0:
        raise GraphError(f"{where}: row {pc.index(lengths, 0).as_py() + 1} has no id: give each row one")
    if pc.max(lengths).as_py() > LONGEST_ID:
        raise GraphError(f"{where}: an id has {pc.max(lengths).as_py():,} characters, expected at most {LONGEST_ID}")
    return column.cast(pa.int64()) if pc.all(pc.match_substring_regex(column, _WHOLE)).as_py() else column


def number_ids(columns: Sequence[pa.Array]) -> tuple[list[NDArray[np.int64]], VertexIds]:
    """Number all different ids of ``columns`` (of :func:`typed_ids`) from 0. Whole numbers are ordered by size; if any
    id is text, all are text, ordered by Unicode code points. Returns the numbers of each column and the ids [V] by
    number."""
    if all(pa.types.is_int64(column.type) for column in columns):
        numbers = [column.to_numpy(zero_copy_only=False) for column in columns]
        known = np.unique(np.concatenate(numbers)) if numbers else np.empty(0, np.int64)
        return [np.searchsorted(known, column) for column in numbers], known
    texts = [column.cast(pa.large_string()) for column in columns]
    names = pc.unique(pa.chunked_array(texts))
    names = names.take(pc.sort_indices(names))
    found = [pc.index_in(text, value_set=names).to_numpy(zero_copy_only=False).astype(np.int64) for text in texts]
    return found, np.array(names.to_pylist(), dtype=np.str_)


def check_shared(
    edges: ListedIds, ends: NDArray[np.int64], listed: Sequence[tuple[ListedIds, NDArray[np.int64]]], vertices: int
) -> None:
    """Raise :class:`GraphError` for a table of ``listed`` without an id that occurs in the edges, or in another table
    that has one. ``ends``: vertex at each end of each edge; the tables come with the vertex of each of their ids."""
    if not ends.size:
        return
    known = np.zeros(vertices, np.bool_)
    known[ends] = True
    waiting = [(table, rows) for table, rows in listed if len(rows)]
    while waiting:
        sharing = next((place for place, (_, rows) in enumerate(waiting) if known[rows].any()), None)
        if sharing is None:
            apart = waiting[0][0]
            names = apart.path.name, edges.path.name
            raise GraphError(
                f"{apart.path}: no id of {names[0]} occurs in {names[1]}: {names[0]} has {apart.ids[0].as_py()!r}, "
                f"{names[1]} has {edges.ids[0].as_py()!r}; write ids alike in both, or state the column of {names[0]} "
                "that holds them (graph.id_column)"
            )
        known[waiting.pop(sharing)[1]] = True


def positions(ids: pa.Array, vertex_ids: VertexIds | None, vertices: int) -> NDArray[np.int64]:
    """Return the vertex of each id (of :func:`typed_ids`), int64 [n]; -1 for ids that no vertex has. ``vertex_ids``
    None: the ids are the numbers 0..V-1 themselves."""
    if pa.types.is_int64(ids.type) and (vertex_ids is None or vertex_ids.dtype.kind == "i"):
        numbers = ids.to_numpy(zero_copy_only=False)
        if vertex_ids is None:
            inside: NDArray[np.int64] = np.where((numbers >= 0) & (numbers < vertices), numbers, -1)
            return inside
        places = np.searchsorted(vertex_ids, numbers).clip(max=len(vertex_ids) - 1)
        return np.where(vertex_ids[places] == numbers, places, -1)
    known = np.arange(vertices) if vertex_ids is None else vertex_ids
    names = pa.array(known.astype(np.str_).tolist(), pa.large_string())
    found = pc.index_in(ids.cast(pa.large_string()), value_set=names)
    known_places: NDArray[np.int64] = pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return known_places


def shown_id(vertex_ids: VertexIds | None, vertex: int) -> str:
    """Format a vertex for a message, by the id that the user gave it."""
    return str(vertex) if vertex_ids is None else repr(vertex_ids[vertex].item())
