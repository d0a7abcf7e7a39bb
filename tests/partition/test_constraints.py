"""DistDGL's partition: types of vertices and their edges balanced by METIS, told, and refused where it fails."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_graphs import graph_of, graphs, random_graph

from simgnn.errors import ConfigError
from simgnn.graph.graph import Graph
from simgnn.graph.load import load_graph
from simgnn.partition.partition import partitioned
from simgnn.partition.partitioners.metis import Metis
from simgnn.partition.statistics.partition_stats import TYPES, type_balances, vertex_types
from simgnn.sampling.batches.plan import even_split

CONSTRAINTS = ("train", "validation", "test", "edges")


def hosts(ranks: int) -> np.ndarray:
    return np.arange(ranks, dtype=np.int64)


def skewed_graph(blocks: int = 4, size: int = 300) -> Graph:
    """Communities, of which the first holds the training vertices and the second most of the others with a label."""
    random = np.random.default_rng(5)
    inside = random.integers(0, size, (blocks, 6 * size, 2)) + size * np.arange(blocks)[:, None, None]
    across = random.integers(0, blocks * size, (size, 2))
    graph = graph_of(np.concatenate((inside.reshape(-1, 2), across)), blocks * size)
    place = np.arange(blocks * size)
    masks = (place < 0.8 * size, (place >= size) & (place < 1.4 * size), (place >= 1.4 * size) & (place < 1.9 * size))
    for name, mask in zip(TYPES, masks, strict=False):
        object.__setattr__(graph, f"{name}_mask", mask)
    return graph


@settings(deadline=None)
@given(graphs(), st.integers(1, 5), st.integers(0, 9))
def test_balances_are_those_of_the_definition(graph: Graph, ranks: int, seed: int) -> None:
    owner = np.random.default_rng(seed).integers(0, ranks, graph.vertices).astype(np.int32)
    types, degrees = vertex_types(graph), graph.csr.degrees()
    found = {balance.type: balance for balance in type_balances(graph, owner, ranks)}
    assert sum(balance.vertices for balance in found.values()) == graph.vertices
    assert sum(balance.edges for balance in found.values()) == graph.edges
    for place, name in enumerate(TYPES):
        mine = np.flatnonzero(types == place)
        assert (name in found) == (len(mine) > 0)
        if name == "none":
            masks = (graph.train_mask, graph.validation_mask, graph.test_mask)
            assert not any(mask[mine].any() for mask in masks if mask is not None)
        elif len(mine):
            np.testing.assert_array_equal(mine, np.flatnonzero(getattr(graph, f"{name}_mask")))
        if len(mine):
            most = max(int((owner[mine] == rank).sum()) for rank in range(ranks))
            assert found[name].vertex_imbalance == pytest.approx(most * ranks / len(mine))
            ended = [int(degrees[mine][owner[mine] == rank].sum()) for rank in range(ranks)]
            assert found[name].edge_imbalance == pytest.approx(max(ended) * ranks / sum(ended) if sum(ended) else 1.0)


def test_several_constraints_balance_types_that_plain_metis_does_not() -> None:
    pytest.importorskip("dgl", reason="DGL is not installed: several METIS constraints need it")
    graph = skewed_graph()
    plain, several = (
        {
            balance.type: balance
            for balance in type_balances(graph, partitioned(Metis(**fields), graph, hosts(4), 0).owner, 4)
        }
        for fields in ({"balance": ("vertices",)}, {"balance": CONSTRAINTS})
    )
    assert plain["train"].vertex_imbalance > 2
    for name in TYPES:
        assert several[name].vertex_imbalance <= max(plain[name].vertex_imbalance, 1.1)
        assert several[name].edge_imbalance <= max(plain[name].edge_imbalance, 1.2)
    assert several["train"].vertex_imbalance < 0.6 * plain["train"].vertex_imbalance


def test_one_rank_needs_no_metis_and_no_edges_no_dgl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymetis.part_graph", None)
    monkeypatch.setitem(sys.modules, "dgl", None)
    graph = random_graph(60, 200)
    assert (partitioned(Metis(balance=CONSTRAINTS), graph, hosts(1), 0).owner == 0).all()
    bare = graph_of(np.empty((0, 2), dtype=np.int64), 400)
    owner = partitioned(Metis(balance=CONSTRAINTS), bare, hosts(4), 0).owner
    for mask in (bare.train_mask, bare.validation_mask, bare.test_mask):
        loads = np.bincount(owner[mask], minlength=4)
        assert loads.max() - loads.min() <= 1
    assert np.bincount(owner).tolist() == [100] * 4


def test_an_empty_part_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("dgl", reason="DGL is not installed: several METIS constraints need it")
    graph = random_graph(60, 200)
    monkeypatch.setattr(
        "dgl.metis_partition_assignment", lambda whole, ranks, **options: torch.arange(whole.num_nodes()) % (ranks - 1)
    )
    with pytest.raises(ConfigError, match=r"partition\.balance.*METIS left 1 of 4 parts.*empty.*use fewer ranks"):
        partitioned(Metis(balance=CONSTRAINTS), graph, hosts(4), 0)


@pytest.mark.realdata
def test_training_vertices_of_a_balanced_partition_stay_where_they_are_owned(data_dir: Path) -> None:
    pytest.importorskip("dgl", reason="DGL is not installed: several METIS constraints need it")
    graph = load_graph(str(data_dir / "cora.npz"))
    owner = partitioned(Metis(balance=CONSTRAINTS), graph, hosts(4), 0).owner
    assert graph.train_mask is not None
    train = np.flatnonzero(graph.train_mask)
    parts = even_split(train, owner, hosts(4), 0)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert sum(int((owner[part] == rank).sum()) for rank, part in enumerate(parts)) >= 0.9 * len(train)
    for balance in type_balances(graph, owner, 4):
        assert 1 <= balance.vertex_imbalance < 2
