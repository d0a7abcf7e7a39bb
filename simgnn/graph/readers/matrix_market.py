"""Sparse matrices in the Matrix Market format, plain or gzip, as adjacency matrices."""

from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simgnn.errors import GraphError
from simgnn.graph.build import assemble_edges, too_sparse
from simgnn.graph.complete import Found, complete_graph
from simgnn.graph.graph import Graph
from simgnn.graph.readers.text_table import open_text, packed_position
from simgnn.graph.weights import TAKEN, WITHOUT, WeightChoice
from simgnn.memory import check_memory
from simgnn.outside import outside_data
from simgnn.progress import SILENT, Progress

ENTRY_BYTES = 4
"""Bytes of the shortest line of an entry, two digits with a blank between."""
GZIP_RATIO = 1100
"""Most times its packed size that a gzip file has when it is unpacked."""
READ_BYTES = 96
"""Memory an entry takes while it is read: row, column and value, in pieces, joined, and mirrored."""
LONGEST_LINE = 1 << 16
CHUNK_ENTRIES = 1 << 20
VALUES = {"pattern": 0, "real": 1, "double": 1, "integer": 1, "complex": 2}
"""Numbers after row and column on a line, by the field that the header names."""
SYMMETRIES = {"general": 0, "symmetric": 1, "hermitian": 1, "skew-symmetric": -1}
"""What an entry's mirror image is multiplied with, by the symmetry that the header names; 0: there is none."""


@dataclass(frozen=True)
class Header:
    """What a Matrix Market file declares: a matrix [rows, columns], and how many lines of which kind follow."""

    field: str
    symmetry: str
    rows: int
    columns: int
    entries: int


def read_matrix_market(
    path: Path,
    *,
    vertices: int | None = None,
    symmetrise: bool = True,
    weights: WeightChoice = TAKEN,
    progress: Progress = SILENT,
) -> Graph:
    """Read a square sparse matrix, such as one of the SuiteSparse collection: an entry in row r and column c is the
    edge r -> c, its value the weight. ``vertices``: its number of rows; needs stating only where most rows are empty.
    Raises :class:`GraphError` for dense or rectangular matrices, for files that cannot be read, and for headers that
    declare more than the file can hold, before memory is taken. SciPy's reader is not used: it crashes on damaged
    files."""
    with outside_data(path, "Matrix Market file"), open_text(path) as stream:
        header = _header(stream, path)
        _check_size(header, path, vertices)
        with progress.counting(f"reading {path.name}", path.stat().st_size, share=True, patient=True) as counter:
            pieces = []
            for piece in _entries(stream, header):
                pieces.append(piece)
                counter.at(packed_position(stream))
        table = np.concatenate([np.empty((0, 3)), *pieces])
        if len(table) != header.entries:
            raise GraphError(
                f"{path}: not a readable Matrix Market file: declares {header.entries:,} entries, holds "
                f"{len(table):,}: is it cut off? fetch it again"
            )
        ids = table[:, :2].astype(np.int64) - 1
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < header.rows:
            raise GraphError(
                f"{path}: not a readable Matrix Market file: rows and columns must lie in 1..{header.rows}; got "
                f"{int(ids.min()) + 1}..{int(ids.max()) + 1}"
            )
        source, target, values = _mirrored(ids, table[:, 2], SYMMETRIES[header.symmetry])
        used = values if weights.used and header.field != "pattern" else None
        if used is not None and header.field == "complex":
            raise GraphError(f"{path}: weights must be real numbers; got complex128: correct them, {WITHOUT}")
        built = assemble_edges(source, target, header.rows, symmetrise, weights=used, key=str(path))
    return complete_graph(Found(path.name.removesuffix(".gz").removesuffix(".mtx"), str(path), built))


def _header(stream: IO[bytes], path: Path) -> Header:
    """Read the first line, the comments, and the line of sizes."""
    words = stream.readline(LONGEST_LINE).decode("utf-8", "replace").lower().split()
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
        raise GraphError(f"{path}: not a readable Matrix Market file: expected '%%MatrixMarket matrix ...' in line 1")
    layout, field, symmetry = words[2:]
    if layout != "coordinate":
        raise GraphError(f"{path}: expected a sparse matrix ('coordinate'); got '{layout:.20}'")
    if field not in VALUES or symmetry not in SYMMETRIES:
        raise GraphError(f"{path}: not a readable Matrix Market file: got '{field:.20} {symmetry:.20}' in line 1")
    while line := stream.readline(LONGEST_LINE):
        if line.strip() and not line.startswith(b"%"):
            sizes = line.split()
            if len(sizes) != 3 or not all(size.isdigit() and len(size) <= 18 for size in sizes):
                got = line[:60].decode("utf-8", "replace").strip()
                raise GraphError(
                    f"{path}: not a readable Matrix Market file: expected rows, columns, entries; got {got!r}"
                )
            return Header(field, symmetry, *map(int, sizes))
    raise GraphError(f"{path}: not a readable Matrix Market file: no line of sizes; is it cut off?")


def _check_size(header: Header, path: Path, vertices: int | None) -> None:
    """Raise :class:`GraphError` unless the matrix is square and what is declared can be true."""
    rows, columns, entries = header.rows, header.columns, header.entries
    if rows != columns:
        raise GraphError(f"{path}: an adjacency matrix is square; got {rows} x {columns}")
    if vertices is not None and vertices != rows:
        raise GraphError(f"graph.vertices: got {vertices}, expected {rows}, the rows of {path}: remove the key")
    held = path.stat().st_size
    if entries * ENTRY_BYTES > held * (GZIP_RATIO if path.suffix.lower() == ".gz" else 1) + ENTRY_BYTES:
        raise GraphError(
            f"{path}: not a readable Matrix Market file: declares {entries:,} entries, more than a file of {held:,} "
            "bytes can hold: is it cut off? fetch it again"
        )
    if vertices is None and too_sparse(rows - 1, entries):
        raise GraphError(
            f"{path}: declares {rows:,} rows with only {entries:,} entries: leave out empty rows, or state "
            f"graph.vertices = {rows} if they are meant"
        )
    check_memory(READ_BYTES * entries, f"{path}: reading {entries:,} entries", "use a machine with more memory")


def _entries(stream: IO[bytes], header: Header) -> Any:
    """Yield rows, columns and values of the lines, float64 [n, 3], piece by piece; more than are declared end it."""
    names = ["row", "column", "value", "imaginary"][: 2 + VALUES[header.field]]
    reader = pd.read_csv(
        stream, sep=r"\s+", header=None, names=names, comment="%", dtype=np.float64, chunksize=CHUNK_ENTRIES,
        index_col=False, engine="c", on_bad_lines="error",
    )  # fmt: skip
    read = 0
    try:
        for piece in reader:
            if piece[["row", "column"]].isna().to_numpy().any():
                raise ValueError("a line without row and column")
            ends = piece[["row", "column"]].to_numpy()
            if not np.all(ends == np.floor(ends)):
                raise ValueError("a row or column that is no whole number")
            value = piece["value"].to_numpy() if "value" in piece else np.ones(len(piece))
            yield np.column_stack([ends, value])
            read += len(piece)
            if read > header.entries:
                return
    except pd.errors.EmptyDataError:
        return


def _mirrored(
    ids: NDArray[np.int64], values: NDArray[np.float64], factor: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return the entries and, unless ``factor`` is 0, their mirror images off the diagonal."""
    if factor == 0:
        return ids[:, 0], ids[:, 1], values
    off = ids[:, 0] != ids[:, 1]
    source = np.concatenate([ids[:, 0], ids[off, 1]])
    target = np.concatenate([ids[:, 1], ids[off, 0]])
    return source, target, np.concatenate([values, factor * values[off]])
