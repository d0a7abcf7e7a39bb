"""DGL and PyTorch Geometric, as objects and as files."""

import os

import numpy as np
import pytest
from scipy import sparse

from simgnn.errors import GraphError
from simgnn.graph.load import load_graph

PATH_INDICES = [1, 0, 2, 1, 3, 2]

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


def tensors(labels=(0, 1, 2, 0, 1)):
    mask = torch.tensor([True, True, False, False, False])
    return {
        "feat": torch.arange(10, dtype=torch.float32).reshape(5, 2),
        "label": torch.tensor(labels),
        "train_mask": mask,
        "val_mask": torch.tensor([False, False, True, False, False]),
        "test_mask": torch.tensor([False, False, False, True, True]),
    }


def check(graph):
    assert (graph.vertices, graph.classes, graph.multilabel) == (5, 3, False)
    assert graph.csr.indices.tolist() == PATH_INDICES
    np.testing.assert_array_equal(graph.features, np.arange(10, dtype=np.float32).reshape(5, 2))
    assert graph.labels.tolist() == [0, 1, 2, 0, 1]
    assert graph.validation_mask.tolist() == [False, False, True, False, False]


@pytest.fixture(scope="module")
def dgl():
    return pytest.importorskip("dgl", reason="DGL is not installed (it ends at Python 3.11)")


def dgl_graph(dgl):
    graph = dgl.graph((torch.tensor([0, 1, 2]), torch.tensor([1, 2, 3])), num_nodes=5)
    graph.ndata.update(tensors())
    return graph


def test_dgl_object_and_file(dgl, tmp_path):
    from simgnn.graph.readers.frameworks import from_dgl, read_dgl

    check(from_dgl(dgl_graph(dgl)))
    path = tmp_path / "g.bin"
    dgl.save_graphs(str(path), [dgl_graph(dgl)])
    check(read_dgl(path))
    directed = from_dgl(dgl_graph(dgl), symmetrise=False)
    assert directed.csr.indptr.tolist() == [0, 0, 1, 2, 3, 3]


def test_a_dgl_file_is_read_in_a_process_of_its_own(dgl, tmp_path):
    path = tmp_path / "g.bin"
    dgl.save_graphs(str(path), [dgl_graph(dgl)])
    (tmp_path / "torch.py").write_text("raise SystemExit(7)\n")  # nothing beside the file is imported
    check(load_graph("dgl:g.bin", base=tmp_path))
    whole = bytearray(path.read_bytes())
    whole[4108] ^= 0x80  # the type of an array: DGL aborts
    path.write_bytes(whole)
    with pytest.raises(GraphError, match=r"g\.bin: not a readable DGL file \(its reader ended with SIGABRT\)"):
        load_graph("g.bin", base=tmp_path)


def test_bad_dgl(dgl, tmp_path):
    from simgnn.graph.readers.frameworks import from_dgl, read_dgl

    path = tmp_path / "g.bin"
    dgl.save_graphs(str(path), [dgl_graph(dgl)] * 2)
    with pytest.raises(GraphError, match="expected one graph; got 2"):
        read_dgl(path)
    whole = path.read_bytes()
    for data in (whole[:80], b"garbage" * 50, b""):
        path.write_bytes(data)
        with pytest.raises(GraphError, match="not a readable DGL file"):
            read_dgl(path)
    mixed = dgl.heterograph({("a", "to", "b"): (torch.tensor([0]), torch.tensor([1]))})
    with pytest.raises(GraphError, match=r"graph\.relation = 'a,to,b'"):
        from_dgl(mixed)
    twice = dgl_graph(dgl)
    twice.ndata["x"] = twice.ndata["feat"]
    with pytest.raises(GraphError, match="features under several names"):
        from_dgl(twice)
    nan = dgl_graph(dgl)
    nan.ndata["feat"][2, 0] = float("nan")
    with pytest.raises(GraphError, match="vertex 2 has nan"):
        from_dgl(nan)


@pytest.fixture(scope="module")
def pyg():
    return pytest.importorskip("torch_geometric.data", reason="PyTorch Geometric is not installed")


def pyg_data(pyg, **changes):
    held = tensors()
    fields = {"x": held.pop("feat"), "y": held.pop("label"), **held}
    return pyg.Data(**{"edge_index": torch.tensor([[0, 1, 2], [1, 2, 3]]), **fields, **changes})


def test_pyg_object_and_files(pyg, tmp_path):
    from simgnn.graph.readers.frameworks import from_pyg

    data = pyg_data(pyg)
    check(from_pyg(data))
    held = {"data.pt": data, "dict.pt": data.to_dict(), "list.pt": [data]}
    collated, slices = pyg.InMemoryDataset.collate([data])
    held["processed.pt"] = (collated.to_dict(), slices, pyg.Data)
    for name, value in held.items():
        torch.save(value, tmp_path / name)
        check(load_graph(name, base=tmp_path))
        check(load_graph(f"pyg:{name}", base=tmp_path))
    assert from_pyg(data, symmetrise=False).csr.indptr.tolist() == [0, 0, 1, 2, 3, 3]


@pytest.mark.filterwarnings("ignore:Sparse")
def test_pyg_sparse_features_adjacency_labels_and_splits(pyg):
    from simgnn.graph.readers.frameworks import from_pyg

    graph = from_pyg(pyg_data(pyg, x=torch.eye(5).to_sparse_csr()))
    assert isinstance(graph.features, sparse.csr_array)
    assert graph.features.nnz == 5
    assert from_pyg(pyg_data(pyg, x=torch.eye(5).to_sparse_coo())).features.nnz == 5
    several = from_pyg(pyg_data(pyg, y=torch.tensor([[1, 0], [1, 1], [0, 0], [0, 1], [1, 0]])))
    assert several.multilabel
    assert several.classes == 2
    column = from_pyg(pyg_data(pyg, y=torch.tensor([[0], [1], [2], [0], [1]])))
    assert column.labels.shape == (5,)
    splits = torch.zeros(5, 10, dtype=torch.bool)
    splits[0] = True
    graph = from_pyg(pyg_data(pyg, train_mask=splits))
    assert graph.train_mask.tolist() == [True, False, False, False, False]
    assert "train_mask: first of 10 splits" in graph.notes
    transposed = torch.zeros(5, 5)
    transposed[[1, 2, 3], [0, 1, 2]] = 1
    check(from_pyg(pyg_data(pyg, edge_index=None, adj_t=transposed.to_sparse_csr())))


def test_bad_pyg(pyg, tmp_path):
    from simgnn.graph.readers.frameworks import from_pyg

    path = tmp_path / "bad.pt"
    torch.save({"edge_index": torch.zeros(2, 0, dtype=torch.long), "evil": os.system}, path)
    with pytest.raises(GraphError, match="not loaded from files"):
        load_graph(str(path))
    torch.save(pyg_data(pyg), path)
    whole = path.read_bytes()
    for data in (whole[: len(whole) // 2], b"garbage", b""):
        path.write_bytes(data)
        with pytest.raises(GraphError, match=r"bad\.pt"):
            load_graph(str(path))
    torch.save([pyg_data(pyg)] * 2, path)
    with pytest.raises(GraphError, match="expected one graph; got 2"):
        load_graph(str(path))
    torch.save(torch.zeros(3), path)
    with pytest.raises(GraphError, match="expected a torch_geometric Data"):
        load_graph(str(path))
    with pytest.raises(GraphError, match="no edge_index"):
        from_pyg({"x": torch.zeros(2, 2)})
    with pytest.raises(GraphError, match=r"shape \[2, edges\]"):
        from_pyg({"edge_index": torch.zeros(3, 2, dtype=torch.long)})
    with pytest.raises(GraphError, match=r"got the vertex id 7, expected 0\.\.4"):
        from_pyg(pyg_data(pyg, edge_index=torch.tensor([[0], [7]])))
    with pytest.raises(GraphError, match="x: cannot become an array"):
        from_pyg(pyg_data(pyg, x=torch.zeros(5, 2, dtype=torch.bfloat16)))


@pytest.mark.parametrize(
    "fields",
    [
        {"num_nodes": "five"},
        {"num_nodes": [5]},
        {"num_nodes": torch.tensor([5, 6])},
        {"num_nodes": float("nan")},
        {"num_nodes": 10**30},
        {"num_nodes": 10**15},
        {"num_nodes": -1},
        {"edge_index": torch.tensor([[0.0], [float("nan")]])},
        {"edge_index": "0 1"},
        {"edge_index": {"a": 1}},
        {"edge_index": torch.tensor([[0], [2**62]])},
        {"x": [[1.0]] * 5},
        {"x": torch.full((5, 1), float("inf"))},
        {"x": torch.ones(5, 1, dtype=torch.complex64)},
        {"y": "labels"},
        {"y": torch.tensor([2**62] * 5)},
        {"y": torch.tensor([float("nan")] * 5)},
        {"train_mask": torch.tensor([0, 1])},
        {1: 2, None: 3, "edge_index": None},
        {"adj_t": torch.ones(2), "edge_index": None},
    ],
)
def test_odd_fields_of_pyg_are_told_with_the_file(fields, tmp_path):
    path = tmp_path / "odd.pt"
    values = {"edge_index": torch.tensor([[0, 1, 2], [1, 2, 3]]), "x": torch.ones(5, 1), "y": torch.zeros(5).long()}
    torch.save(values | fields, path)
    with pytest.raises(GraphError) as caught:
        load_graph(str(path))
    assert "odd.pt" in str(caught.value)
