"""METIS through pymetis: k-way partitions of small edge cut with one balance constraint."""

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.graph.graph import Graph
from simgnn.partition.edges import symmetric_csr


def metis_owner(
    graph: Graph, ranks: int, seed: int, weights: NDArray[np.int64] | None, imbalance: float
) -> NDArray[np.int32]:
    """Owner of each vertex, int32 [V], by METIS's k-way scheme with the edge cut as its goal.

    ``weights`` int64 [V] is what each part should hold equally much of (None: vertices); ``imbalance`` >= 1 is the
    heaviest part over the mean that METIS may leave. One part, or a graph without edges, needs no METIS.
    Source: Karypis and Kumar, METIS 5. Not reproducible over versions and platforms, hence kept as an artefact.
    """
    if ranks == 1:
        return np.zeros(graph.vertices, dtype=np.int32)
    if graph.edges == 0:
        # METIS balances nothing without edges; equal blocks are optimal
        return np.sort(np.arange(graph.vertices, dtype=np.int64) % ranks).astype(np.int32)
    # METIS: loaded when a graph is partitioned
    import pymetis

    csr = symmetric_csr(graph)
    index = np.dtype(pymetis.zero_copy_dtype())
    options = pymetis.Options(
        seed=seed % (2**31 - 1), ufactor=max(1, round((imbalance - 1.0) * 1000)), objtype=0, numbering=0
    )
    found = pymetis.part_graph(
        ranks,
        adjacency=pymetis.CSRAdjacency(csr.indptr.astype(index, copy=False), csr.indices.astype(index, copy=False)),
        vweights=None if weights is None else weights.astype(index),
        recursive=False,
        options=options,
    )
    return np.asarray(found.vertex_part, dtype=np.int32)


def graph_mask(graph: Graph, name: str) -> NDArray[np.bool_] | None:
    """The mask "train", "validation" or "test" of a graph; None for "vertices" and "edges", which are no masks.

    Raises :class:`ConfigError` when the graph lacks the mask.
    """
    if name in ("vertices", "edges"):
        return None
    mask: NDArray[np.bool_] | None = getattr(graph, f"{name}_mask")
    if mask is None or not mask.any():
        raise ConfigError(
            f"partition.balance names '{name}', but no vertex of '{graph.name}' is in its {name} mask; leave it out"
        )
    return mask
