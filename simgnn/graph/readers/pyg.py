"""PyTorch Geometric graphs: a ``Data`` object, or a file of ``torch.save``, loaded without running any code of it."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scipy import sparse

from simgnn.errors import GraphError
from simgnn.graph.build import assemble_edges
from simgnn.graph.graph import Graph
from simgnn.graph.readers.vertex_data import graph_with


def read_pyg(path: Path, *, symmetrise: bool = True) -> Graph:
    """Read a ``.pt`` file: a ``Data``, its ``to_dict()``, a list of one, ``(data, slices, ...)`` of an in-memory set.

    ``torch.load(weights_only=True)``, so nothing but tensors and PyG's own containers is accepted. Raises
    :class:`GraphError`.
    """
    # torch: loaded when such a file is read
    import torch

    try:
        with torch.serialization.safe_globals(_containers()):
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, ModuleNotFoundError, AttributeError) as error:
        raise GraphError(
            f"{path}: holds Python objects that are not loaded from files ({_line(error)}): "
            "save data.to_dict() with torch.save, or install torch-geometric if they are its own"
        ) from error
    except (RuntimeError, OSError, EOFError, ValueError, KeyError) as error:
        raise GraphError(
            f"{path}: not a readable file of torch.save ({_line(error)}): is it cut off? write it again"
        ) from error
    return from_pyg(_one(loaded, path), name=path.stem, symmetrise=symmetrise, where=str(path))


def from_pyg(data: Any, *, name: str = "pyg", symmetrise: bool = True, where: str = "Data") -> Graph:
    """Take over a ``Data`` or a mapping with ``edge_index`` int [2, E] (source row 0) or a transposed ``adj_t``.

    Vertex data: ``x`` dense or sparse, ``y``, ``train_mask``, ``val_mask``, ``test_mask`` (first of several splits).
    ``num_nodes``, else the rows of ``x`` or ``y``, else largest id + 1. Edge attributes are left out. Raises
    :class:`GraphError`.
    """
    values = data if isinstance(data, Mapping) else data.to_dict() if hasattr(data, "to_dict") else None
    if values is None:
        raise GraphError(f"{where}: expected a torch_geometric Data or its to_dict(); got {type(data).__name__}")
    if "edge_index" in values and values["edge_index"] is not None:
        pairs = _numpy(values["edge_index"], f"{where}: edge_index")
        if getattr(pairs, "ndim", 0) != 2 or pairs.shape[0] != 2:
            raise GraphError(f"{where}: edge_index must have shape [2, edges]; got {list(getattr(pairs, 'shape', []))}")
        source, target = pairs[0], pairs[1]
    elif values.get("adj_t") is not None:
        matrix: Any = _numpy(values["adj_t"], f"{where}: adj_t")
        shape: tuple[int, ...] = getattr(matrix, "shape", ())
        if not hasattr(matrix, "tocoo") or shape[0] != shape[1]:
            raise GraphError(f"{where}: adj_t must be a square sparse tensor")
        coordinates = matrix.tocoo()
        source, target = coordinates.col, coordinates.row
        values = {**values, "num_nodes": shape[0]}
    else:
        known = ", ".join(str(key) for key in values) or "nothing"
        raise GraphError(f"{where}: no edge_index (or adj_t); got {known}: only homogeneous graphs can be read")
    vertices = values.get("num_nodes")
    if vertices is None:
        rows = next((values[key] for key in ("x", "y") if values.get(key) is not None), None)
        vertices = None if rows is None else int(rows.shape[0])
    edges = assemble_edges(source, target, None if vertices is None else int(vertices), symmetrise, key=where)
    return graph_with(edges, values, name, where, _numpy)


def _line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


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
    """The one graph in what a file holds."""
    if isinstance(loaded, tuple) and loaded:
        slices = loaded[1] if len(loaded) > 1 else None
        if slices:
            many = max((len(slices[key]) - 1 for key in slices), default=1)
            if many > 1:
                raise GraphError(f"{path}: expected one graph; got {many}: save the one to train on alone")
        loaded = loaded[0]
    if isinstance(loaded, list):
        if len(loaded) != 1:
            raise GraphError(f"{path}: expected one graph; got {len(loaded)}: save the one to train on alone")
        loaded = loaded[0]
    return loaded


def _numpy(tensor: Any, where: str) -> Any:
    # torch: loaded when such a file is read
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
