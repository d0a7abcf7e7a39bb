"""Matrix Market adjacency matrices (``.mtx``, ``.mtx.gz``), such as those of the SuiteSparse collection."""

import zlib
from pathlib import Path
from typing import Any

from scipy.io import mminfo, mmread

from simgnn.errors import GraphError
from simgnn.graph.build import assemble_edges
from simgnn.graph.complete import Found, complete_graph
from simgnn.graph.graph import Graph


def read_matrix_market(path: Path, *, symmetrise: bool = True) -> Graph:
    """Read a square sparse matrix: an entry in row r and column c is the edge r -> c. Values are left out and noted.

    Raises :class:`GraphError` for dense or rectangular matrices and for files that cannot be read.
    """
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
    name = path.name.removesuffix(".gz").removesuffix(".mtx")
    return complete_graph(Found(name, str(path), built, notes=notes))
