"""Tables as text (CSV, TSV and the like, plain or gzip): separator, header, comments, and columns read in blocks."""

import csv as plain_csv
import gzip
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import IO, cast

import pyarrow as pa
from pyarrow import csv

from simgnn.errors import GraphError

COMMENTS = (b"#", b"%")
"""A line that begins with one is a comment, unless it has as many fields as the data before it: names may begin so."""
SEPARATORS = "\t,; "
EMPTY = ["", "nan", "NaN", "NAN", "NA", "null"]
BLOCK_BYTES = 1 << 22
LONGEST_LINE = 1 << 26
"""Bytes of the first line: more than the widest table has, less than what a file without line ends would take."""


def open_text(path: Path) -> IO[bytes]:
    """Open a file for reading; a name that ends in ``.gz`` is unpacked."""
    return cast(IO[bytes], gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")


def packed_position(stream: IO[bytes]) -> int:
    """Return how many bytes of the file have been read, of a packed file those of the packed file."""
    inner = getattr(stream, "fileobj", None)  # of a gzip file
    return int(stream.tell() if inner is None else inner.tell())


@dataclass(frozen=True)
class TextLayout:
    """How a text table is laid out: its separator (None: one column) and the ``fields`` of its first two lines."""

    separator: str | None
    fields: list[str]
    second: list[str]


def layout_of(path: Path, stream: IO[bytes]) -> TextLayout | None:
    """Find the layout from the first two lines that are neither blank nor comments, and rewind the stream. None for a
    file without lines. Raises :class:`GraphError` for a file that is not text."""
    found: TextLayout | None = None
    for line in _lines(stream, path):
        if _is_comment(line, found):
            continue
        try:
            text = line.decode("utf-8").lstrip("\ufeff").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise GraphError(f"{path}: not text ({error}); an edge list is two numbers a line") from error
        if found is not None:
            found = replace(found, second=fields_of(text, found.separator))
            break
        unquoted = re.sub('"[^"]*"', "", text)
        separator = next((mark for mark in SEPARATORS if mark in unquoted), None)
        found = TextLayout(separator, fields_of(text, separator), [])
    stream.seek(0)
    return found


def fields_of(line: str, separator: str | None) -> list[str]:
    """Split a line into its fields, without quotation marks and blanks around them."""
    fields = [line]
    if separator is not None:
        fields = line.split(separator)
        if '"' in line:  # a separator between quotation marks separates nothing
            with suppress(plain_csv.Error):  # a field of very many characters
                fields = next(plain_csv.reader([line], delimiter=separator, skipinitialspace=True), fields)
    return [field.strip().strip('"') for field in fields]


def _is_comment(line: bytes, data: TextLayout | None) -> bool:
    """Whether a line is a comment. ``data``: the layout of the lines before it; None if these are comments, too."""
    if not line.lstrip().startswith(COMMENTS):
        return False
    text = line.decode("utf-8", "replace").rstrip("\r\n")
    return data is None or len(fields_of(text, data.separator)) != len(data.fields)


def text_columns(
    stream: IO[bytes], layout: TextLayout, header: bool, kinds: Mapping[int, pa.DataType], empty: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the columns with the numbers (from 0) and types of ``kinds``, in its order, block by block. ``empty``:
    cells without content, NaN and NA become null; otherwise they are an error, and as text they stay."""
    names = [f"c{k}" for k in range(len(layout.fields))]
    types = {names[k]: kind for k, kind in kinds.items()}
    yield from csv.open_csv(
        pa.PythonFile(_WithoutComments(stream, layout), mode="r"),
        read_options=csv.ReadOptions(column_names=names, skip_rows=int(header), block_size=BLOCK_BYTES),
        # a separator that no line of one column holds
        parse_options=csv.ParseOptions(delimiter=layout.separator or "\x1f"),
        convert_options=csv.ConvertOptions(
            include_columns=list(types), column_types=types, null_values=EMPTY if empty else []
        ),
    )


def is_whole(text: str) -> bool:
    """Whether a field is a whole number, as ids are."""
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit()


def is_number(text: str) -> bool:
    """Whether a field is a number, also NaN, or is empty."""
    try:
        float(text or "nan")
    except ValueError:
        return False
    return True


class _WithoutComments:
    """A stream of whole lines, without those that are comments or blank. pyarrow calls its methods."""

    closed = False

    def __init__(self, stream: IO[bytes], layout: TextLayout) -> None:
        self.stream, self.ready, self.tail, self.done = stream, b"", b"", False
        self.layout, self.begun = layout, False

    def read(self, size: int = -1) -> bytes:
        while not self.ready and not self.done:
            self._refill()
        size = len(self.ready) if size < 0 else size
        part, self.ready = self.ready[:size], self.ready[size:]
        return part

    def close(self) -> None:
        self.closed = True

    def _refill(self) -> None:
        data = self.stream.read(BLOCK_BYTES)
        if not data:
            self.done, text, self.tail = True, self.tail, b""
        else:
            text, newline, self.tail = (self.tail + data).rpartition(b"\n")
            text += newline
        if any(mark in text for mark in COMMENTS) or b"\n\n" in text or b"\n\r\n" in text:
            text = b"".join(line for line in text.splitlines(keepends=True) if line.strip() and self._is_data(line))
        self.begun = self.begun or bool(text)
        self.ready = text

    def _is_data(self, line: bytes) -> bool:
        found = not _is_comment(line, self.layout if self.begun else None)
        self.begun = self.begun or found
        return found


def _lines(stream: IO[bytes], path: Path) -> Iterator[bytes]:
    """Yield the lines that are not blank."""
    for number in count(1):
        line = stream.readline(LONGEST_LINE)
        if len(line) == LONGEST_LINE:
            raise GraphError(f"{path}: line {number} has more than {LONGEST_LINE:,} bytes; expected a table")
        if not line:
            return
        if line.strip():
            yield line
