"""Layers over weighted edges: PyTorch Geometric's scores and gradients on any ranks; weights of 1 change no bit."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executor.layers import LocalAdjacency
from executor.layers.blocks import load_blocks
from executor.layers.local import add_halo, aggregate, sum_own
from executor.state.model import LayerNetwork
from simgnn.graph.csr import CSR
from simgnn.graph.graph import Graph
from simgnn.graph.weights import weighted_degrees
from simgnn.model.spec import LayerSpec
from simgnn.partition.local.edge_cut import build_local_graphs
from simgnn.partition.local.vertex_cut import RankGraph, build_replica_graphs
from simgnn.partition.partition import Partition, partitioned
from simgnn.partition.partitioners.ebv import Ebv
from simgnn.partition.partitioners.random import Random
from simgnn.program.kinds import Segment

pytest.importorskip("torch_geometric", reason="the reference is made of PyTorch Geometric's layers")
from tests.weighted import VERTICES, dense_features, reference_model, weighted_graph

F64, CPU = torch.float64, torch.device("cpu")
LIMIT = 1e-12
KINDS = ("gcn", "sage", "gin")
SCALINGS = ("gcn", "mean", "sum")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return weighted_graph(tmp_path_factory.mktemp("weighted"))


def specs(kind: str, order: str = "aggregate-first") -> list[LayerSpec]:
    hidden = {"hidden": 7} if kind == "gin" else {}
    return [
        LayerSpec(1, kind, 12, 7, order, prepared_width=7, weighted=True, **hidden),
        LayerSpec(2, kind, 7, 5, order, activation=False, prepared_width=5, weighted=True, **hidden),
    ]


def parts_of(graph: Graph, cut: str, ranks: int) -> tuple[Partition, list[RankGraph]]:
    hosts = np.zeros(ranks, dtype=np.int64)
    partition = partitioned(Random() if cut == "edge-cut" else Ebv(), graph, hosts, 0)
    build = build_local_graphs(graph.csr, partition) if cut == "edge-cut" else build_replica_graphs(graph, partition)
    return partition, list(build)


def forward(parts: Sequence[RankGraph], networks: Sequence[LayerNetwork], rows: torch.Tensor) -> torch.Tensor:
    """Scores [V, classes]: every rank computes its rows; what travels between ranks is copied, or added up."""
    for layer in networks[0].layers:
        spec: LayerSpec = layer.spec
        summed = rows.new_zeros(VERTICES, spec.prepared_width if spec.has_prepare else spec.width_in)
        for part, network in zip(parts, networks, strict=True):
            inputs = [rows[torch.from_numpy(part.vertices)]]
            if part.complete:
                inputs.append(rows[torch.from_numpy(part.halo)])
            if spec.has_prepare:
                inputs = list(network.segment(spec.index, Segment.PREPARE)(*inputs))
            found = network.segment(spec.index, Segment.AGGREGATE)(*inputs)
            summed = summed.index_add(0, torch.from_numpy(part.vertices), found)
        out = rows.new_zeros(VERTICES, spec.width_out)
        for part, network in zip(parts, networks, strict=True):
            masters = torch.from_numpy(part.vertices[: part.masters])
            own = [rows[masters]] if spec.uses_own_rows else []
            out = out.index_add(0, masters, network.segment(spec.index, Segment.UPDATE)(summed[masters], *own))
        rows = out
    return rows


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("cut", ["edge-cut", "vertex-cut"])
@pytest.mark.parametrize(
    ("kind", "order"),
    [("gcn", "aggregate-first"), ("gcn", "transform-first"), ("sage", "transform-first"), ("gin", "aggregate-first")],
)
def test_scores_and_gradients_are_those_of_pyg(kind: str, order: str, cut: str, ranks: int, graph: Graph) -> None:
    layers, rows = specs(kind, order), dense_features(graph)
    _, parts = parts_of(graph, cut, ranks)
    networks = [LayerNetwork(layers, part, 0, F64, CPU) for part in parts]
    got, theirs = forward(parts, networks, rows), reference_model(layers)
    expected = theirs(rows)
    assert (got - expected).abs().max() <= LIMIT * expected.abs().max()
    pull = torch.randn(VERTICES, 5, dtype=F64, generator=torch.Generator().manual_seed(1))
    torch.autograd.backward([got, expected], [pull, pull])
    for number, parameter in enumerate(theirs.values):
        ours = sum(list(torch.nn.ModuleList(network.layers).parameters())[number].grad for network in networks)
        assert (ours - parameter.grad).abs().max() <= LIMIT * parameter.grad.abs().max()


def adjacency_of(csr: CSR, rows: int = VERTICES, **options: Any) -> LocalAdjacency:
    """The first rows of a graph; the others are their halo."""
    edges, weights = csr.indptr[rows], csr.weights
    local = CSR(csr.indptr[: rows + 1].copy(), csr.indices[:edges].copy(), csr.columns)
    local = local if weights is None else replace(local, weights=weights[:edges].copy())
    return LocalAdjacency(
        local, csr.degrees(), **{"dtype": F64, "weighted_degree": weighted_degrees(csr), **options}
    )  # fmt: skip


def sums(over: LocalAdjacency, scaling: str, rows: torch.Tensor) -> list[torch.Tensor]:
    """Sums, and the gradients of own and halo rows."""
    own, halo = (part.clone().requires_grad_() for part in (rows[: over.rows], rows[over.rows :]))
    found = aggregate(over, own, halo if len(halo) else None, scaling)
    found.backward(torch.cos(torch.arange(found.numel(), dtype=F64)).reshape(found.shape).to(found.dtype))
    return [found.detach(), own.grad, *([halo.grad] if len(halo) else [])]


@pytest.mark.parametrize("kernel", ["numba", "torch"])
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("rows", [VERTICES, 25])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_weights_of_1_change_no_bit(graph: Graph, scaling: str, rows: int, kernel: str, dtype: torch.dtype) -> None:
    ones, x = replace(graph.csr, weights=np.ones(graph.edges)), dense_features(graph).to(dtype)
    with_ones, without = (
        sums(adjacency_of(csr, rows, kernel=kernel, dtype=dtype), scaling, x) for csr in (ones, graph.csr.unweighted())
    )
    assert all(torch.equal(one, other) for one, other in zip(with_ones, without, strict=True))


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("rows", [VERTICES, 25])
def test_kernels_agree_and_own_rows_may_come_first(graph: Graph, scaling: str, rows: int) -> None:
    x = dense_features(graph)
    ours, torchs = (sums(adjacency_of(graph.csr, rows, kernel=name), scaling, x) for name in ("numba", "torch"))
    for one, other in zip(ours, torchs, strict=True):
        assert torch.allclose(one, other, rtol=LIMIT, atol=LIMIT)
    if rows < VERTICES:
        over = adjacency_of(graph.csr, rows)
        assert torch.equal(add_halo(over, x[rows:], sum_own(over, x[:rows], scaling), scaling), ours[0])


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("complete", [True, False])
def test_constant_sparse_rows_have_the_sums_of_dense_ones(
    scaling: str, complete: bool, tmp_path: Path, graph: Graph
) -> None:
    rows = dense_features(weighted_graph(tmp_path, sparse_features=True))
    over = adjacency_of(graph.csr, 25, complete=complete)
    found = aggregate(over, *(part.to_sparse_csr() for part in (rows[:25], rows[25:])), scaling)
    assert torch.allclose(found if found.layout == torch.strided else found.to_dense(), sums(over, scaling, rows)[0])


def test_the_reverse_is_shared_only_if_weights_are_the_same_both_ways(graph: Graph) -> None:
    ring = CSR(np.array([0, 2, 4, 6]), np.array([1, 2, 0, 2, 0, 1], np.int32), 3)
    for weights, shared in (([1, 2, 1, 3, 2, 3], True), ([1, 2, 1, 3, 2, 4], False)):
        weighted = replace(ring, weights=np.array(weights, np.float64))
        over = LocalAdjacency(weighted, ring.degrees(), dtype=F64, weighted_degree=weighted_degrees(weighted))
        assert (over.transpose is over.structure) == shared
        matrix = torch.zeros(3, 3, dtype=F64)
        matrix[[0, 0, 1, 1, 2, 2], ring.indices.tolist()] = torch.tensor(weights, dtype=F64)
        total, gradient = sums(over, "sum", torch.eye(3, dtype=F64))
        assert torch.equal(total, matrix)
        assert torch.allclose(gradient, matrix.T @ torch.cos(torch.arange(9, dtype=F64)).reshape(3, 3))


def matrix_of(graph: Graph, scaling: str) -> torch.Tensor:
    whole = torch.zeros(VERTICES, VERTICES, dtype=F64)
    whole[np.repeat(np.arange(VERTICES), graph.csr.degrees()), graph.csr.indices] = torch.from_numpy(graph.csr.weights)
    degree = whole.sum(1)
    if scaling == "gcn":
        root = torch.diag((degree + 1).rsqrt())
        return root @ (whole + torch.eye(VERTICES, dtype=F64)) @ root
    return whole / torch.where(degree > 0, degree, 1.0)[:, None] if scaling == "mean" else whole


@pytest.mark.parametrize("kernel", ["numba", "torch"])
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("ranks", [1, 3])
def test_sums_over_blocks_are_sums_over_the_graph(graph: Graph, scaling: str, ranks: int, kernel: str) -> None:
    _, parts = parts_of(graph, "edge-cut", ranks)
    rows, whole = dense_features(graph), matrix_of(graph, scaling)
    local: Callable[[int], Any] = parts.__getitem__
    for rank in range(ranks):
        blocks = load_blocks(local, rank, ranks, kernel=kernel, dtype=F64)
        for transposed, matrix in ((False, whole), (True, whole.T)):
            total = None
            for root in range(ranks):
                last = root == ranks - 1
                total = blocks.block(scaling, root, transposed).add(rows[parts[root].vertices], total, last)
            assert torch.allclose(total, (matrix @ rows)[parts[rank].vertices], rtol=LIMIT, atol=LIMIT)


def _documented(name: str) -> Any:
    """The class of the page on edge weights."""
    page = (Path(__file__).parents[3] / "docs" / "edge_weights.md").read_text(encoding="utf-8")
    found: dict[str, Any] = {}
    exec(page.split("```python\n")[1].split("```")[0], found)
    return found[name]


def test_a_layer_of_the_users_own_gets_the_weights(graph: Graph) -> None:
    over, x = adjacency_of(graph.csr, 25), dense_features(graph)
    csr = over.neighbourhood()
    target = torch.repeat_interleave(torch.arange(25), csr.indptr.diff())
    by_hand = torch.zeros(25, 12, dtype=F64).index_add(0, target, x[csr.indices.long()] * csr.weights[:, None])
    assert torch.allclose(csr.sum(x), by_hand)
    assert torch.allclose(csr.mean(x) * csr.weighted_degrees[:25, None], by_hand)
    assert torch.equal(csr.degrees, torch.from_numpy(graph.csr.degrees()))
    softened = _documented("Softened")(12, 4, activation=False).double()
    roots = replace(graph.csr, weights=np.sqrt(graph.csr.weights))
    expected = adjacency_of(roots, 25).neighbourhood().mean(softened.linear(x))
    assert torch.allclose(softened(csr, x), expected)
    plain = adjacency_of(graph.csr.unweighted(), 25).neighbourhood()
    assert torch.allclose(softened(plain, x), plain.mean(softened.linear(x)))
    assert plain.weights is None
    assert plain.weighted_degrees is None
