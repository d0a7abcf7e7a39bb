"""Edits of Parquet files that keep their format: columns, types, cells and metadata."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from numpy.random import Generator
from pyarrow import parquet as pq

from tools.mutate_inputs.draws import KEYS, WORDS, NoRoomError, one_of, shown

TYPES = (
    pa.int8(), pa.int32(), pa.int64(), pa.uint64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.bool_(),
    pa.timestamp("s"), pa.decimal128(38, 3), pa.list_(pa.int64()), pa.dictionary(pa.int32(), pa.string()), pa.null(),
)  # fmt: skip
CELLS = (None, -1, 0, 1, 2**31 - 1, 2**31, 2**63 - 1, -(2**63), float("nan"), float("inf"), 1e300, "text", "", "a\0b")


def edit_columns(path: Path, rng: Generator) -> str:
    """Edit a column, some cells, the rows or the metadata of a Parquet file; return what was done."""
    if path.suffix != ".parquet":
        raise NoRoomError
    try:
        with pq.ParquetFile(path) as file:
            table = file.read()
        changed, told = one_of(rng, EDITS)(table, rng)
        pq.write_table(changed, path, row_group_size=int(one_of(rng, (1, 1024, 2**20))))
    except (pa.ArrowException, ValueError, TypeError, KeyError, OSError, OverflowError) as error:
        raise NoRoomError from error  # an earlier edit broke the file, or the drawn one does not suit the column
    return told


def _column(table: pa.Table, rng: Generator) -> tuple[int, str]:
    if not table.num_columns:
        raise NoRoomError
    at = int(rng.integers(table.num_columns))
    return at, f"column {shown(table.column_names[at])}"


def _cell(table: pa.Table, rng: Generator) -> tuple[pa.Table, str]:
    at, name = _column(table, rng)
    values = table.column(at).to_pylist()
    row, value = int(rng.integers(len(values))) if values else 0, one_of(rng, CELLS)
    if not values:
        raise NoRoomError
    values[row] = value
    kept = table.schema.field(at).type
    try:
        column = pa.array(values, kept)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        column = pa.array([value] * len(values))
    return table.set_column(at, table.column_names[at], column), f"{name}: row {row} became {shown(value)}"


def _type(table: pa.Table, rng: Generator) -> tuple[pa.Table, str]:
    at, name = _column(table, rng)
    kind = one_of(rng, TYPES)
    try:
        column = table.column(at).cast(kind, safe=False)
    except (pa.ArrowException, ValueError):
        column = pa.nulls(table.num_rows, kind)
    return table.set_column(at, table.column_names[at], column), f"{name} became {kind}"


def _drop(table: pa.Table, rng: Generator) -> tuple[pa.Table, str]:
    at, name = _column(table, rng)
    return table.remove_column(at), f"{name} removed"


def _rename(table: pa.Table, rng: Generator) -> tuple[pa.Table, str]:
    at, name = _column(table, rng)
    new = one_of(rng, (*KEYS, table.column_names[at] + "s", table.column_names[0]))
    names = [new if k == at else old for k, old in enumerate(table.column_names)]
    return table.rename_columns(names), f"{name} renamed to {shown(new)}"


def _add(table: pa.Table, rng: Generator) -> tuple[pa.Table, str]:
    new = one_of(rng, (*KEYS, "id", "label", "weight", "split", *table.column_names))
    column = pa.array([one_of(rng, ("text", "1", "nan"))] * table.num_rows)
    return table.append_column(new, column), f"added column {shown(new)}"


def _rows(table: pa.Table, rng: Generator) -> tuple[pa.Table, str]:
    what = one_of(rng, ("none", "half", "twice", "reversed", "one more"))
    count = table.num_rows
    taken = {
        "none": table.slice(0, 0),
        "half": table.slice(0, count // 2),
        "twice": pa.concat_tables([table, table]),
        "reversed": table.take(list(range(count))[::-1]),
        "one more": pa.concat_tables([table, table.slice(0, 1)]),
    }
    return taken[what], f"rows: {what}"


def _metadata(table: pa.Table, rng: Generator) -> tuple[pa.Table, str]:
    held = dict(table.schema.metadata or {})
    key = one_of(rng, (*held, b"vertices", b"pandas", b"ARROW:schema"))
    odd = (b"9" * 5000, b"-1", b"\xff", b"[" * 9999, b"1e400", b"null")
    value = one_of(rng, (*(word.encode() for word in WORDS), *odd))
    return table.replace_schema_metadata({**held, key: value}), f"metadata {shown(key)} became {shown(value)}"


def _forget(table: pa.Table, rng: Generator) -> tuple[pa.Table, str]:
    return table.replace_schema_metadata({}), "metadata removed"


Edit = Callable[[pa.Table, Generator], tuple[pa.Table, str]]
EDITS: tuple[Edit, ...] = (_cell, _cell, _cell, _cell, _type, _type, _drop, _rename, _add, _rows, _metadata, _forget)
