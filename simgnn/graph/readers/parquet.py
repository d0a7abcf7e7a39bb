"""Edge lists in Parquet."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet as pq

from simgnn.errors import GraphError
from simgnn.graph.build import assemble_edges
from simgnn.graph.complete import Found, complete_graph
from simgnn.graph.graph import Graph

PAIRS = (("source", "target"), ("src", "dst"))
VERTICES_KEY = b"vertices"


def read_parquet(path: Path, *, vertices: int | None = None, symmetrise: bool = True) -> Graph:
    """Read the integer columns ``source`` and ``target`` (or ``src`` and ``dst``), batch by batch.

    ``vertices``: V; default: the file's metadata entry ``vertices``, else the largest id + 1. Other columns are left
    out and noted. Raises :class:`GraphError`.
    """
    blocks: list[NDArray[Any]] = []
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            pair = next((pair for pair in PAIRS if set(pair) <= set(names)), None)
            if pair is None:
                raise GraphError(
                    f"{path}: expected columns source and target, or src and dst; got {', '.join(names) or 'none'}"
                )
            if vertices is None:
                vertices = _stated(file.schema_arrow.metadata or {}, path)
            for name in pair:
                kind = file.schema_arrow.field(name).type
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
    edges = np.concatenate(blocks, axis=1) if blocks else np.empty((2, 0), np.int64)
    built = assemble_edges(edges[0], edges[1], vertices, symmetrise, key=str(path))
    left = [name for name in names if name not in pair]
    notes = [f"columns left out: {', '.join(left)} (edges have no weights)"] if left else []
    return complete_graph(Found(path.stem, str(path), built, notes=notes))


def _stated(metadata: dict[bytes, bytes], path: Path) -> int | None:
    if VERTICES_KEY not in metadata:
        return None
    text = metadata[VERTICES_KEY].decode("utf-8", "replace")
    if not text.isdigit():
        raise GraphError(f"{path}: metadata 'vertices' must be a whole number; got {text!r}")
    return int(text)
