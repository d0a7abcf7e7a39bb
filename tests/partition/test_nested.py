"""METIS among hosts first, then among the ranks of each: what crosses hosts is what a cut among hosts alone leaves."""

import numpy as np
import pytest
from partition_graphs import graph_of, random_graph

from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.graph.graph import Graph
from simgnn.partition.algorithms.metis import nested_owner, subgraph
from simgnn.partition.partition import partitioned
from simgnn.partition.partitioners.metis import Metis

HOSTS = np.array([0, 0, 0, 1, 1, 1])
CONSTRAINTS = ("train", "validation", "test", "edges")


def crossing(graph: Graph, host: np.ndarray) -> int:
    destination = np.repeat(host, graph.csr.degrees())
    return int(np.count_nonzero(destination != host[graph.csr.indices]))


def last_alone(graph: Graph, parts: int, vertices: object) -> np.ndarray:
    """All vertices but one in the first part."""
    return (np.arange(graph.vertices) == graph.vertices - 1).astype(np.int32)


@pytest.mark.parametrize("hosts", [HOSTS, np.array([0, 1, 0, 1, 1, 0])])
def test_hosts_have_what_a_partition_among_them_gives(hosts: np.ndarray) -> None:
    graph = random_graph(600, 3000)
    owner = partitioned(Metis(balance=("vertices",), across="hosts"), graph, hosts, 0).owner
    among_hosts = partitioned(Metis(balance=("vertices",)), graph, np.arange(2), 0).owner
    np.testing.assert_array_equal(hosts[owner], among_hosts)
    rows = np.bincount(owner, minlength=6)
    assert rows.min() > 0.8 * 100
    assert rows.max() < 1.2 * 100


@pytest.mark.parametrize("hosts", [np.zeros(3, np.int64), np.arange(3)])
def test_one_host_or_one_rank_each_is_the_flat_partition(hosts: np.ndarray) -> None:
    graph = random_graph(300, 900)
    nested, flat = (
        partitioned(Metis(balance=("vertices",), across=across), graph, hosts, 3).owner for across in ("hosts", "ranks")
    )
    np.testing.assert_array_equal(nested, flat)


def test_ranks_of_a_host_share_its_part_by_its_own_edges() -> None:
    """Four rings: two belong to each host, and no ring is divided."""
    place = np.arange(4 * 50)
    ring = place - place % 50 + (place + 1) % 50
    joined = np.array([[0, 50], [100, 150]])  # of two rings each, so that hosts cut nothing
    graph = graph_of(np.concatenate((np.stack((place, ring), axis=1), joined)), 200)
    hosts = np.array([0, 0, 1, 1])
    owner = partitioned(Metis(balance=("vertices",), across="hosts", imbalance=1.01), graph, hosts, 0).owner
    assert crossing(graph, hosts[owner]) == 0
    assert crossing(graph, owner) == 4  # both directions of the two edges between rings
    assert np.bincount(owner).tolist() == [50] * 4


def test_a_part_of_a_graph_has_its_edges_and_masks() -> None:
    graph = random_graph(80, 300, symmetric=False)
    part = (np.arange(80) % 3).astype(np.int32)
    vertices = np.flatnonzero(part == 1)
    found = subgraph(graph, vertices, part, 1)
    found.csr.check()
    assert (found.vertices, found.symmetric, found.features) == (len(vertices), False, None)
    for row, vertex in enumerate(vertices.tolist()):
        sources = graph.csr.indices[graph.csr.indptr[vertex] : graph.csr.indptr[vertex + 1]]
        mine = vertices[found.csr.indices[found.csr.indptr[row] : found.csr.indptr[row + 1]]]
        assert mine.tolist() == [source for source in sources.tolist() if part[source] == 1]
    assert found.train_mask is not None
    assert graph.train_mask is not None
    np.testing.assert_array_equal(found.train_mask, graph.train_mask[vertices])


def test_several_constraints_hold_in_both_levels() -> None:
    pytest.importorskip("dgl", reason="DGL is not installed: several METIS constraints need it")
    graph = random_graph(3000, 12_000)
    owner = partitioned(Metis(balance=CONSTRAINTS, across="hosts"), graph, HOSTS, 0).owner
    for mask in (graph.train_mask, graph.validation_mask, graph.test_mask):
        loads = np.bincount(owner[mask], minlength=6)
        assert loads.max() / loads.mean() < 1.25


def test_a_host_without_vertices_of_a_type_is_divided_by_the_others() -> None:
    """All training vertices lie in one of two components, which hosts do not divide."""
    pytest.importorskip("dgl", reason="DGL is not installed: several METIS constraints need it")
    place = np.arange(200)
    graph = graph_of(np.stack((place, place - place % 100 + (place + 1) % 100), axis=1), 200)
    object.__setattr__(graph, "train_mask", place < 100)
    policy = Metis(balance=("vertices", "train"), across="hosts")
    for first, held in ((0, ("vertices", "train")), (100, ("vertices",))):
        vertices = np.arange(first, first + 100)
        part = subgraph(graph, vertices, (place // 100).astype(np.int32), first // 100)
        assert policy._held_in(part) == held
        assert abs(int(policy._owner(part, 2, 0, held).sum()) - 50) <= 5
    assert Metis(balance=("train",))._held_in(part) == ("vertices",)


def test_what_cannot_be_nested_is_refused() -> None:
    graph = random_graph(60, 200)
    with pytest.raises(ConfigError, match=r"partition\.across.*hosts have 1, 2 ranks.*as many on each"):
        partitioned(Metis(balance=("vertices",), across="hosts"), graph, np.array([0, 1, 1]), 0)
    with pytest.raises(ConfigError, match=r"partition\.across.*host 1 got 1 vertices.*2 ranks.*use fewer ranks"):
        nested_owner(graph, np.array([0, 0, 1, 1]), last_alone)
    object.__setattr__(graph, "test_mask", None)
    with pytest.raises(ConfigError, match=r"partition\.balance names 'test'"):
        partitioned(Metis(balance=("train", "test"), across="hosts"), graph, np.array([0, 0, 1, 1]), 0)
    with pytest.raises(ConfigError, match=r"partition\.across: got 'racks', expected one of 'ranks', 'hosts'"):
        load_experiment("vanilla", ["partition.across=racks"])


@pytest.mark.parametrize("system", ["distdgl", "rapidgnn"])
def test_systems_with_a_store_divide_among_machines(system: str) -> None:
    """Ranks of a host share its rows, so that only what crosses hosts costs anything (docs/systems/mini-batches.md)."""
    policy = load_experiment(system).partition
    assert isinstance(policy, Metis)
    assert policy.across == "hosts"


def test_several_constraints_give_one_partition_whatever_lay_in_memory() -> None:
    pytest.importorskip("dgl", reason="DGL is not installed: several METIS constraints need it")
    graph, found = random_graph(3000, 12_000), set()
    for seed in range(6):
        rng = np.random.default_rng(seed)
        dirty = [rng.random(int(size)) for size in rng.integers(100, 12_000, 400)]
        del dirty
        found.add(partitioned(Metis(balance=CONSTRAINTS), graph, np.arange(2), 0).owner.tobytes())
    assert len(found) == 1
