"""Policy values of slot partition: balance, determinism, refusals."""

import sys

import numpy as np
import pytest
from partition_graphs import graph_of, random_graph
from pydantic import ValidationError

from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.partition.partition import partitioned
from simgnn.partition.partitioners.block_row import BlockRow, block_bounds, degree_balanced_owner
from simgnn.partition.partitioners.dbh import Dbh
from simgnn.partition.partitioners.ebv import Ebv
from simgnn.partition.partitioners.hdrf import Hdrf
from simgnn.partition.partitioners.metis import Metis
from simgnn.partition.partitioners.metis_chunks import MetisChunks
from simgnn.partition.partitioners.random import Random
from simgnn.partition.partitioners.random_edges import RandomEdges
from simgnn.policy import Partitioner
from simgnn.registry import shipped

BLOCKS = [BlockRow(), BlockRow(permutation="random"), BlockRow(permutation="degree-balanced")]
ALL: list[Partitioner] = [
    Random(),
    *BLOCKS,
    Metis(balance=("vertices",)),
    MetisChunks(),
    Ebv(),
    Hdrf(),
    Dbh(),
    RandomEdges(),
]


def hosts(ranks: int) -> np.ndarray:
    return np.zeros(ranks, dtype=np.int64)


def test_registry_names_every_kind() -> None:
    edge_cuts = {"random", "block-row", "metis", "metis-chunks", "rapa", "khop-blocks"}
    assert set(shipped("partition")) == edge_cuts | {"ebv", "hdrf", "dbh", "random-edges"}
    assert all(policy().label == kind for kind, policy in shipped("partition").items())


@pytest.mark.parametrize("policy", ALL, ids=repr)
def test_every_vertex_has_one_owner_and_the_same_seed_repeats(policy: Partitioner) -> None:
    graph = random_graph(200, 900)
    first = partitioned(policy, graph, hosts(6), seed=3)
    assert len(first.owner) == graph.vertices
    assert first.rows().sum() == graph.vertices
    assert first.digest == partitioned(policy, graph, hosts(6), seed=3).digest


@pytest.mark.parametrize("policy", ALL, ids=repr)
def test_one_rank_and_no_edges(policy: Partitioner) -> None:
    graph = random_graph(50, 100)
    assert (partitioned(policy, graph, hosts(1), seed=0).owner == 0).all()
    bare = graph_of(np.empty((0, 2), dtype=np.int64), 12)
    assert partitioned(policy, bare, hosts(4), seed=0).rows().tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize("policy", ALL, ids=repr)
def test_more_ranks_than_vertices_is_refused(policy: Partitioner) -> None:
    with pytest.raises(ConfigError, match=r"cluster\.ranks_per_host: got 7 ranks.*at most 5"):
        partitioned(policy, graph_of(np.array([[0, 1]]), 5), hosts(7), seed=0)
    with pytest.raises(ConfigError, match="0 ranks"):
        partitioned(policy, graph_of(np.array([[0, 1]]), 5), hosts(0), seed=0)


def test_seeds_of_random() -> None:
    graph = random_graph(200, 900)
    by_experiment = [partitioned(Random(), graph, hosts(4), seed).digest for seed in (0, 1)]
    own = [partitioned(Random(seed=5), graph, hosts(4), seed).digest for seed in (0, 1)]
    assert by_experiment[0] != by_experiment[1]
    assert own[0] == own[1]


def test_block_sizes_differ_by_one() -> None:
    assert block_bounds(10, 4).tolist() == [0, 3, 6, 8, 10]
    graph = random_graph(203, 900)
    for permutation in ("identity", "random", "degree-balanced"):
        rows = partitioned(BlockRow(permutation=permutation), graph, hosts(6), seed=0).rows()
        assert rows.tolist() == np.diff(block_bounds(203, 6)).tolist()
    assert (np.diff(partitioned(BlockRow(), graph, hosts(6), seed=0).owner) >= 0).all()


def test_degree_balanced_deals_to_and_fro() -> None:
    owner = degree_balanced_owner(np.array([9, 8, 7, 6, 5, 4, 3]), 3)
    assert owner.tolist() == [0, 1, 2, 2, 1, 0, 0]


def test_metis_cuts_less_than_random_and_balances() -> None:
    ring = graph_of(np.stack((np.arange(400), (np.arange(400) + 1) % 400), axis=1), 400)
    owner = partitioned(Metis(balance=("vertices",), imbalance=1.01), ring, hosts(4), seed=0)
    destination = np.repeat(np.arange(400), ring.csr.degrees())
    assert np.count_nonzero(owner.owner[destination] != owner.owner[ring.csr.indices]) == 8
    assert owner.rows().max() <= 101


@pytest.mark.parametrize("what", ["edges", "train"])
def test_metis_balances_one_other_quantity(what: str) -> None:
    graph = random_graph(2000, 8000)
    partition = partitioned(Metis(balance=(what,)), graph, hosts(4), seed=0)
    weights = graph.csr.degrees() if what == "edges" else graph.train_mask
    loads = np.bincount(partition.owner, weights, minlength=4)
    assert loads.max() / loads.mean() < 1.1


def test_metis_takes_directed_graphs() -> None:
    graph = random_graph(300, 900, symmetric=False)
    assert partitioned(Metis(balance=("vertices",)), graph, hosts(3), seed=0).rows().min() > 0


def test_several_constraints_by_dgl() -> None:
    pytest.importorskip("dgl", reason="DGL is not installed: several METIS constraints need it")
    graph = random_graph(3000, 9000)
    partition = partitioned(Metis(balance=("vertices", "train", "edges")), graph, hosts(3), seed=0)
    for weights in (np.ones(3000), graph.train_mask, graph.csr.degrees()):
        loads = np.bincount(partition.owner, weights, minlength=3)
        assert loads.max() / loads.mean() < 1.25


def test_several_constraints_without_dgl_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dgl", None)
    with pytest.raises(ConfigError, match=r"partition\.balance.*need DGL.*dgl==1\.1\.3"):
        partitioned(Metis(balance=("vertices", "edges")), random_graph(30, 60), hosts(2), seed=0)


def test_bad_options_are_refused() -> None:
    graph = graph_of(np.array([[0, 1], [1, 2]]), 3)
    several = ["partition.balance=['vertices', 'edges']", "partition.imbalance=1.1"]
    with pytest.raises(ConfigError, match=r"partition\.imbalance"):
        load_experiment("vanilla", several)
    object.__setattr__(graph, "train_mask", None)
    with pytest.raises(ConfigError, match=r"partition\.balance.*'train'"):
        partitioned(Metis(balance=("train",)), graph, hosts(2), seed=0)
    for kind, options in ((Ebv, {"gamma": 1.0}), (Metis, {"balance": ("edges", "edges")}), (Random, {"seeds": 1})):
        with pytest.raises(ValidationError):
            kind(**options)
