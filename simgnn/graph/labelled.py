"""Graphs of which few vertices are labelled: a seeded share of the labelled vertices of any graph."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import GraphError
from simgnn.graph.graph import MASKS, Graph
from simgnn.graph.hashing import index_bits, permuted, stream_key


def with_fewer_labels(graph: Graph, share: float, seed: int) -> Graph:
    """Keep ``share`` of all vertices labelled: a random part, by seed, of each of the masks, which shrink in proportion
    (by largest remainder, so that rounding costs no vertex). A mask that has vertices keeps one at least. Equal seeds
    give equal masks, and a smaller share keeps a part of what a larger one keeps, up to rounding. Labels, features and
    edges stay as they are. Raises :class:`GraphError` when fewer vertices are labelled than ``share`` asks for."""
    masks: dict[str, NDArray[np.bool_]] = {
        name: np.asarray(mask) for name in MASKS if (mask := getattr(graph, f"{name}_mask")) is not None
    }
    had = np.array([np.count_nonzero(mask) for mask in masks.values()], np.int64)
    labelled, wanted = int(had.sum()), max(1, round(share * graph.vertices))
    if not labelled:
        raise GraphError(
            f"graph.labelled: got {share:g}, but '{graph.name}' has no labelled vertices, expected some to keep; state "
            "graph.labels and graph.splits, or graph.classes for random ones"
        )
    if wanted > labelled:
        raise GraphError(
            f"graph.labelled: got {share:g}, {wanted:,} vertices, but '{graph.name}' has {labelled:,} labelled ones, "
            f"expected at most {labelled / graph.vertices:.6g}; remove the key to keep all"
        )
    keeps = _in_proportion(had, wanted)
    fields: dict[str, Any] = {}
    key, bits = stream_key(seed, "labelled"), index_bits(graph.vertices)
    for (name, mask), count in zip(masks.items(), keeps.tolist(), strict=True):
        vertices = np.flatnonzero(mask)
        place = permuted(vertices, key, bits, np.uint64(graph.vertices))
        fields[f"{name}_mask"] = chosen = np.zeros(graph.vertices, np.bool_)
        chosen[vertices[np.argsort(place)[:count]]] = True
    counts = ", ".join(f"{count:,} {name}" for name, count in zip(masks, keeps.tolist(), strict=True))
    note = f"labelled: {int(keeps.sum()):,} of {graph.vertices:,} vertices ({counts}), by graph.labelled = {share:g}"
    return replace(graph, **fields, notes=(*graph.notes, note), result_notes=(*graph.result_notes, note))


def _in_proportion(had: NDArray[np.int64], wanted: int) -> NDArray[np.int64]:
    """Divide ``wanted`` in the proportions of ``had`` int64 [n]: whole numbers that add up to it, but at least 1 where
    there is any."""
    exact = had * (wanted / had.sum())
    keeps = np.floor(exact).astype(np.int64)
    last = np.argsort(keeps - exact, kind="stable")[: max(0, wanted - int(keeps.sum()))]
    keeps[last] += 1
    found: NDArray[np.int64] = np.minimum(np.maximum(keeps, had > 0), had)
    return found
