"""Tables as text (CSV, TSV and the like, plain or gzip): separator, header, comments, and columns read in blocks."""

import gzip
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import pyarrow as pa
from pyarrow import csv

from simgnn.errors import GraphError

COMMENTS = (b"#", b"%")
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
    lines = _first_lines(stream, path)
    stream.seek(0)
    if not lines:
        return None
    separator = next((mark for mark in SEPARATORS if mark in lines[0]), None)
    first, second = ([] if line is None else fields_of(line, separator) for line in (*lines, None)[:2])
    return TextLayout(separator, first, second)


def fields_of(line: str, separator: str | None) -> list[str]:
    """Split a line into its fields, without quotation marks and blanks around them."""
    return [field.strip().strip('"') for field in ([line] if separator is None else line.split(separator))]


def text_columns(
    stream: IO[bytes], layout: TextLayout, header: bool, kinds: Mapping[int, pa.DataType], empty: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the columns with the numbers (from 0) and types of ``kinds``, in its order, block by block. ``empty``:
    cells without content, NaN and NA become null; otherwise they are an error, and as text they stay."""
    names = [f"c{k}" for k in range(len(layout.fields))]
    types = {names[k]: kind for k, kind in kinds.items()}
    yield from csv.open_csv(
        pa.PythonFile(_WithoutComments(stream), mode="r"),
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

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.ready, self.tail, self.done = stream, b"", b"", False

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
            text = b"".join(line for line in text.splitlines(keepends=True) if line.strip() and not _comment(line))
        self.ready = text


def _comment(line: bytes) -> bool:
    return line.lstrip().startswith(COMMENTS)


def _first_lines(stream: IO[bytes], path: Path) -> list[str]:
    found: list[str] = []
    while line := stream.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE:
            raise GraphError(f"{path}: line {len(found) + 1} has more than {LONGEST_LINE:,} bytes; expected a table")
        if line.strip() and not _comment(line):
            try:
                found.append(line.decode("utf-8").lstrip("\ufeff").rstrip("\r\n"))
            except UnicodeDecodeError as error:
                raise GraphError(f"{path}: not text ({error}); an edge list is two numbers a line") from error
            if len(found) == 2:
                break
    return found
