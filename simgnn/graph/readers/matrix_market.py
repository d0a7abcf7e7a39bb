"""Sparse matrices in the Matrix Market format, plain or gzip, as adjacency matrices."""

import zlib
from pathlib import Path
from typing import Any

from scipy.io import mminfo, mmread

from simgnn.errors import GraphError
from simgnn.graph.build import assemble_edges
from simgnn.graph.complete import Found, complete_graph
from simgnn.graph.graph import Graph
from simgnn.graph.weights import TAKEN, WeightChoice


def read_matrix_market(path: Path, *, symmetrise: bool = True, weights: WeightChoice = TAKEN) -> Graph:
    """Read a square sparse matrix, such as one of the SuiteSparse collection: an entry in row r and column c is the
    edge r -> c, its value the weight. Raises :class:`GraphError` for dense or rectangular matrices and for
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
    values = matrix.data if weights.used and field != "pattern" else None
    built = assemble_edges(matrix.row, matrix.col, rows, symmetrise, weights=values, key=str(path))
    return complete_graph(Found(path.name.removesuffix(".gz").removesuffix(".mtx"), str(path), built))
