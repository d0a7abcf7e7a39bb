"""Sparse matrices in the Matrix Market format, plain or gzip, as adjacency matrices."""

from pathlib import Path
from typing import Any

from scipy.io import mminfo, mmread

from simgnn.errors import GraphError
from simgnn.graph.build import assemble_edges, too_sparse
from simgnn.graph.complete import Found, complete_graph
from simgnn.graph.graph import Graph
from simgnn.graph.weights import TAKEN, WeightChoice
from simgnn.memory import check_memory
from simgnn.outside import outside_data

ENTRY_BYTES = 4
"""Bytes of the shortest line of an entry, two digits with a blank between."""
GZIP_RATIO = 1100
"""Most times its packed size that a gzip file has when it is unpacked."""
READ_BYTES = 64
"""Memory an entry takes while it is read: row, column and value, twice."""


def read_matrix_market(
    path: Path, *, vertices: int | None = None, symmetrise: bool = True, weights: WeightChoice = TAKEN
) -> Graph:
    """Read a square sparse matrix, such as one of the SuiteSparse collection: an entry in row r and column c is the
    edge r -> c, its value the weight. ``vertices``: its number of rows; needs stating only where most rows are empty.
    Raises :class:`GraphError` for dense or rectangular matrices, for files that cannot be read, and for headers that
    declare more than the file can hold, before memory is taken."""
    with outside_data(path, "Matrix Market file"):
        rows, columns, entries, layout, field, _ = mminfo(str(path))
        if layout != "coordinate":
            raise GraphError(f"{path}: expected a sparse matrix ('coordinate'); got '{layout}'")
        if rows != columns:
            raise GraphError(f"{path}: an adjacency matrix is square; got {rows} x {columns}")
        if vertices is not None and vertices != rows:
            raise GraphError(f"graph.vertices: got {vertices}, expected {rows}, the rows of {path}: remove the key")
        largest = path.stat().st_size * (GZIP_RATIO if path.suffix.lower() == ".gz" else 1)
        if entries * ENTRY_BYTES > largest + ENTRY_BYTES:
            raise GraphError(
                f"{path}: declares {entries:,} entries, more than a file of {path.stat().st_size:,} bytes can hold: is "
                "it cut off? fetch it again"
            )
        if vertices is None and too_sparse(rows - 1, entries):
            raise GraphError(
                f"{path}: declares {rows:,} rows with only {entries:,} entries: leave out empty rows, or state "
                f"graph.vertices = {rows} if they are meant"
            )
        check_memory(READ_BYTES * entries, f"{path}: reading {entries:,} entries", "use a machine with more memory")
        matrix: Any = mmread(str(path), spmatrix=False)
        values = matrix.data if weights.used and field != "pattern" else None
        built = assemble_edges(matrix.row, matrix.col, rows, symmetrise, weights=values, key=str(path))
    return complete_graph(Found(path.name.removesuffix(".gz").removesuffix(".mtx"), str(path), built))
