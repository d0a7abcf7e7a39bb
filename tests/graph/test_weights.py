"""Weights of edges: every format that has them, what becomes of repeats and reverses, what is rejected."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet as pq
from scipy import sparse
from scipy.io import mmwrite

from simgnn.errors import GraphError
from simgnn.graph.build import assemble_edges, transpose_csr
from simgnn.graph.csr import CSR
from simgnn.graph.graph import Graph
from simgnn.graph.load import load_graph
from simgnn.graph.readers import dgl_process, frameworks
from simgnn.graph.store import graph_digest, open_graph, save_graph
from simgnn.graph.weights import weighted_degrees
from simgnn.partition.local.edge_cut import build_local_graphs
from simgnn.partition.local.vertex_cut import build_replica_graphs
from simgnn.partition.partition import partitioned
from simgnn.partition.partitioners.ebv import Ebv
from simgnn.partition.partitioners.random import Random
from simgnn.partition.store import PartitionArtifact, partition_artifact

# 0 -> 1 twice, a self loop, 2 -> 1 and 1 -> 2 with weights of their own, 3 -> 2 one way; vertex 4 has no edge
SOURCE, TARGET = [0, 0, 1, 2, 1, 3], [1, 1, 1, 1, 2, 2]
WEIGHT = [0.5, 0.25, 9.0, 2.0, 3.0, 0.1]
DIRECTED = {(0, 1): 0.75, (2, 1): 2.0, (1, 2): 3.0, (3, 2): 0.1}
BOTH = {**DIRECTED, (1, 0): 0.75, (2, 3): 0.1}
ROWS = list(zip(SOURCE, TARGET, WEIGHT, strict=True))


def found(graph: Graph) -> dict[tuple[int, int], float]:
    """Edges (source, target) with their weights."""
    csr = graph.csr
    assert csr.weights is not None
    target = np.repeat(np.arange(csr.rows), csr.degrees()).tolist()
    return dict(zip(zip(csr.indices.tolist(), target, strict=True), csr.weights.tolist(), strict=True))


def text(folder: Path, name: str, head: str, separator: str = ",") -> str:
    data = head + "".join(separator.join(map(str, row)) + "\n" for row in ROWS)
    path = folder / name
    path.write_bytes(gzip.compress(data.encode()) if name.endswith(".gz") else data.encode())
    return str(path)


def parquet(folder: Path, name: str = "weight") -> str:
    table = pa.table({"src": SOURCE, name: WEIGHT, "dst": TARGET, "time": [0] * 6})
    pq.write_table(table.replace_schema_metadata({"vertices": "5"}), folder / "g.parquet")
    return str(folder / "g.parquet")


def arrays(folder: Path, name: str = "weights") -> str:
    order = np.argsort(TARGET, kind="stable")
    indptr = np.searchsorted(np.array(TARGET)[order], np.arange(6))
    held: Any = {name: np.array(WEIGHT)[order], "indptr": indptr, "indices": np.array(SOURCE)[order]}
    np.savez(folder / "g.npz", **held)
    return str(folder / "g.npz")


def scipys(folder: Path) -> str:
    sparse.save_npz(folder / "s.npz", sparse.csr_array((WEIGHT, (TARGET, SOURCE)), shape=(5, 5)))
    return str(folder / "s.npz")


def matrix_market(folder: Path) -> str:
    mmwrite(folder / "g.mtx", sparse.coo_array((WEIGHT, (SOURCE, TARGET)), shape=(5, 5)))
    return str(folder / "g.mtx")


def npy(folder: Path) -> str:
    np.save(folder / "g.npy", np.array(ROWS, dtype=np.float64))
    return str(folder / "g.npy")


def pyg(folder: Path, name: str = "edge_weight", shape: tuple[int, ...] = (6,)) -> str:
    weight = torch.tensor(WEIGHT, dtype=torch.float64).reshape(shape)
    torch.save({"edge_index": torch.tensor([SOURCE, TARGET]), name: weight, "num_nodes": 5}, folder / "g.pt")
    return str(folder / "g.pt")


def pyg_transposed(folder: Path) -> str:
    merged = sparse.coo_array((WEIGHT, (TARGET, SOURCE)), shape=(5, 5)).tocsr()
    csr = torch.sparse_csr_tensor(*(torch.from_numpy(part) for part in (merged.indptr, merged.indices, merged.data)))
    torch.save({"adj_t": torch.sparse_csr_tensor(csr.crow_indices(), csr.col_indices(), csr.values(), (5, 5))},
               folder / "t.pt")  # fmt: skip
    return str(folder / "t.pt")


def dgls(folder: Path, name: str = "w", shape: tuple[int, ...] = (6, 1)) -> str:
    dgl = pytest.importorskip("dgl", reason="DGL is not installed (it ends at Python 3.11)")
    graph = dgl.graph((torch.tensor(SOURCE), torch.tensor(TARGET)), num_nodes=5)
    graph.edata[name] = torch.tensor(WEIGHT, dtype=torch.float64).reshape(shape)
    dgl.save_graphs(str(folder / "g.bin"), [graph])
    return str(folder / "g.bin")


@pytest.fixture(autouse=True)
def dgl_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read DGL files here: tests/graph/test_frameworks.py shows that a process of its own reads the same."""
    monkeypatch.setattr(dgl_process, "read_dgl", frameworks.read_dgl)


FORMATS = {
    "csv": lambda folder: text(folder, "g.csv", "source,target,weight\n"),
    "csv, no header": lambda folder: text(folder, "g.csv", "# u v w\n"),
    "tsv": lambda folder: text(folder, "g.tsv.gz", "u\tv\tw\n", "\t"),
    "parquet": parquet,
    "npz": arrays,
    "npz of scipy": scipys,
    "mtx": matrix_market,
    "npy": npy,
    "pyg, edge_weight": pyg,
    "pyg, edge_attr": lambda folder: pyg(folder, "edge_attr", (6, 1)),
    "pyg, adj_t": pyg_transposed,
    "dgl": dgls,
}
OF_LISTS = ("csv", "csv, no header", "tsv", "npy")


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_that_has_weights(name: str, tmp_path: Path) -> None:
    source = FORMATS[name](tmp_path)
    sizes = {"vertices": 5} if name in OF_LISTS else {}
    directed = load_graph(source, options={**sizes, "symmetrise": False})
    assert found(directed) == DIRECTED
    both = load_graph(source, options=sizes)
    assert found(both) == BOTH
    assert both.facts().weighted
    assert "edges have weights, 0.1 to 3" in both.notes
    without = load_graph(source, options={**sizes, "weights": "ignore"})
    assert without.csr.weights is None
    plain = assemble_edges(SOURCE, TARGET, 5)
    assert graph_digest(without) == graph_digest(Graph("plain", plain.csr)) != graph_digest(both)
    assert any("self loops dropped" in note for note in both.notes)
    if "scipy" not in name and "adj_t" not in name:  # these merge repeats themselves
        assert any("duplicate edges dropped, their weights added up" in note for note in both.notes)


def test_ogb_edge_features_of_one_column(tmp_path: Path) -> None:
    raw = tmp_path / "ogbn_own" / "raw"
    raw.mkdir(parents=True)
    pairs = "".join(f"{u},{v}\n" for u, v, _ in ROWS)
    for name, content in (("edge", pairs), ("num-node-list", "5\n"), ("edge-feat", "\n".join(map(str, WEIGHT)))):
        (raw / f"{name}.csv.gz").write_bytes(gzip.compress(content.encode()))
    options = {"root": str(tmp_path)}
    assert found(load_graph("ogb:ogbn-own", options=options)) == BOTH
    assert load_graph("ogb:ogbn-own", options={**options, "weights": "ignore"}).csr.weights is None
    (raw / "edge-feat.csv.gz").write_bytes(gzip.compress("\n".join(f"{w},1" for w in WEIGHT).encode()))
    several = load_graph("ogb:ogbn-own", options=options)
    assert several.csr.weights is None
    assert "edge features left out: 2 columns, weights have one" in several.notes


def test_a_column_is_chosen_by_name_or_number(tmp_path: Path) -> None:
    (tmp_path / "g.csv").write_text("source,target,weight,cost\n0,1,2,3\n1,2,2,5\n")
    source, options = str(tmp_path / "g.csv"), {"symmetrise": False}
    assert found(load_graph(source, options={**options, "weight_column": "cost"})) == {(0, 1): 3, (1, 2): 5}
    assert "columns left out: weight" in load_graph(source, options={"weight_column": "cost"}).notes
    (tmp_path / "h.csv").write_text("0,1,2,3\n1,2,2,5\n")
    listed = str(tmp_path / "h.csv")
    assert found(load_graph(listed, options={**options, "weight_column": 4})) == {(0, 1): 3, (1, 2): 5}
    unweighted = load_graph(listed, options=options)
    assert unweighted.csr.weights is None
    assert "columns left out: column 3, column 4" in unweighted.notes
    assert found(load_graph(parquet(tmp_path, "cost"), options={"weight_column": "cost"})) == BOTH
    assert found(load_graph(arrays(tmp_path, "cost"), options={"weight_column": "cost"})) == BOTH
    assert found(load_graph(pyg(tmp_path, "cost"), options={"weight_column": "cost"})) == BOTH
    assert found(load_graph(dgls(tmp_path, "cost"), options={"weight_column": "cost"})) == BOTH
    assert "data of edges left out: cost" in load_graph(dgls(tmp_path, "cost")).notes


def test_several_columns_of_a_framework_are_noted(tmp_path: Path) -> None:
    assert "edge_attr left out: 2 columns, weights have one" in load_graph(pyg_wide(tmp_path)).notes
    with pytest.raises(GraphError, match=r"one an edge, \[6\]; got float32 \[6, 2\]"):
        load_graph(pyg_wide(tmp_path), options={"weight_column": "edge_attr"})


def pyg_wide(folder: Path) -> str:
    pairs = torch.tensor([SOURCE, TARGET])
    torch.save({"edge_index": pairs, "edge_attr": torch.ones(6, 2), "num_nodes": 5}, folder / "wide.pt")
    return str(folder / "wide.pt")


@pytest.mark.parametrize(
    ("content", "options", "told"),
    [
        ("source,target,weight\n0,1,1\n1,2,nan\n", {}, r"the edge 1 -> 2 has nan.*graph\.weights = 'ignore'"),
        ("source,target,weight\n0,1,1\n1,2,inf\n", {}, "the edge 1 -> 2 has inf"),
        ("source,target,weight\n0,1,1e308\n0,1,1e308\n", {}, "duplicate edges add up to more"),
        ("source,target,weight\n0,1,one\n", {}, "with weights, a number"),
        ("source,target,weight,w\n0,1,1,1\n", {}, r"several names \(weight, w\): state graph\.weight_column"),
        ("source,target,weight\n0,1,1\n", {"weight_column": "cost"}, "got 'cost', expected one of: weight"),
        ("0,1,1\n", {"weight_column": 4}, "got 4, expected one of: 3"),
    ],
)
def test_bad_weights(content: str, options: dict[str, Any], told: str, tmp_path: Path) -> None:
    (tmp_path / "g.csv").write_text(content)
    with pytest.raises(GraphError, match=told):
        load_graph(str(tmp_path / "g.csv"), options=options)
    if "nan" in content:
        assert load_graph(str(tmp_path / "g.csv"), options={"weights": "ignore"}).edges == 4


def test_bad_weights_of_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "g.npy", np.array([[0.5, 1, 1]]))
    with pytest.raises(GraphError, match=r"whole numbers up to 2\*\*53; got 0.5"):
        load_graph(str(tmp_path / "g.npy"))
    mmwrite(tmp_path / "c.mtx", sparse.coo_array(([1j], ([0], [1])), shape=(2, 2)))
    with pytest.raises(GraphError, match=r"weights must be real numbers.*complex128"):
        load_graph(str(tmp_path / "c.mtx"))
    sparse.save_npz(tmp_path / "c.npz", sparse.csc_array(([2.0], ([0], [1])), shape=(2, 2)))
    with pytest.raises(GraphError, match="expected a sparse matrix in CSR format"):
        load_graph(str(tmp_path / "c.npz"))
    with pytest.raises(GraphError, match=r"graph\.weight_column does not apply"):
        load_graph(matrix_market(tmp_path), options={"weight_column": "w"})
    with pytest.raises(GraphError, match=r"graph\.weights does not apply"):
        load_graph("synthetic:rmat", options={"weights": "ignore", "vertices": 10, "edges": 10})


def test_weights_of_1_are_none(tmp_path: Path) -> None:
    (tmp_path / "g.csv").write_text("source,target,weight\n0,1,1\n1,2,1.0\n3,2,1\n")
    (tmp_path / "h.csv").write_text("source,target\n0,1\n1,2\n3,2\n")
    one, other = (load_graph(str(tmp_path / name)) for name in ("g.csv", "h.csv"))
    assert one.csr.weights is None
    assert graph_digest(one) == graph_digest(other)


def test_a_saved_graph_keeps_its_weights(tmp_path: Path) -> None:
    graph = load_graph(FORMATS["csv"](tmp_path), options={"vertices": 5, "symmetrise": False})
    save_graph(graph, tmp_path / "saved")
    saved = open_graph(tmp_path / "saved")
    assert found(saved) == DIRECTED
    assert graph_digest(saved) == graph_digest(graph)
    assert found(load_graph(str(tmp_path / "saved"))) == BOTH
    assert load_graph(str(tmp_path / "saved"), options={"weights": "ignore"}).csr.weights is None
    np.save(tmp_path / "saved" / "weights.npy", np.ones(3))
    with pytest.raises(GraphError, match="3 weights, but there are 4 edges"):
        open_graph(tmp_path / "saved")


def random_graph(symmetrise: bool) -> Graph:
    draw = np.random.default_rng(3)
    built = assemble_edges(*draw.integers(0, 50, (2, 300)), 52, symmetrise, weights=draw.exponential(size=300))
    return Graph("random", built.csr, symmetric=built.symmetric)


def matrix(csr: CSR) -> Any:
    return sparse.csr_array((csr.weights, csr.indices, csr.indptr), (csr.rows, csr.columns)).toarray()


@pytest.mark.parametrize("symmetrise", [True, False])
def test_every_weight_goes_with_its_edge(symmetrise: bool, tmp_path: Path) -> None:
    """To the transpose, to the ranks of both kinds of cuts, and through the cache."""
    graph = random_graph(symmetrise)
    whole, hosts = matrix(graph.csr), np.zeros(3, dtype=np.int64)
    assert np.array_equal(matrix(transpose_csr(graph.csr)), whole.T)
    degrees = weighted_degrees(graph.csr)
    np.testing.assert_allclose(degrees, whole.sum(axis=1))
    cut = partitioned(Random(), graph, hosts, 0)
    for reorder in ("rcm", "none"):
        for local in build_local_graphs(graph.csr, cut, reorder):
            both = np.concatenate((local.owned, local.halo))
            assert np.array_equal(matrix(local.csr), whole[np.ix_(local.owned, both)])
            assert np.array_equal(local.weighted_degree, degrees[both])
    total = np.zeros_like(whole)
    cut = partitioned(Ebv(), graph, hosts, 0)
    for replica in build_replica_graphs(graph, cut):
        np.add.at(total, np.ix_(replica.vertices, replica.vertices), matrix(replica.csr))
        assert np.array_equal(replica.weighted_degree, degrees[replica.vertices])
    assert np.array_equal(total, whole)
    for policy in (Random(), Ebv()):
        made = partition_artifact(graph, policy, hosts, 0, tmp_path)
        opened = PartitionArtifact.open(made.path)
        assert opened.stats.facts.weighted
        for rank in range(3):
            assert np.array_equal(opened.local(rank).csr.weights, made.local(rank).csr.weights)
            assert opened.local(rank).weighted_degree.dtype == np.float64
