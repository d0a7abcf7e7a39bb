"""Edges as tables: CSV and TSV (plain or gzip), Parquet, Matrix Market, and NumPy arrays that may exceed memory."""

import gzip
import hashlib
import zlib
from dataclasses import dataclass, field
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
from simgnn.graph.weights import TAKEN, WeightChoice
from simgnn.npzfile import read_npy as read_array

COMMENTS = (b"#", b"%")
SOURCES = ("source", "src", "from", "u", "head")
TARGETS = ("target", "dst", "destination", "to", "v", "tail")
PARQUET_COLUMNS = (("source", "target"), ("src", "dst"))
BLOCK_BYTES = 1 << 22


@dataclass
class Pieces:
    """Edges as they are read: ids [2, n] and, in a weighted list, weights [n] of each piece."""

    ids: list[NDArray[Any]] = field(default_factory=list)
    weights: list[NDArray[np.float64]] | None = None

    def graph(self, path: Path, left: list[str], vertices: int | None, symmetrise: bool) -> Graph:
        """Build the graph; ``left`` names the columns that were left out."""
        edges = np.concatenate(self.ids, axis=1) if self.ids else np.empty((2, 0), np.int64)
        weights = None if self.weights is None else np.concatenate([np.empty(0), *self.weights])
        built = assemble_edges(edges[0], edges[1], vertices, symmetrise, weights=weights, key=str(path))
        notes = [f"columns left out: {', '.join(left)}"] if left else []
        name = path.name.removesuffix(".gz").rsplit(".", 1)[0]
        return complete_graph(Found(name, str(path), built, notes=notes))


def read_edge_list(
    path: Path, *, vertices: int | None = None, symmetrise: bool = True, weights: WeightChoice = TAKEN
) -> Graph:
    """Read ``source<sep>target`` lines; the first line shows the separator (comma, tab, semicolon or blank).

    Lines that start with ``#`` or ``%`` are comments. A first line that is not two numbers is a header: its columns
    ``source``/``src`` and ``target``/``dst`` are taken, else the first two, and the column of weights that it names
    (:class:`WeightChoice`). In a list of three columns without a header, a third one of numbers is the weights. Other
    columns are left out and noted. ``vertices``: V, default largest id + 1. Raises :class:`GraphError`, also for a file
    that is cut off.
    """
    pieces = Pieces()
    left: list[str] = []
    try:
        with cast(IO[bytes], gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb") as stream:
            first = _first_line(stream, path)
            if first is not None:
                separator, names, columns = _layout(first, path)
                stream.seek(0)
                header = not all(names[k].lstrip("-").isdigit() for k in columns)
                if header and any(names[k].lstrip("+-.")[:1].isdigit() for k in columns):
                    raise GraphError(
                        f"{path}: line 1: got '{separator.join(names)}', expected two whole numbers, or a header whose "
                        "names do not begin with a digit"
                    )
                labels = names if header else [f"column {k + 1}" for k in range(len(names))]
                weight = _weight_column(names, columns, header, weights, path)
                left = [name for k, name in enumerate(labels) if k not in (*columns, weight)]
                pieces = _pieces(stream, separator, len(names), columns, weight, header)
            elif vertices is None:
                raise GraphError(f"{path}: no edges; state graph.vertices for a graph without any")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise GraphError(
            f"{path}: not an edge list: {error}; expected two whole numbers a line and, with weights, a number; one "
            "separator throughout"
        ) from error
    except (EOFError, zlib.error, gzip.BadGzipFile, OSError) as error:
        raise GraphError(f"{path}: cannot be read ({error}): is it cut off? fetch it again") from error
    return pieces.graph(path, left, vertices, symmetrise)


def read_parquet(
    path: Path, *, vertices: int | None = None, symmetrise: bool = True, weights: WeightChoice = TAKEN
) -> Graph:
    """Read the integer columns ``source`` and ``target`` (or ``src`` and ``dst``) and the column of weights, see
    :class:`WeightChoice`, batch by batch. ``vertices``: V; default: the file's metadata entry ``vertices``, else the
    largest id + 1. Other columns are left out and noted. Raises :class:`GraphError`."""
    pieces = Pieces()
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
            others = [name for name in schema.names if name not in pair]
            weight = weights.among(others, str(path))
            if weight is not None:
                pieces.weights = []
                kind = schema.field(weight).type
                if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
                    raise GraphError(f"{path}: column '{weight}' must hold numbers, the weights of edges; got {kind}")
            wanted = [*pair, *([] if weight is None else [weight])]
            for batch in file.iter_batches(columns=wanted):
                columns = [batch.column(name) for name in wanted]
                for name, column in zip(wanted, columns, strict=True):
                    if column.null_count:
                        raise GraphError(
                            f"{path}: column '{name}' has {column.null_count} empty values: drop those rows"
                        )
                arrays = [column.to_numpy(zero_copy_only=False) for column in columns]
                pieces.ids.append(np.stack(arrays[:2]))
                if pieces.weights is not None:
                    pieces.weights.append(arrays[2].astype(np.float64))
    except (pa.ArrowException, OSError) as error:
        raise GraphError(f"{path}: not a readable Parquet file ({error}): is it cut off? write it again") from error
    return pieces.graph(path, [name for name in others if name != weight], vertices, symmetrise)


def read_matrix_market(path: Path, *, symmetrise: bool = True, weights: WeightChoice = TAKEN) -> Graph:
    """Read a square sparse matrix, such as one of the SuiteSparse collection: an entry in row r and column c is the
    edge r -> c, its value the weight. Raises :class:`GraphError` for dense or rectangular matrices and for files that
    cannot be read."""
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
    values = matrix.data if weights.used and field != "pattern" else None
    built = assemble_edges(matrix.row, matrix.col, rows, symmetrise, weights=values, key=str(path))
    return complete_graph(Found(path.name.removesuffix(".gz").removesuffix(".mtx"), str(path), built))


def _weight_column(
    names: list[str], columns: tuple[int, int], header: bool, weights: WeightChoice, path: Path
) -> int | None:
    """Return which field of a line is the weight; None: lines have none, or it is left out."""
    others = [k for k in range(len(names)) if k not in columns]
    if header:
        found = weights.among([names[k] for k in others], str(path))
        return None if found is None else next(k for k in others if names[k] == found)
    if weights.used and weights.column is None:
        return 2 if len(names) == 3 and _is_number(names[2]) else None
    found = weights.among([str(k + 1) for k in others], f"{path} (which has no header: columns count from 1)")
    return None if found is None else int(found) - 1


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _pieces(
    stream: IO[bytes], separator: str, width: int, columns: tuple[int, int], weight: int | None, header: bool
) -> Pieces:
    names = [f"c{k}" for k in range(width)]
    kinds: dict[str, Any] = {names[k]: pa.int64() for k in columns}
    if weight is not None:
        kinds[names[weight]] = pa.float64()
    reader = csv.open_csv(
        pa.PythonFile(_WithoutComments(stream), mode="r"),
        read_options=csv.ReadOptions(column_names=names, skip_rows=int(header), block_size=BLOCK_BYTES),
        parse_options=csv.ParseOptions(delimiter=separator),
        convert_options=csv.ConvertOptions(include_columns=list(kinds), column_types=kinds, null_values=[]),
    )
    found = Pieces(weights=None if weight is None else [])
    for batch in reader:
        pair = [batch.column(k).to_numpy(zero_copy_only=False) for k in range(2)]
        fits = max((int(ids.max()) for ids in pair if len(ids)), default=0) < 2**31
        found.ids.append(np.stack(pair).astype(np.int32 if fits else np.int64))
        if found.weights is not None:
            found.weights.append(batch.column(2).to_numpy(zero_copy_only=False))
    return found


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
LARGEST_EXACT = 2**53  # above, not every whole number is a float64
MEMORY_EDGES = 10_000_000  # above, the graph is kept in the cache and opened from there


def read_npy(
    path: Path, *, vertices: int | None = None, symmetrise: bool = True, weights: WeightChoice = TAKEN
) -> Graph:
    """Read an array int32 or int64 [E, 2], a row (source, target) an edge; any order, repeats and self loops allowed.
    An array [E, 3] of integers or floats has weights in its third column, and is always sorted in memory. ``vertices``:
    V, default largest id + 1. Above ``MEMORY_EDGES`` rows a list without weights is sorted through files into a folder
    in ``$SIMGNN_CACHE``, and the graph is opened memory-mapped. Raises :class:`GraphError`."""
    try:
        edges = read_array(path, mapped=True)
    except ValueError as error:
        raise GraphError(f"{path}: not a readable .npy file ({error}): is it cut off? write it again") from error
    if edges.ndim == 2 and edges.shape[1] == 3 and edges.dtype.kind in "if":
        return _weighted_npy(edges, path, vertices, symmetrise, weights)
    if edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype not in (np.int32, np.int64):
        raise GraphError(
            f"{path}: an edge list must be int32 or int64 of shape [edges, 2], a row (source, target) each, or have "
            f"weights as a third column; got {edges.dtype} of shape {list(edges.shape)}"
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


def _weighted_npy(
    edges: NDArray[Any], path: Path, vertices: int | None, symmetrise: bool, weights: WeightChoice
) -> Graph:
    with np.errstate(invalid="ignore"):  # what is no whole number is found below
        ids = np.asarray(edges[:, :2]).astype(np.int64)
    whole = ids == edges[:, :2]
    if not whole.all() or (len(ids) and np.abs(ids).max() > LARGEST_EXACT):
        wrong = float(edges[:, :2][~whole][0]) if not whole.all() else int(np.abs(ids).max())
        raise GraphError(
            f"{path}: source and target must be whole numbers up to 2**53; got {wrong!r}: the columns of an array "
            "[edges, 3] are source, target, weight"
        )
    values = edges[:, 2] if weights.used else None
    built = assemble_edges(ids[:, 0], ids[:, 1], vertices, symmetrise, weights=values, key=str(path))
    return complete_graph(Found(path.stem, str(path), built))


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
