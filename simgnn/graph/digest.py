"""What a graph is, in one number: equal for equal arrays, whatever the file was called."""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.graph.centred import CentredRows
from simgnn.graph.graph import Graph
from simgnn.graph.store import release_pages

_CHUNK = 1 << 22


def graph_digest(graph: Graph) -> str:
    """SHA-256 (hex) over edges, features, labels, masks and the number of classes; not over names, paths or notes."""
    digest = hashlib.sha256(f"simgnn-graph-1 {graph.csr.columns} {graph.classes} {graph.multilabel}".encode())
    named: list[tuple[str, Any]] = [
        ("indptr", graph.csr.indptr),
        ("indices", graph.csr.indices),
        ("labels", graph.labels),
        ("train", graph.train_mask),
        ("validation", graph.validation_mask),
        ("test", graph.test_mask),
    ]
    features, stored = graph.features, graph.sparse_rows
    if stored is not None:
        named += [("sparse-indptr", stored.indptr.astype(np.int64)), ("sparse-indices", stored.indices)]
        named += [("sparse-data", stored.data)]
        digest.update(f"width {stored.shape[1]}".encode())
    else:
        named.append(("features", features))
    if isinstance(features, CentredRows):
        named.append(("mean", features.mean))
    for name, array in named:
        if array is not None:
            _update(digest, name, array)
    return digest.hexdigest()


def _update(digest: Any, name: str, array: NDArray[Any]) -> None:
    plain = np.asarray(array)  # the digest must not care whether an array is memory-mapped
    digest.update(f"|{name} {plain.dtype.str} {plain.shape}|".encode())
    data = np.ascontiguousarray(plain).reshape(-1).view(np.uint8)
    for first in range(0, len(data), _CHUNK):
        digest.update(data[first : first + _CHUNK])
        release_pages(data)
