"""Graphs of DGL and PyTorch Geometric, from their objects or their files; loading a file runs none of its code."""

import pickle
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from simgnn.errors import GraphError
from simgnn.graph.build import BuiltGraph, assemble_edges
from simgnn.graph.complete import Found, complete_graph
from simgnn.graph.graph import Graph
from simgnn.graph.readers.own_process import read_elsewhere
from simgnn.graph.weights import NAMES as WEIGHT_NAMES
from simgnn.graph.weights import TAKEN, WeightChoice
from simgnn.npzfile import check_unpacked
from simgnn.outside import outside_data, reason_of

NAMES = {
    "features": ("feat", "x", "feature", "features"),
    "labels": ("label", "y", "labels"),
    "train_mask": ("train_mask",),
    "validation_mask": ("val_mask", "valid_mask", "validation_mask"),
    "test_mask": ("test_mask",),
}
"""Field of a graph -> the names that DGL and PyG use for it."""
EDGE_NAMES = ("edge_weight", "edge_attr")
"""Names of weights in a PyG graph; the first that is there counts."""


def read_dgl(path: Path, *, symmetrise: bool = True, weights: WeightChoice = TAKEN) -> Graph:
    """Read the one homogeneous graph of a ``.bin`` file in a process of its own, since a damaged file makes DGL abort.
    Raises :class:`GraphError`, also where DGL is missing."""
    return read_elsewhere(path, symmetrise=symmetrise, weights=asdict(weights))


def read_dgl_here(path: Path, *, symmetrise: bool = True, weights: WeightChoice = TAKEN) -> Graph:
    """Do what :func:`read_dgl` does in this process, which ends if the file is damaged in certain ways."""
    dgl = load_dgl(str(path))
    with outside_data(path, "DGL file"):
        graphs, _ = dgl.load_graphs(str(path))
        if len(graphs) != 1:
            raise GraphError(f"{path}: expected one graph; got {len(graphs)}: save the one to train on alone")
        return from_dgl(graphs[0], name=path.stem, symmetrise=symmetrise, weights=weights, where=str(path))


def load_dgl(path: str) -> Any:
    """Import DGL. Raises :class:`GraphError`, which begins with ``path``, where it cannot be imported."""
    try:
        # DGL: optional, and slow to load
        import dgl
    except ImportError as error:
        raise GraphError(
            f"{path}: reading it needs DGL, which cannot be imported ({error}): install dgl==1.1.3 on Python 3.11, "
            "or convert the graph there with simgnn.graph.store.save_graph"
        ) from error
    return dgl


def from_dgl(
    graph: Any, *, name: str = "dgl", symmetrise: bool = True, weights: WeightChoice = TAKEN, where: str = "DGLGraph"
) -> Graph:
    """Convert a homogeneous ``DGLGraph``. Vertex data: ``feat`` (or ``x``), ``label`` (or ``y``), ``train_mask``,
    ``val_mask``, ``test_mask``; edge data that hold weights: see :class:`WeightChoice`; others are left out and noted.
    Raises :class:`GraphError`."""
    if not graph.is_homogeneous:
        raise GraphError(f"{where}: expected one type of vertices and edges; got {graph.ntypes} and {graph.etypes}")
    source, target = graph.edges()
    names = [str(key) for key in graph.edata]
    values, notes = _edge_weights(graph.edata, names, weights, where, WEIGHT_NAMES)
    pairs = source.cpu().numpy(), target.cpu().numpy()
    edges = assemble_edges(*pairs, int(graph.num_nodes()), symmetrise, weights=values, key=where)
    return _with_vertex_data(edges, graph.ndata, name, where, notes)


def read_pyg(path: Path, *, symmetrise: bool = True, weights: WeightChoice = TAKEN) -> Graph:
    """Read a ``.pt`` file: a ``Data``, its ``to_dict()``, a list of one, or ``(data, slices, ...)`` of a data set.
    ``torch.load(weights_only=True)``, so nothing but tensors and PyG's own containers is accepted. Raises
    :class:`GraphError`."""
    # torch: loaded when such a file is read
    import torch

    with outside_data(path, "file of torch.save"), torch.sparse.check_sparse_tensor_invariants():
        if zipfile.is_zipfile(path):
            check_unpacked(path)
        try:
            with torch.serialization.safe_globals(_containers()):
                loaded = torch.load(path, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, ModuleNotFoundError, AttributeError) as error:
            raise GraphError(
                f"{path}: holds Python objects that are not loaded from files ({reason_of(error)}): "
                "save data.to_dict() with torch.save, or install torch-geometric if they are its own"
            ) from error
        return from_pyg(_one(loaded, path), name=path.stem, symmetrise=symmetrise, weights=weights, where=str(path))


def from_pyg(
    data: Any, *, name: str = "pyg", symmetrise: bool = True, weights: WeightChoice = TAKEN, where: str = "Data"
) -> Graph:
    """Convert a ``Data`` or a mapping with ``edge_index`` int [2, E] (source row 0) or a transposed ``adj_t``.

    Vertex data: ``x`` dense or sparse, ``y``, ``train_mask``, ``val_mask``, ``test_mask`` (first of several splits).
    ``num_nodes``, else the rows of ``x`` or ``y``, else largest id + 1. Weights: ``edge_weight``, an ``edge_attr`` of
    one column, or the values of ``adj_t``, see :class:`WeightChoice`; an ``edge_attr`` of several columns is left out
    and noted. Raises :class:`GraphError`.
    """
    values = data if isinstance(data, Mapping) else data.to_dict() if hasattr(data, "to_dict") else None
    if values is None:
        raise GraphError(f"{where}: expected a torch_geometric Data or its to_dict(); got {type(data).__name__}")
    vertices = values.get("num_nodes")
    if values.get("edge_index") is not None:
        pairs = _numpy(values["edge_index"], f"{where}: edge_index")
        if getattr(pairs, "ndim", 0) != 2 or pairs.shape[0] != 2:
            raise GraphError(f"{where}: edge_index must have shape [2, edges]; got {list(getattr(pairs, 'shape', []))}")
        source, target = pairs[0], pairs[1]
        held = [key for key in values if key in EDGE_NAMES or key == weights.column]
        first = [key for key in EDGE_NAMES if values.get(key) is not None][:1]
        of_edges, notes = _edge_weights(values, held, weights, where, first)
    elif values.get("adj_t") is not None:
        matrix: Any = _numpy(values["adj_t"], f"{where}: adj_t")
        shape: tuple[int, ...] = getattr(matrix, "shape", ())
        if not hasattr(matrix, "tocoo") or shape[0] != shape[1]:
            raise GraphError(f"{where}: adj_t must be a square sparse tensor")
        coordinates = matrix.tocoo()
        source, target, vertices = coordinates.col, coordinates.row, shape[0]
        of_edges, notes = coordinates.data if weights.among(["adj_t"], where, ["adj_t"]) else None, []
    else:
        known = ", ".join(str(key) for key in values) or "nothing"
        raise GraphError(f"{where}: no edge_index (or adj_t); got {known}: only homogeneous graphs can be read")
    if vertices is None:
        rows = next((values[key] for key in ("x", "y") if values.get(key) is not None), None)
        vertices = None if rows is None else rows.shape[0]
    vertices = None if vertices is None else int(vertices)
    edges = assemble_edges(source, target, vertices, symmetrise, weights=of_edges, key=where)
    return _with_vertex_data(edges, values, name, where, notes)


def _edge_weights(
    data: Mapping[str, Any], names: Sequence[str], weights: WeightChoice, where: str, known: Sequence[str]
) -> tuple[Any, list[str]]:
    """Return the weights among the arrays ``names`` of edges, if there are any, and notes on those left out."""
    chosen = weights.among([name for name in names if data[name] is not None], where, known)
    others = [name for name in names if name != chosen and data[name] is not None]
    notes = [f"data of edges left out: {', '.join(others)}"] if others and weights.used else []
    if chosen is None:
        return None, notes
    values, more = weights.single_column(_numpy(data[chosen], f"{where}: {chosen}"), chosen)
    return values, [*notes, *more]


def _with_vertex_data(edges: BuiltGraph, data: Mapping[str, Any], name: str, where: str, notes: list[str]) -> Graph:
    """Build a graph of ``edges`` with the features, labels and masks in ``data``; of several splits, the first."""
    values: dict[str, Any] = {}
    notes = list(notes)
    for field, names in NAMES.items():
        held = [key for key in names if key in data and data[key] is not None]
        if len(held) > 1:
            raise GraphError(f"{where}: {field} under several names ({', '.join(held)}); keep one of them")
        if held:
            values[field] = found = _numpy(data[held[0]], f"{where}: {held[0]}")
            if field.endswith("_mask") and np.ndim(found) == 2 and found.shape[1] > 0:
                values[field] = found[:, 0]
                notes.append(f"{field}: first of {found.shape[1]} splits")
    return complete_graph(Found(name, where, edges, notes=notes, **values))


def _containers() -> list[Any]:
    try:
        # PyG: optional, and slow to load
        from torch_geometric.data import Data
        from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
        from torch_geometric.data.storage import EdgeStorage, GlobalStorage, NodeStorage
    except ImportError:
        return []
    return [Data, DataEdgeAttr, DataTensorAttr, EdgeStorage, GlobalStorage, NodeStorage]


def _one(loaded: Any, path: Path) -> Any:
    slices: Mapping[str, Any] = {}
    if isinstance(loaded, tuple) and loaded:
        slices = (loaded[1] if len(loaded) > 1 else None) or {}
        loaded = loaded[0]
    graphs = loaded if isinstance(loaded, list) else [loaded]
    count = max([len(graphs), *(len(bounds) - 1 for bounds in slices.values())])
    if count != 1:
        raise GraphError(f"{path}: expected one graph; got {count}: save the one to train on alone")
    return graphs[0]


def _numpy(tensor: Any, where: str) -> Any:
    # torch: loaded when a graph of tensors is read
    import torch

    try:
        if hasattr(tensor, "to_torch_sparse_csr_tensor"):  # a torch_sparse SparseTensor
            tensor = tensor.to_torch_sparse_csr_tensor()
        if not isinstance(tensor, torch.Tensor):
            raise GraphError(f"{where}: expected a tensor; got {type(tensor).__name__}")
        tensor = tensor.detach().cpu()
        if tensor.layout != torch.strided:
            csr = tensor if tensor.layout == torch.sparse_csr else tensor.to_sparse_csr()
            parts = (csr.values().numpy(), csr.col_indices().numpy(), csr.crow_indices().numpy())
            return sparse.csr_array(parts, shape=tuple(csr.shape))
        return tensor.numpy()
    except (TypeError, RuntimeError, ValueError) as error:
        raise GraphError(f"{where}: cannot become an array ({error}): convert it to float32") from error
