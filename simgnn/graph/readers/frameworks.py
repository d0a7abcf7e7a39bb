"""Graphs of DGL and PyTorch Geometric, from their objects or their files; loading a file runs none of its code."""

import pickle
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from simgnn.errors import GraphError
from simgnn.graph.build import assemble_edges
from simgnn.graph.complete import Found, complete_graph
from simgnn.graph.graph import Graph
from simgnn.graph.typed_graph import ONE_TYPE, Relation, TypeChoice, TypedGraph
from simgnn.graph.weights import NAMES as WEIGHT_NAMES
from simgnn.graph.weights import TAKEN, WeightChoice
from simgnn.npzfile import check_unpacked
from simgnn.outside import outside_data, reason_of
from simgnn.progress import SILENT, CountedFile, Progress

NAMES = {
    "features": ("feat", "x", "feature", "features"),
    "labels": ("label", "y", "labels"),
    "train_mask": ("train_mask",),
    "validation_mask": ("val_mask", "valid_mask", "validation_mask"),
    "test_mask": ("test_mask",),
}
"""Field of a graph -> the names that DGL and PyG use for it."""
UNSUPPORTED = re.compile(r"Unsupported (?:global|class|operand|type)[: ]+(?:GLOBAL )?([\w.]+)")
"""Where PyTorch names what it does not load."""
EDGE_NAMES = ("edge_weight", "edge_attr")
"""Names of weights in a PyG graph; the first that is there counts."""


def read_dgl(
    path: Path, *, symmetrise: bool = True, weights: WeightChoice = TAKEN, types: TypeChoice = ONE_TYPE
) -> Graph:
    """Read the one graph of a ``.bin`` file. A file that is damaged in certain ways ends the process; see
    :mod:`simgnn.graph.readers.dgl_process`. Raises :class:`GraphError`, also where DGL is missing."""
    dgl = load_dgl(str(path))
    with outside_data(path, "DGL file"):
        graphs, _ = dgl.load_graphs(str(path))
        if len(graphs) != 1:
            raise GraphError(f"{path}: expected one graph; got {len(graphs)}: save the one to train on alone")
        where = str(path)
        return from_dgl(graphs[0], name=path.stem, symmetrise=symmetrise, weights=weights, types=types, where=where)


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
    graph: Any,
    *,
    name: str = "dgl",
    symmetrise: bool = True,
    weights: WeightChoice = TAKEN,
    types: TypeChoice = ONE_TYPE,
    where: str = "DGLGraph",
) -> Graph:
    """Convert a ``DGLGraph``. Vertex data: ``feat`` (or ``x``), ``label`` (or ``y``), ``train_mask``, ``val_mask``,
    ``test_mask``; edge data that hold weights: see :class:`WeightChoice`; others are left out and noted. ``types``:
    what
    becomes of several types, see :class:`TypedGraph`. Raises :class:`GraphError`."""
    notes: list[str] = []
    fields = {kind: _vertex_fields(graph.nodes[kind].data, where, notes) for kind in graph.ntypes}
    relations = {}
    for relation in graph.canonical_etypes:
        data = graph.edges[relation].data
        values, more = _edge_weights(data, [str(key) for key in data], weights, where, WEIGHT_NAMES)
        source, target = graph.edges(etype=relation)
        relations[relation] = Relation(source.cpu().numpy(), target.cpu().numpy(), values)
        notes += more
    counts = {kind: int(graph.num_nodes(kind)) for kind in graph.ntypes}
    if not graph.is_homogeneous:
        return TypedGraph(name, where, counts, relations, fields, tuple(notes)).chosen(types, symmetrise)
    types.check_one_type(where)
    (edges,), (vertices,), (held,) = relations.values(), counts.values(), fields.values()
    built = assemble_edges(edges.source, edges.target, vertices, symmetrise, weights=edges.weights, key=where)
    return complete_graph(Found(name, where, built, notes=notes, **held))


def read_pyg(
    path: Path,
    *,
    symmetrise: bool = True,
    weights: WeightChoice = TAKEN,
    types: TypeChoice = ONE_TYPE,
    progress: Progress = SILENT,
) -> Graph:
    """Read a ``.pt`` file: a ``Data`` or ``HeteroData``, its ``to_dict()``, a list of one, or ``(data, slices, ...)``
    of a data set. ``torch.load(weights_only=True)``, so nothing but tensors and PyG's own containers is accepted.
    Raises
    :class:`GraphError`."""
    # torch: loaded when such a file is read
    import torch

    with outside_data(path, "file of torch.save"), torch.sparse.check_sparse_tensor_invariants():
        if zipfile.is_zipfile(path):
            check_unpacked(path)
        try:
            reading = progress.counting(f"reading {path.name}", path.stat().st_size, share=True, patient=True)
            known = torch.serialization.safe_globals(_containers())
            with known, reading as counter, CountedFile(path, counter.at) as stream:
                loaded = torch.load(stream, map_location="cpu", weights_only=True)
        except (pickle.UnpicklingError, ModuleNotFoundError, AttributeError) as error:
            found = UNSUPPORTED.search(str(error))
            what = found[1] if found else reason_of(error)
            raise GraphError(
                f"{path}: holds Python objects that are not loaded from files ({what}): save data.to_dict() with "
                "torch.save, or install torch-geometric if they are its own"
            ) from error
        data, where = _one(loaded, path), str(path)
        with progress.waiting(f"sorting edges of {path.name}"):
            return from_pyg(data, name=path.stem, symmetrise=symmetrise, weights=weights, types=types, where=where)


def from_pyg(
    data: Any,
    *,
    name: str = "pyg",
    symmetrise: bool = True,
    weights: WeightChoice = TAKEN,
    types: TypeChoice = ONE_TYPE,
    where: str = "Data",
) -> Graph:
    """Convert a ``Data``, a ``HeteroData`` or their ``to_dict()``, with ``edge_index`` int [2, E] (source row 0) or a
    transposed ``adj_t``.

    Vertex data: ``x`` dense or sparse, ``y``, ``train_mask``, ``val_mask``, ``test_mask`` (first of several splits).
    ``num_nodes``, else the rows of ``x`` or ``y``, else largest id + 1. Weights: ``edge_weight``, an ``edge_attr`` of
    one column, or the values of ``adj_t``, see :class:`WeightChoice`; an ``edge_attr`` of several columns is left out
    and noted. ``types``: what becomes of several types, see :class:`TypedGraph`. Raises :class:`GraphError`.
    """
    values = data if isinstance(data, Mapping) else data.to_dict() if hasattr(data, "to_dict") else None
    if values is None:
        raise GraphError(f"{where}: expected a torch_geometric Data or its to_dict(); got {type(data).__name__}")
    if any(isinstance(key, tuple) for key in values):
        return _typed_pyg(values, name, weights, where).chosen(types, symmetrise)
    types.check_one_type(where)
    edges, shape, notes = _pyg_edges(values, weights, where)
    if shape is not None and shape[0] != shape[1]:
        raise GraphError(f"{where}: adj_t must be a square sparse tensor; got {list(shape)}")
    vertices = _pyg_vertices(values) if shape is None else shape[0]
    built = assemble_edges(edges.source, edges.target, vertices, symmetrise, weights=edges.weights, key=where)
    return complete_graph(Found(name, where, built, **_vertex_fields(values, where, notes), notes=notes))


def _typed_pyg(values: Mapping[Any, Any], name: str, weights: WeightChoice, where: str) -> TypedGraph:
    """Read the ``to_dict()`` of a ``HeteroData``: by type of vertices or of relations, the data of each."""
    notes: list[str] = []
    relations, shapes = {}, {}
    for key in (key for key in values if isinstance(key, tuple)):
        if len(key) != 3 or not all(isinstance(part, str) for part in key) or not isinstance(values[key], Mapping):
            raise GraphError(f"{where}: expected relations (source, name, target) of text; got {key!r:.80}")
        relations[key], shapes[key], more = _pyg_edges(values[key], weights, f"{where}: {','.join(key)}")
        notes += more
    ends = {kind for key in relations for kind in (key[0], key[2])}
    kinds = [key for key in values if isinstance(key, str) and not key.startswith("_")]
    tables = {kind: values[kind] for kind in kinds if isinstance(values[kind], Mapping)}
    tables |= {kind: {} for kind in sorted(ends - set(tables))}
    counts = {}
    for kind, table in tables.items():
        held = _pyg_vertices(table)
        if held is None:  # as PyG does: the largest number that a relation holds
            sides = [edges.source for key, edges in relations.items() if key[0] == kind]
            sides += [edges.target for key, edges in relations.items() if key[2] == kind]
            held = max((int(side.max()) + 1 for side in sides if len(side)), default=0)
        counts[kind] = held
    fields = {kind: _vertex_fields(table, f"{where}: {kind}", notes) for kind, table in tables.items()}
    return TypedGraph(name, where, counts, relations, fields, tuple(notes))


def _pyg_edges(
    values: Mapping[Any, Any], weights: WeightChoice, where: str
) -> tuple[Relation, tuple[int, ...] | None, list[str]]:
    """Return the edges in the data of a graph or a relation, the shape of their matrix if there is one, and notes."""
    if values.get("edge_index") is not None:
        pairs = _numpy(values["edge_index"], f"{where}: edge_index")
        if getattr(pairs, "ndim", 0) != 2 or pairs.shape[0] != 2:
            raise GraphError(f"{where}: edge_index must have shape [2, edges]; got {list(getattr(pairs, 'shape', []))}")
        held = [key for key in values if key in EDGE_NAMES or key == weights.column]
        first = [key for key in EDGE_NAMES if values.get(key) is not None][:1]
        of_edges, notes = _edge_weights(values, held, weights, where, first)
        return Relation(pairs[0], pairs[1], of_edges), None, notes
    if values.get("adj_t") is not None:
        matrix: Any = _numpy(values["adj_t"], f"{where}: adj_t")
        if not hasattr(matrix, "tocoo"):
            raise GraphError(f"{where}: adj_t must be a sparse tensor")
        coordinates = matrix.tocoo()
        of_edges = coordinates.data if weights.among(["adj_t"], where, ["adj_t"]) else None
        return Relation(coordinates.col, coordinates.row, of_edges), tuple(matrix.shape), []
    known = ", ".join(str(key) for key in values) or "nothing"
    raise GraphError(f"{where}: no edge_index (or adj_t); got {known:.200}: save a Data or HeteroData")


def _pyg_vertices(values: Mapping[Any, Any]) -> int | None:
    """Return ``num_nodes``, else the rows of ``x`` or ``y``; None if there is neither."""
    if values.get("num_nodes") is not None:
        return int(values["num_nodes"])
    rows = next((values[key] for key in ("x", "y") if values.get(key) is not None), None)
    return None if rows is None else int(rows.shape[0])


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


def _vertex_fields(data: Mapping[Any, Any], where: str, notes: list[str]) -> dict[str, Any]:
    """Return the features, labels and masks in ``data``, as fields of :class:`Found`; of several splits, the first."""
    values: dict[str, Any] = {}
    for field, names in NAMES.items():
        held = [key for key in names if key in data and data[key] is not None]
        if len(held) > 1:
            raise GraphError(f"{where}: {field} under several names ({', '.join(held)}); keep one of them")
        if held:
            values[field] = found = _numpy(data[held[0]], f"{where}: {held[0]}")
            if field.endswith("_mask") and np.ndim(found) == 2 and found.shape[1] > 0:
                values[field] = found[:, 0]
                notes.append(f"{field}: first of {found.shape[1]} splits")
    return values


def _containers() -> list[Any]:
    try:
        # PyG: optional, and slow to load
        from torch_geometric.data import Data, HeteroData
        from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
        from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage
    except ImportError:
        return []
    return [Data, HeteroData, DataEdgeAttr, DataTensorAttr, BaseStorage, EdgeStorage, GlobalStorage, NodeStorage]


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
