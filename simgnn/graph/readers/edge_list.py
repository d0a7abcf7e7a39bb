"""Edge lists: CSV or TSV, plain or gzip, read in blocks."""

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import GraphError
from simgnn.graph.build import assemble_edges
from simgnn.graph.complete import Found, complete_graph
from simgnn.graph.graph import Graph

COMMENTS = (b"#", b"%")
SOURCES = ("source", "src", "from", "u", "head")
TARGETS = ("target", "dst", "destination", "to", "v", "tail")

_BLOCK_BYTES = 1 << 22


def read_edge_list(path: Path, *, vertices: int | None = None, symmetrise: bool = True) -> Graph:
    """Read ``source<sep>target`` lines; the separator (comma, tab, semicolon or blank) is seen on the first line.

    Lines that start with ``#`` or ``%`` are comments. A first line that is not two numbers is a header: its columns
    ``source``/``src`` and ``target``/``dst`` are taken, else the first two; other columns are left out and noted.
    ``vertices``: V, default largest id + 1. Raises :class:`GraphError`, also for a file that is cut off.
    """
    # pyarrow: loaded when a file of lines is read
    import pyarrow as pa

    blocks: list[NDArray[Any]] = []
    try:
        with _open(path) as stream:
            first = _first_line(stream, path)
            if first is None:
                if vertices is None:
                    raise GraphError(f"{path}: no edges; state graph.vertices for a graph without any")
                left: list[str] = []
            else:
                separator, names, columns = _layout(first, path)
                left = [name for k, name in enumerate(names) if k not in columns]
                stream.seek(0)
                header = not _numbers(names, columns)
                if header and any(names[k].lstrip("+-.")[:1].isdigit() for k in columns):
                    raise GraphError(
                        f"{path}: line 1: got '{separator.join(names)}', expected two whole numbers, or a header whose "
                        "names do not begin with a digit"
                    )
                for block in _blocks(stream, separator, len(names), columns, header):
                    blocks.append(block)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise GraphError(
            f"{path}: not an edge list: {error}; expected two whole numbers a line, one separator throughout"
        ) from error
    except (EOFError, zlib.error, gzip.BadGzipFile, OSError) as error:
        raise GraphError(f"{path}: cannot be read ({error}): is it cut off? fetch it again") from error
    edges = np.concatenate(blocks, axis=1) if blocks else np.empty((2, 0), np.int64)
    built = assemble_edges(edges[0], edges[1], vertices, symmetrise, key=str(path))
    notes = [f"columns left out: {', '.join(left)} (edges have no weights)"] if left else []
    name = path.name.removesuffix(".gz").rsplit(".", 1)[0]
    return complete_graph(Found(name, str(path), built, notes=notes))


def _blocks(
    stream: IO[bytes], separator: str, width: int, columns: tuple[int, int], header: bool
) -> Iterator[NDArray[Any]]:
    # pyarrow: loaded when a file of lines is read
    import pyarrow as pa
    from pyarrow import csv

    names = [f"c{k}" for k in range(width)]
    wanted = [names[k] for k in columns]
    reader = csv.open_csv(
        pa.PythonFile(_WithoutComments(stream), mode="r"),
        read_options=csv.ReadOptions(column_names=names, skip_rows=int(header), block_size=_BLOCK_BYTES),
        parse_options=csv.ParseOptions(delimiter=separator),
        convert_options=csv.ConvertOptions(
            include_columns=wanted, column_types={name: pa.int64() for name in wanted}, null_values=[]
        ),
    )
    for batch in reader:
        pair = [batch.column(k).to_numpy(zero_copy_only=False) for k in range(2)]
        fits = max((int(ids.max()) for ids in pair if len(ids)), default=0) < 2**31
        yield np.stack(pair).astype(np.int32 if fits else np.int64)


class _WithoutComments(io.RawIOBase):
    """A stream of whole lines, less those that are comments or blank."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.ready, self.tail, self.done = stream, b"", b"", False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.ready and not self.done:
            self._refill()
        part = self.ready[: len(buffer)]
        buffer[: len(part)] = part
        self.ready = self.ready[len(part) :]
        return len(part)

    def read(self, size: int = -1) -> bytes:
        while not self.ready and not self.done:
            self._refill()
        size = len(self.ready) if size < 0 else size
        part, self.ready = self.ready[:size], self.ready[size:]
        return part

    def _refill(self) -> None:
        data = self.stream.read(_BLOCK_BYTES)
        if not data:
            self.done, text, self.tail = True, self.tail, b""
        else:
            text, newline, self.tail = (self.tail + data).rpartition(b"\n")
            text += newline
        if any(mark in text for mark in COMMENTS) or b"\n\n" in text or b"\n\r\n" in text:
            kept = (line for line in text.splitlines(keepends=True) if line.strip() and not _comment(line))
            text = b"".join(kept)
        self.ready = text


def _open(path: Path) -> IO[bytes]:
    if path.suffix.lower() == ".gz":
        return cast(IO[bytes], gzip.open(path, "rb"))
    return path.open("rb")


def _comment(line: bytes) -> bool:
    return line.lstrip().startswith(COMMENTS)


def _first_line(stream: IO[bytes], path: Path) -> str | None:
    for line in stream:
        if line.strip() and not _comment(line):
            try:
                return line.decode("utf-8").lstrip("\ufeff").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise GraphError(f"{path}: not text ({error}); an edge list is two numbers a line") from error
    return None


def _layout(line: str, path: Path) -> tuple[str, list[str], tuple[int, int]]:
    """Separator, fields of the first line, and which two of them are the source and the target."""
    separator = next((mark for mark in "\t,; " if mark in line), None)
    fields = [] if separator is None else [field.strip().strip('"') for field in line.split(separator)]
    if separator is None or len(fields) < 2:
        raise GraphError(f"{path}: expected two columns (comma, tab, semicolon or blank between); got {line[:60]!r}")
    lowered = [field.lower() for field in fields]
    source = next((lowered.index(name) for name in SOURCES if name in lowered), None)
    target = next((lowered.index(name) for name in TARGETS if name in lowered), None)
    if source is None or target is None:
        return separator, fields, (0, 1)
    return separator, fields, (source, target)


def _numbers(fields: list[str], columns: tuple[int, int]) -> bool:
    return all(fields[k].lstrip("-").isdigit() for k in columns)
