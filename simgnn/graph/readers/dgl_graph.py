"""DGL graphs: a ``.bin`` file of ``dgl.save_graphs`` or a ``DGLGraph``."""

from pathlib import Path
from typing import Any

from simgnn.errors import GraphError
from simgnn.graph.build import assemble_edges
from simgnn.graph.graph import Graph
from simgnn.graph.readers.vertex_data import graph_with


def read_dgl(path: Path, *, symmetrise: bool = True) -> Graph:
    """Read the one homogeneous graph of a ``.bin`` file. Raises :class:`GraphError`, also where DGL is missing."""
    try:
        # DGL: optional, and slow to load
        import dgl
    except ImportError as error:
        raise GraphError(
            f"{path}: reading it needs DGL, which cannot be imported ({error}): install dgl==1.1.3 on Python 3.11, "
            "or convert the graph there with simgnn.graph.store.save_graph"
        ) from error
    try:
        graphs, _ = dgl.load_graphs(str(path))
    except (dgl.DGLError, OSError, MemoryError, ValueError) as error:
        told = (str(error) or type(error).__name__).splitlines()[0]
        raise GraphError(f"{path}: not a readable DGL file ({told}): is it cut off? write it again") from error
    if len(graphs) != 1:
        raise GraphError(f"{path}: expected one graph; got {len(graphs)}: save the one to train on alone")
    return from_dgl(graphs[0], name=path.stem, symmetrise=symmetrise, where=str(path))


def from_dgl(graph: Any, *, name: str = "dgl", symmetrise: bool = True, where: str = "DGLGraph") -> Graph:
    """Take over a homogeneous ``DGLGraph``.

    Vertex data: ``feat`` (or ``x``), ``label`` (or ``y``), ``train_mask``, ``val_mask``, ``test_mask``; edge data are
    left out. Raises :class:`GraphError`.
    """
    if not graph.is_homogeneous:
        raise GraphError(f"{where}: expected one type of vertices and edges; got {graph.ntypes} and {graph.etypes}")
    source, target = graph.edges()
    edges = assemble_edges(source.cpu().numpy(), target.cpu().numpy(), int(graph.num_nodes()), symmetrise, key=where)
    return graph_with(edges, graph.ndata, name, where, _numpy)


def _numpy(tensor: Any, where: str) -> Any:
    try:
        return tensor.detach().cpu().numpy()
    except (TypeError, RuntimeError) as error:
        raise GraphError(f"{where}: cannot become a NumPy array ({error}): convert it to float32") from error
