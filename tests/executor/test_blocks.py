"""Blocks tile the adjacency, sums over them are the sums over the whole graph, and roots keep what they must."""

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch

from executor.kernels.edges.blocks import VERTEX_SCALINGS
from executor.layers import LocalAdjacency, build_layers
from executor.layers.attention import GAT
from executor.layers.blocks import load_blocks
from executor.rank.interpreter import Interpreter
from simgnn.graph.csr import CSR
from simgnn.graph.graph import Graph
from simgnn.model.spec import LayerSpec
from simgnn.partition.local.edge_cut import build_local_graphs
from simgnn.partition.partition import Partition
from simgnn.partition.partitioners.block_row import random_owner
from simgnn.partition.statistics.count import partition_stats
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Buffer, Op, Transfer
from tests.executor.harness import Notes, reads, tiny_program, world_context
from tests.executor.runs import small_graph

VERTICES = 41
F64 = torch.float64


def directed(seed: int = 3) -> Graph:
    """A graph of which most edges have no reverse."""
    draw = np.random.default_rng(seed)
    pairs = np.unique(draw.integers(0, VERTICES, (160, 2)), axis=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    indptr = np.concatenate(([0], np.cumsum(np.bincount(pairs[:, 0], minlength=VERTICES)))).astype(np.int64)
    csr = CSR(indptr, pairs[:, 1].astype(np.int32), VERTICES).check()
    return replace(small_graph(VERTICES), csr=csr, symmetric=False)


def dense(csr: CSR) -> np.ndarray:
    matrix = np.zeros((csr.rows, csr.columns))
    matrix[np.repeat(np.arange(csr.rows), np.diff(csr.indptr)), csr.indices] = 1
    return matrix


def locals_of(graph: Graph, ranks: int, empty: bool):
    owner = random_owner(graph.vertices, ranks, 1)
    if empty:
        owner[owner == 0] = ranks - 1  # a partition need not give every rank rows
    return owner, list(build_local_graphs(graph.csr, Partition("edge-cut", ranks, owner)))


@pytest.mark.parametrize("graph", [small_graph(VERTICES), directed()], ids=["symmetric", "directed"])
@pytest.mark.parametrize(("ranks", "empty"), [(1, False), (2, False), (3, False), (4, False), (3, True)])
def test_blocks_tile_the_adjacency(graph: Graph, ranks: int, empty: bool) -> None:
    owner, parts = locals_of(graph, ranks, empty)
    whole = dense(graph.csr)
    stats = partition_stats(graph, Partition("edge-cut", ranks, owner), np.zeros(ranks, dtype=np.int64))
    for rank in range(ranks):
        blocks = load_blocks(lambda other: parts[other], rank, ranks)
        for root in range(ranks):
            mine, theirs = parts[rank].owned, parts[root].owned
            assert np.array_equal(dense(blocks.forward[root]), whole[np.ix_(mine, theirs)])
            assert np.array_equal(dense(blocks.backward[root]), whole.T[np.ix_(mine, theirs)])
            assert blocks.degrees[root].tolist() == graph.csr.degrees()[theirs].tolist()
            assert stats.tables["block_edges"][rank, root] == blocks.forward[root].edges
            assert stats.tables["block_edges"].T[rank, root] == blocks.backward[root].edges
            if graph.symmetric:
                assert blocks.backward[root] is blocks.forward[root], "no second copy is held"
    assert np.array_equal(stats.tables["block_edges"].sum(axis=1), stats.edges)


def weights(graph: Graph, scaling: str) -> np.ndarray:
    whole, degree = dense(graph.csr), graph.csr.degrees()
    if scaling == "gcn":
        root = np.diag(1 / np.sqrt(degree + 1))
        return root @ (whole + np.eye(len(whole))) @ root
    return np.diag(1 / np.maximum(degree, 1)) @ whole if scaling == "mean" else whole


@pytest.mark.parametrize("kernel", ["numba", "torch"])
@pytest.mark.parametrize("scaling", sorted(VERTEX_SCALINGS))
@pytest.mark.parametrize("graph", [small_graph(VERTICES), directed()], ids=["symmetric", "directed"])
@pytest.mark.parametrize(("ranks", "empty"), [(1, False), (3, False), (3, True)])
def test_sums_over_blocks_are_sums_over_the_graph(
    graph: Graph, scaling: str, kernel: str, ranks: int, empty: bool
) -> None:
    """Forward, and backward against the transposed dense matrix: the gradient that autograd would give."""
    _, parts = locals_of(graph, ranks, empty)
    rows = torch.from_numpy(np.random.default_rng(0).standard_normal((graph.vertices, 5)))
    whole = torch.from_numpy(weights(graph, scaling))
    for transposed, matrix in ((False, whole), (True, whole.T)):
        for rank in range(ranks):
            blocks = load_blocks(lambda other: parts[other], rank, ranks, kernel=kernel, dtype=torch.float64)
            roots = [root for root in range(ranks) if len(parts[root].owned)]
            total = None
            for root in roots:
                block = blocks.block(scaling, root, transposed)
                total = block.add(rows[parts[root].owned], total, root == roots[-1])
            assert total is not None
            expected = (matrix @ rows)[parts[rank].owned]
            assert torch.allclose(total, expected, rtol=1e-12, atol=1e-12)


def test_threads_do_not_change_a_bit() -> None:
    graph = small_graph(300)
    _, parts = locals_of(graph, 2, False)
    rows = torch.from_numpy(np.random.default_rng(0).standard_normal((300, 33)).astype(np.float32))
    found = []
    for threads in (1, 3):
        blocks = load_blocks(lambda other: parts[other], 0, 2, threads=threads)
        total = None
        for root in (0, 1):
            total = blocks.block("gcn", root, False).add(rows[parts[root].owned], total, root == 1)
        found.append(total)
    assert torch.equal(*found)


@pytest.mark.parametrize("graph", [small_graph(VERTICES), directed()], ids=["symmetric", "directed"])
@pytest.mark.parametrize(("ranks", "empty"), [(1, False), (3, False), (3, True)])
def test_attention_over_blocks_is_attention_over_the_graph(graph: Graph, ranks: int, empty: bool) -> None:
    """A running softmax gives the whole's sums; gradients by sources and parts of scores the whole's gradients."""
    _, parts = locals_of(graph, ranks, empty)
    layer = cast(
        GAT, build_layers([LayerSpec(2, "gat", 4, 6, "transform-first", prepared_width=6, heads=2)], 0, F64)[0]
    )
    draw = torch.Generator().manual_seed(1)
    rows = torch.randn(VERTICES, 6, dtype=F64, generator=draw)
    whole, leaf = LocalAdjacency(graph.csr, graph.csr.degrees(), dtype=F64, threads=1), rows.clone().requires_grad_()
    sums = layer.aggregate(whole, leaf, layer.maximum(whole, leaf))
    sums.retain_grad()
    layer.update(sums).backward(torch.randn(VERTICES, 6, dtype=F64, generator=draw))
    assert sums.grad is not None
    vectors = (layer.attention_source, layer.attention_target)
    expected = [vector.grad.clone() for vector in vectors if vector.grad is not None]
    for vector in vectors:
        vector.grad = None

    owned = [torch.from_numpy(part.owned.astype(np.int64)) for part in parts]
    roots = [root for root in range(ranks) if len(owned[root])]
    blocks = [load_blocks(lambda other: parts[other], rank, ranks, dtype=F64) for rank in range(ranks)]
    payloads = []
    for rank in range(ranks):
        state: tuple[torch.Tensor, ...] = ()
        for root in roots:
            kernel = blocks[rank].attention(root, transposed=False)
            state = layer.add_block(kernel, rows[owned[rank]], rows[owned[root]], *state)
        assert torch.allclose(state[1], sums[owned[rank]].detach(), rtol=1e-12)
        payloads.append(layer.block_payload(sums.grad[owned[rank]], rows[owned[rank]], state[0]))
    found = [
        {
            root: layer.block_gradients(
                blocks[rank].attention(root, transposed=True), rows[owned[rank]], payloads[root]
            )
            for root in roots
        }
        for rank in range(ranks)
    ]
    for rank in roots:
        of_rows, of_source = (torch.stack([found[rank][root][k] for root in roots]).sum(0) for k in (0, 1))
        others = [found[other][rank][2] for other in roots if other != rank]
        gradient = layer.score_gradients(of_rows, of_source, found[rank][rank][2], rows[owned[rank]], *others)
        assert torch.allclose(gradient, leaf.grad[owned[rank]], rtol=1e-11, atol=1e-13)
    for vector, wanted in zip(vectors, expected, strict=True):
        assert torch.allclose(vector.grad, wanted, rtol=1e-11, atol=1e-13)


def _broadcast(kept_rows: int, held: dict[str, Any]) -> torch.Tensor:
    """What a rank that broadcasts its four rows has in the buffer of those that arrive elsewhere."""
    ops = [Op("root", OpKind.BROADCAST, "comm", reads("own"), reads("block"), root=0, transfer=Transfer(16, rows=4))]
    buffers = [Buffer("own", 4, 4, persistent=True), Buffer("block", kept_rows, 4, persistent=True)]
    program = tiny_program(1, {"steady": ops}, buffers)
    context = world_context(program, 0, held)
    Interpreter(program, context, Notes()).train(range(1))
    found = context.store.values[context.store.slot("block")]
    assert isinstance(found, torch.Tensor)
    return found


def test_a_root_that_keeps_nothing_of_its_block_does_not_keep_its_memory() -> None:
    rows = torch.ones(4, 4)
    assert _broadcast(4, {"own": rows}).data_ptr() == rows.data_ptr(), "it reads them where they are"
    assert _broadcast(0, {"own": rows}).untyped_storage().nbytes() == 0
