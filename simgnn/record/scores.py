"""Scores of all vertices: the table that ``simgnn infer`` writes, and how many of the labels it predicts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simgnn.graph.graph import MASKS, Graph


def scores_table(
    scores: NDArray[Any], multilabel: bool, vertices: NDArray[Any], class_names: Sequence[str] = ()
) -> pa.Table:
    """Return a table with a row for each vertex: ``vertex`` (its id), ``class`` (that of the greatest score; with
    several labels a vertex a list of those whose score is above 0), ``score_0`` ... ``score_k-1``. ``scores`` [V, k];
    ``vertices`` [V]: ids, numbers or text. ``class_names``: those of the classes, which become the column
    ``class_name``."""
    classes: Any
    if multilabel:
        chosen = scores > 0
        ends = np.concatenate(([0], np.cumsum(chosen.sum(axis=1)))).astype(np.int32)
        classes = pa.ListArray.from_arrays(ends, pa.array(np.nonzero(chosen)[1].astype(np.int32)))
    else:
        classes = pa.array(scores.argmax(axis=1).astype(np.int32))
    named = {}
    if class_names and not multilabel:
        named = {"class_name": pa.array(class_names).take(classes)}
    columns = {f"score_{place}": pa.array(np.ascontiguousarray(scores[:, place])) for place in range(scores.shape[1])}
    return pa.table({"vertex": pa.array(vertices), "class": classes, **named, **columns})


def embeddings_table(embeddings: NDArray[Any], vertices: NDArray[Any]) -> pa.Table:
    """Return a table with a row for each vertex: ``vertex`` (its id), ``embedding_0`` ... ``embedding_k-1``.
    ``embeddings`` [V, k]; ``vertices`` [V]: ids, numbers or text."""
    columns = {f"embedding_{place}": pa.array(np.ascontiguousarray(row)) for place, row in enumerate(embeddings.T)}
    return pa.table({"vertex": pa.array(vertices), **columns})


def accuracies(scores: NDArray[Any], graph: Graph) -> dict[str, float | None]:
    """Return the accuracy (micro-F1 with several labels a vertex) of train, validation and test vertices; None for a
    split without vertices. ``scores`` [V, classes]."""
    found: dict[str, float | None] = {}
    for split in MASKS:
        mask = getattr(graph, f"{split}_mask")
        if mask is None or not np.any(mask) or graph.labels is None:
            found[split] = None
            continue
        here, labels = scores[np.asarray(mask)], np.asarray(graph.labels)[np.asarray(mask)]
        if graph.multilabel:
            chosen = here > 0
            counted = int(chosen.sum()) + int(labels.sum())
            found[split] = 2 * int((chosen & labels).sum()) / counted if counted else None
        else:
            found[split] = float((here.argmax(axis=1) == labels).mean())
    return found
