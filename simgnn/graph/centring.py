"""Features whose columns have a mean of zero."""

from dataclasses import replace
from typing import Any

import numpy as np

from simgnn.errors import GraphError
from simgnn.graph.centred import CentredRows
from simgnn.graph.graph import Graph

CHUNK_ROWS = 65_536


def with_centred_features(graph: Graph, source: str) -> Graph:
    """The graph with features from which the mean of each column over all vertices is subtracted.

    Means are taken in float64. Sparse features stay sparse, with their means beside them
    (:class:`~simgnn.graph.centred.CentredRows`); dense ones become float32 and lie in memory, 4 V F_0 bytes, also where
    they were in mapped files. Raises :class:`GraphError` for a graph without features.
    """
    features: Any = graph.features
    if features is None:
        raise GraphError(f"graph.centre: '{source}' has no features to centre; take the option away")
    if isinstance(features, CentredRows):
        return graph  # as it was saved
    notes = (*graph.notes, "features less the mean of their column")
    if graph.sparse_rows is not None:
        return replace(graph, features=CentredRows.of(graph.sparse_rows), notes=notes)
    mean = np.asarray(features.mean(axis=0, dtype=np.float64)).ravel()
    centred = np.empty(features.shape, dtype=np.float32)
    for first in range(0, len(centred), CHUNK_ROWS):
        rows = np.asarray(features[first : first + CHUNK_ROWS])
        centred[first : first + CHUNK_ROWS] = rows - mean
    return replace(graph, features=centred, notes=notes)
