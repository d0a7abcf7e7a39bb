"""Edges as tables: CSV and TSV (plain or gzip), Parquet, Matrix Market, and NumPy arrays that may exceed memory."""

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv
from pyarrow import parquet as pq
from scipy.io import mminfo, mmread

from simgnn.errors import GraphError
from simgnn.graph.build import assemble_edges, vertex_count
from simgnn.graph.complete import Found, complete_graph
from simgnn.graph.graph import Graph
from simgnn.graph.store import (
    graph_cache,
    new_folder,
    open_graph,
    release_pages,
    sort_to_disk,
    stored_symmetric,
    write_facts,
)
from simgnn.graph.thread_pool import in_order
from simgnn.npzfile import read_npy as read_array

COMMENTS = (b"#", b"%")
SOURCES = ("source", "src", "from", "u", "head")
TARGETS = ("target", "dst", "destination", "to", "v", "tail")
PARQUET_COLUMNS = (("source", "target"), ("src", "dst"))
BLOCK_BYTES = 1 << 22


def read_edge_list(path: Path, *, vertices: int | None = None, symmetrise: bool = True) -> Graph:
    """Read ``source<sep>target`` lines; the first line shows the separator (comma, tab, semicolon or blank).

    Lines that start with ``#`` or ``%`` are comments. A first line that is not two numbers is a header: its columns
    ``source``/``src`` and ``target``/``dst`` are taken, else the first two; other columns are left out and noted.
    ``vertices``: V, default largest id + 1. Raises :class:`GraphError`, also for a file that is cut off.
    """
    blocks: list[NDArray[Any]] = []
    left: list[str] = []
    try:
        with cast(IO[bytes], gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb") as stream:
            first = _first_line(stream, path)
            if first is not None:
                separator, names, columns = _layout(first, path)
                left = [name for k, name in enumerate(names) if k not in columns]
                stream.seek(0)
                header = not all(names[k].lstrip("-").isdigit() for k in columns)
                if header and any(names[k].lstrip("+-.")[:1].isdigit() for k in columns):
                    raise GraphError(
                        f"{path}: line 1: got '{separator.join(names)}', expected two whole numbers, or a header whose "
                        "names do not begin with a digit"
                    )
                blocks.extend(_blocks(stream, separator, len(names), columns, header))
            elif vertices is None:
                raise GraphError(f"{path}: no edges; state graph.vertices for a graph without any")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise GraphError(
            f"{path}: not an edge list: {error}; expected two whole numbers a line, one separator throughout"
        ) from error
    except (EOFError, zlib.error, gzip.BadGzipFile, OSError) as error:
        raise GraphError(f"{path}: cannot be read ({error}): is it cut off? fetch it again") from error
    return _graph(path, blocks, left, vertices, symmetrise)


def read_parquet(path: Path, *, vertices: int | None = None, symmetrise: bool = True) -> Graph:
    """Read the integer columns ``source`` and ``target`` (or ``src`` and ``dst``), batch by batch. ``vertices``: V;
    default: the file's metadata entry ``vertices``, else the largest id + 1. Other columns are left out and noted.
    Raises :class:`GraphError`."""
    blocks: list[NDArray[Any]] = []
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            pair = next((pair for pair in PARQUET_COLUMNS if set(pair) <= set(schema.names)), None)
            if pair is None:
                found = ", ".join(schema.names) or "none"
                raise GraphError(f"{path}: expected columns source and target, or src and dst; got {found}")
            stated = (schema.metadata or {}).get(b"vertices", b"").decode("utf-8", "replace")
            if vertices is None and stated:
                if not stated.isdigit():
                    raise GraphError(f"{path}: metadata 'vertices' must be a whole number; got {stated!r}")
                vertices = int(stated)
            for name in pair:
                kind = schema.field(name).type
                if not pa.types.is_integer(kind):
                    raise GraphError(f"{path}: column '{name}' must hold integers; got {kind}")
            for batch in file.iter_batches(columns=list(pair)):
                columns = [batch.column(name) for name in pair]
                for name, column in zip(pair, columns, strict=True):
                    if column.null_count:
                        raise GraphError(
                            f"{path}: column '{name}' has {column.null_count} empty values: drop those rows"
                        )
                blocks.append(np.stack([column.to_numpy(zero_copy_only=False) for column in columns]))
    except (pa.ArrowException, OSError) as error:
        raise GraphError(f"{path}: not a readable Parquet file ({error}): is it cut off? write it again") from error
    return _graph(path, blocks, [name for name in schema.names if name not in pair], vertices, symmetrise)


def read_matrix_market(path: Path, *, symmetrise: bool = True) -> Graph:
    """Read a square sparse matrix, such as one of the SuiteSparse collection: an entry in row r and column c is the
    edge r -> c. Values are left out and noted. Raises :class:`GraphError` for dense or rectangular matrices and for
    files that cannot be read."""
    try:
        rows, columns, _, layout, field, _ = mminfo(str(path))
        if layout != "coordinate":
            raise GraphError(f"{path}: expected a sparse matrix ('coordinate'); got '{layout}'")
        if rows != columns:
            raise GraphError(f"{path}: an adjacency matrix is square; got {rows} x {columns}")
        matrix: Any = mmread(str(path), spmatrix=False)
    except (ValueError, TypeError, OSError, EOFError, OverflowError, zlib.error) as error:
        raise GraphError(
            f"{path}: not a readable Matrix Market file ({error}): is it cut off? fetch it again"
        ) from error
    built = assemble_edges(matrix.row, matrix.col, rows, symmetrise, key=str(path))
    notes = [] if field == "pattern" else [f"{field} values of the matrix left out (edges have no weights)"]
    return complete_graph(Found(path.name.removesuffix(".gz").removesuffix(".mtx"), str(path), built, notes=notes))


def _graph(path: Path, blocks: list[NDArray[Any]], left: list[str], vertices: int | None, symmetrise: bool) -> Graph:
    """Build the graph of pairs [2, n]; ``left`` names the columns that were ignored."""
    edges = np.concatenate(blocks, axis=1) if blocks else np.empty((2, 0), np.int64)
    built = assemble_edges(edges[0], edges[1], vertices, symmetrise, key=str(path))
    notes = [f"columns left out: {', '.join(left)} (edges have no weights)"] if left else []
    name = path.name.removesuffix(".gz").rsplit(".", 1)[0]
    return complete_graph(Found(name, str(path), built, notes=notes))


def _blocks(
    stream: IO[bytes], separator: str, width: int, columns: tuple[int, int], header: bool
) -> Iterator[NDArray[Any]]:
    names = [f"c{k}" for k in range(width)]
    wanted = [names[k] for k in columns]
    reader = csv.open_csv(
        pa.PythonFile(_WithoutComments(stream), mode="r"),
        read_options=csv.ReadOptions(column_names=names, skip_rows=int(header), block_size=BLOCK_BYTES),
        parse_options=csv.ParseOptions(delimiter=separator),
        convert_options=csv.ConvertOptions(
            include_columns=wanted, column_types={name: pa.int64() for name in wanted}, null_values=[]
        ),
    )
    for batch in reader:
        pair = [batch.column(k).to_numpy(zero_copy_only=False) for k in range(2)]
        fits = max((int(ids.max()) for ids in pair if len(ids)), default=0) < 2**31
        yield np.stack(pair).astype(np.int32 if fits else np.int64)


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


def _first_line(stream: IO[bytes], path: Path) -> str | None:
    for line in stream:
        if line.strip() and not _comment(line):
            try:
                return line.decode("utf-8").lstrip("\ufeff").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise GraphError(f"{path}: not text ({error}); an edge list is two numbers a line") from error
    return None


def _layout(line: str, path: Path) -> tuple[str, list[str], tuple[int, int]]:
    """Return the separator, the fields of the first line, and which two of them are source and target."""
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


CHUNK_EDGES = 1 << 20
MEMORY_EDGES = 10_000_000  # above, the graph is kept in the cache and opened from there


def read_npy(path: Path, *, vertices: int | None = None, symmetrise: bool = True) -> Graph:
    """Read an array int32 or int64 [E, 2], a row (source, target) an edge; any order, repeats and self loops allowed.
    ``vertices``: V, default largest id + 1. Above ``MEMORY_EDGES`` rows the list is sorted through files into a folder
    in ``$SIMGNN_CACHE``, and the graph is opened memory-mapped. Raises :class:`GraphError`."""
    try:
        edges = read_array(path, mapped=True)
    except ValueError as error:
        raise GraphError(f"{path}: not a readable .npy file ({error}): is it cut off? write it again") from error
    if edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype not in (np.int32, np.int64):
        raise GraphError(
            f"{path}: an edge list must be int32 or int64 of shape [edges, 2], a row (source, target) each; "
            f"got {edges.dtype} of shape {list(edges.shape)}"
        )
    if len(edges) <= MEMORY_EDGES:
        built = assemble_edges(edges[:, 0], edges[:, 1], vertices, symmetrise, key=str(path))
        return complete_graph(Found(path.stem, str(path), built))
    with path.open("rb") as stream:
        content = hashlib.file_digest(stream, "sha256").hexdigest()
    key = hashlib.sha256(f"1 npy {content} {vertices} {symmetrise}".encode()).hexdigest()
    folder = graph_cache() / f"{path.stem}-{key[:16]}"
    if not folder.exists():
        _sort_to_disk(edges, path, folder, vertices, symmetrise)
    return open_graph(folder)


def _sort_to_disk(edges: NDArray[Any], path: Path, folder: Path, vertices: int | None, symmetrise: bool) -> None:
    chunks = -(-len(edges) // CHUNK_EDGES)

    def chunk(number: int) -> NDArray[Any]:
        return edges[number * CHUNK_EDGES : (number + 1) * CHUNK_EDGES]

    def extremes(number: int) -> tuple[int, int]:
        found = int(chunk(number).min()), int(chunk(number).max())
        release_pages(edges)
        return found

    def pairs(number: int) -> NDArray[np.int64]:
        pair = np.ascontiguousarray(chunk(number).T, dtype=np.int64)
        release_pages(edges)
        return pair

    lowest, highest = zip(*in_order(extremes, chunks), strict=True)
    count = vertex_count(min(lowest), max(highest), len(edges), vertices, str(path))
    with new_folder(folder) as making:
        stored, loops = sort_to_disk(making, count, len(edges), symmetrise, pairs, chunks)
        what = "stored, in both directions" if symmetrise else "stored"
        note = f"{len(edges):,} edges listed: {loops:,} self loops dropped, {stored:,} different ones {what}"
        facts: dict[str, Any] = dict.fromkeys(("multilabel", "synthetic_features", "synthetic_labels"), False)
        symmetric = symmetrise or stored_symmetric(making)
        write_facts(making, name=path.stem, classes=0, symmetric=symmetric, notes=[note], **facts)
