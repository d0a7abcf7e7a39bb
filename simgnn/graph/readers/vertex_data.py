"""What DGL and PyG graphs call features, labels and masks; shared by their readers."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import GraphError
from simgnn.graph.build import BuiltGraph
from simgnn.graph.complete import Found, complete_graph
from simgnn.graph.graph import Graph

NAMES = {
    "features": ("feat", "x", "feature", "features"),
    "labels": ("label", "y", "labels"),
    "train_mask": ("train_mask",),
    "validation_mask": ("val_mask", "valid_mask", "validation_mask"),
    "test_mask": ("test_mask",),
}


def graph_with(
    edges: BuiltGraph, data: Mapping[str, Any], name: str, where: str, to_numpy: Callable[[Any, str], Any]
) -> Graph:
    """A checked graph of edges and a mapping from the names above to tensors; of several splits, the first is taken."""
    values: dict[str, Any] = {}
    notes: list[str] = []
    for field, names in NAMES.items():
        held = [key for key in names if key in data and data[key] is not None]
        if len(held) > 1:
            raise GraphError(f"{where}: {field} under several names ({', '.join(held)}); keep one of them")
        if held:
            values[field] = to_numpy(data[held[0]], f"{where}: {held[0]}")
    for field in ("train_mask", "validation_mask", "test_mask"):
        mask: NDArray[Any] | None = values.get(field)
        if mask is not None and np.ndim(mask) == 2 and np.shape(mask)[1] > 0:
            values[field] = mask[:, 0]
            notes.append(f"{field}: first of {np.shape(mask)[1]} splits")
    return complete_graph(Found(name, where, edges, notes=notes, **values))
