"""Tables with a row for each vertex (CSV, TSV, Parquet, ``.npy``): features, labels, splits, in files of their own."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import parquet as pq

from simgnn.errors import GraphError
from simgnn.graph.readers.text_table import EMPTY, TextLayout, is_number, layout_of, open_text, text_columns
from simgnn.graph.vertex_ids import typed_ids
from simgnn.memory import check_memory
from simgnn.npzfile import read_npy
from simgnn.outside import outside_data

SUFFIXES = (".npy", ".csv", ".tsv", ".txt", ".parquet")
TEXT_SUFFIXES = (".csv", ".tsv", ".txt")
ID_NAMES = ("id", "vertex", "node", "vertex_id", "node_id", "", "__index_level_0__")
"""Names of a column of ids where ``graph.id_column`` states none; the last two are how pandas writes an index."""
SMALLER = "take fewer columns, store float16 in an .npy file, or use a machine with more memory"


def suffix_of(path: Path, key: str) -> str:
    """Return the suffix that tells a table's format, without ``.gz``. Raises :class:`GraphError`; it names ``key``."""
    name = path.name.lower()
    suffix = Path(name.removesuffix(".gz")).suffix
    if suffix not in SUFFIXES or (name.endswith(".gz") and suffix not in TEXT_SUFFIXES):
        raise GraphError(
            f"{key}: cannot tell the format of '{path.name}'; known suffixes: {', '.join(SUFFIXES)} (of text also .gz)"
        )
    return suffix


@dataclass(frozen=True)
class VertexTable:
    """The columns of a table with a row for each vertex. ``names``: of its columns; without a header they are numbers
    from 1. ``read`` returns columns as Arrow arrays, of a given type or (None) of their own; text has text."""

    path: Path
    names: tuple[str, ...]
    read: Callable[[Sequence[str], pa.DataType | None], list[pa.ChunkedArray]]

    def id_name(self, stated: str | int | None) -> str | None:
        """Return the column of ids: the stated one, else one with a known name, else None (rows are in order)."""
        if stated is not None:
            return self.named(stated, "graph.id_column")
        return next((name for name in self.names if name.strip().lower() in ID_NAMES), None)

    def named(self, stated: str | int, key: str) -> str:
        """Return the column of this name, or with this number from 1. Raises :class:`GraphError`; it names ``key``."""
        if isinstance(stated, int) and stated <= len(self.names):
            return self.names[stated - 1]
        if str(stated) not in self.names:
            got = ", ".join(self.names[:20]) or "none"
            raise GraphError(f"{key}: got {stated!r}, expected a column of {self.path}: {got}")
        return str(stated)

    def ids(self, name: str | None) -> pa.Array | None:
        """Read the ids of the rows; None without a column of ids."""
        return None if name is None else typed_ids(self.read([name], None)[0], f"{self.path}: column '{name}'")

    def numbers(self, names: Sequence[str]) -> NDArray[np.float32]:
        """Read columns of numbers, or of lists of equally many numbers, as float32 [n, F]; empty cells are NaN."""
        columns = self.read(names, pa.float32())
        rows = len(columns[0])
        widths = [_width(column, f"{self.path}: column '{name}'") for name, column in zip(names, columns, strict=True)]
        check_memory(4.0 * rows * sum(widths), f"{self.path}: a matrix [{rows}, {sum(widths)}]", SMALLER)
        out, first = np.empty((rows, sum(widths)), np.float32), 0
        for width, column in zip(widths, columns, strict=True):
            row = 0
            for chunk in column.chunks:
                flat = chunk.flatten() if _is_list(chunk.type) else chunk
                values = flat.to_numpy(zero_copy_only=False).reshape(len(chunk), width)
                out[row : row + len(chunk), first : first + width] = values
                row += len(chunk)
            first += width
        return out

    def words(self, name: str) -> pa.Array:
        """Read a column as text; empty cells are empty text."""
        column = self.read([name], None)[0]
        if not isinstance(column.type, pa.ListType) and pa.types.is_floating(column.type):
            column = pc.if_else(pc.is_nan(column), None, column)
        return pc.fill_null(
            pa.concat_arrays([_text(chunk) for chunk in column.chunks or [pa.array([], pa.string())]]), ""
        )


def open_table(path: Path, key: str, is_header: Callable[[list[str]], bool] | None = None) -> VertexTable:
    """Open a text or Parquet table. ``is_header`` judges the fields of a text's first line; by default a line is a
    header if any of its fields is not a number. Raises :class:`GraphError`, which names ``key`` or the file."""
    if suffix_of(path, key) == ".parquet":
        return _parquet_table(path)
    with outside_data(path, "table"), open_text(path) as stream:
        layout = layout_of(path, stream)
    if layout is None:
        raise GraphError(f"{path}: is empty; expected a row for each vertex")
    header = (is_header or _has_words)(layout.fields)
    names = tuple(layout.fields) if header else tuple(str(k + 1) for k in range(len(layout.fields)))
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise GraphError(
            f"{path}: several columns are called {', '.join(map(repr, twice))}; give each a name of its own"
        )

    def read(wanted: Sequence[str], kind: pa.DataType | None) -> list[pa.ChunkedArray]:
        columns = [names.index(name) for name in wanted]
        if kind is None:
            return _text_columns(path, layout, header, columns, pa.large_string())
        try:
            return _text_columns(path, layout, header, columns, kind)
        except GraphError as error:
            if isinstance(error.__cause__, pa.ArrowInvalid):
                _check_cells(path, layout, header, dict(zip(columns, wanted, strict=True)), kind, names)
            raise

    return VertexTable(path, names, read)


def read_array(path: Path) -> NDArray[Any]:
    """Read an ``.npy`` array memory-mapped. Raises :class:`GraphError`."""
    with outside_data(path, ".npy file"):
        return read_npy(path, mapped=True)


def _has_words(fields: list[str]) -> bool:
    return not all(is_number(field) for field in fields)


def _text_columns(
    path: Path, layout: TextLayout, header: bool, columns: Sequence[int], kind: pa.DataType
) -> list[pa.ChunkedArray]:
    batches, held = [], 0
    numbers = not pa.types.is_large_string(kind)
    with outside_data(path, "table", remedy="correct the table"), open_text(path) as stream:
        for batch in text_columns(stream, layout, header, dict.fromkeys(columns, kind), empty=numbers):
            held += batch.nbytes
            check_memory(held, f"{path}: reading it", SMALLER)
            batches.append(batch)
    # pyarrow returns each column once, in the order asked for
    return [pa.chunked_array([batch.column(k) for batch in batches], kind) for k in range(len(columns))]


def _check_cells(
    path: Path, layout: TextLayout, header: bool, columns: Mapping[int, str], kind: pa.DataType, names: Sequence[str]
) -> None:
    """Raise :class:`GraphError` for the first cell of ``columns`` (name by place) that is no number. ``names``: of all
    columns of the table."""
    before = 0
    with outside_data(path, "table", remedy="correct the table"), open_text(path) as stream:
        for batch in text_columns(stream, layout, header, dict.fromkeys(columns, pa.large_string())):
            found = [
                (_first_odd(cells, kind), name, cells) for name, cells in zip(columns.values(), batch, strict=True)
            ]
            odd = [(row, name, cells) for row, name, cells in found if row is not None]
            if odd:
                row, name, cells = min(odd, key=lambda one: one[0])
                got = f"column '{name}', row {before + row + 1}: got {cells[row].as_py()!r:.60}"
                raise GraphError(
                    f"{path}: {got}, expected a number: correct it, or name the columns to take "
                    f"(graph.feature_columns){_perhaps_ids(names, name)}"
                )
            before += batch.num_rows


def _first_odd(cells: pa.Array, kind: pa.DataType) -> int | None:
    """Return the first row whose text is neither empty nor a number; None if there is none."""
    trimmed = pc.utf8_trim_whitespace(cells)
    filled = pc.if_else(pc.is_in(trimmed, value_set=pa.array(EMPTY, pa.large_string())), None, trimmed)

    def fails(rows: int) -> bool:
        try:
            filled[:rows].cast(kind)
        except pa.ArrowInvalid:
            return True
        return False

    return bisect_left(range(1, len(filled) + 1), True, key=fails) if fails(len(filled)) else None


def _perhaps_ids(names: Sequence[str], name: str) -> str:
    """Say how to state that a column holds ids, where no column of the table is known to."""
    if any(other.strip().lower() in ID_NAMES for other in names):
        return ""
    return f'; if it holds the ids of vertices, state graph.id_column = "{name}"'


def _parquet_table(path: Path) -> VertexTable:
    with outside_data(path, "Parquet file"), pq.ParquetFile(path) as file:
        names = tuple(file.schema_arrow.names)
        rows = file.metadata.num_rows
    if len(set(names)) < len(names):
        raise GraphError(f"{path}: several columns have the same name; give each a name of its own")

    def read(wanted: Sequence[str], kind: pa.DataType | None) -> list[pa.ChunkedArray]:
        check_memory(8.0 * rows * len(wanted), f"{path}: {rows:,} rows of {len(wanted)} columns", SMALLER)
        with outside_data(path, "Parquet file"), pq.ParquetFile(path) as file:
            table = _checked_batches(path, file, wanted)
        columns = [table.column(name) for name in wanted]
        if kind is None:
            return columns
        return [_cast(column, kind, path, name, names) for name, column in zip(wanted, columns, strict=True)]

    return VertexTable(path, names, read)


def _checked_batches(path: Path, file: pq.ParquetFile, wanted: Sequence[str]) -> pa.Table:
    def batches() -> Iterator[pa.RecordBatch]:
        held = 0
        for batch in file.iter_batches(columns=list(wanted)):
            held += batch.nbytes
            check_memory(held, f"{path}: reading it", SMALLER)
            yield batch

    schema = pa.schema([file.schema_arrow.field(name) for name in wanted])
    return pa.Table.from_batches([batch.select(list(wanted)) for batch in batches()], schema)


def _cast(column: pa.ChunkedArray, kind: pa.DataType, path: Path, name: str, names: Sequence[str]) -> pa.ChunkedArray:
    """Convert a column of numbers, or of lists of numbers, to ``kind``."""
    inner = column.type.value_type if _is_list(column.type) else column.type
    if not (pa.types.is_integer(inner) or pa.types.is_floating(inner) or pa.types.is_boolean(inner)):
        raise GraphError(
            f"{path}: column '{name}' must hold numbers, or lists of numbers; got {column.type}: name the columns to "
            f"take in graph.feature_columns{_perhaps_ids(names, name)}"
        )
    with outside_data(path, "Parquet file"):
        if pa.types.is_boolean(inner) and not _is_list(column.type):
            return column.cast(pa.uint8()).cast(kind)
        return column.cast(pa.list_(kind) if _is_list(column.type) else kind, safe=False)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_large_list(kind))


def _width(column: pa.ChunkedArray, where: str) -> int:
    if not _is_list(column.type):
        return 1
    lengths = pc.list_value_length(column)
    least, most = (function(lengths).as_py() for function in (pc.min, pc.max))
    if column.null_count or least != most or not least:
        raise GraphError(f"{where}: expected lists of equally many numbers; got {least} to {most}")
    return int(least)


def _text(chunk: Any) -> pa.Array:
    if pa.types.is_dictionary(chunk.type):
        chunk = chunk.dictionary_decode()
    return chunk.cast(pa.large_string())
