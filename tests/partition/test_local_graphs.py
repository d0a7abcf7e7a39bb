"""Local graphs: each vertex and edge once, exact halo rows, equal lists at both ends, the sums of the whole graph."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_graphs import check_local_graphs, dense, graph_of, graphs, random_graph

from simgnn.errors import ConfigError
from simgnn.graph.graph import Graph
from simgnn.partition.local.edge_cut import build_local_graphs
from simgnn.partition.partition import Partition, partitioned
from simgnn.partition.partitioners.block_row import BlockRow
from simgnn.partition.partitioners.ebv import Ebv
from simgnn.partition.partitioners.metis import Metis
from simgnn.partition.partitioners.random import Random
from simgnn.policy import Reorder


@settings(max_examples=150, deadline=None)
@given(graphs(), st.integers(1, 7), st.integers(0, 5), st.sampled_from(["none", "rcm", "degree"]))
def test_any_graph_is_cut_exactly(graph: Graph, ranks: int, seed: int, reorder: Reorder) -> None:
    owner = np.random.default_rng(seed).integers(0, ranks, graph.vertices).astype(np.int32)
    partition = Partition("edge-cut", ranks, owner)
    locals_ = list(build_local_graphs(graph.csr, partition, reorder))
    assert len(locals_) == ranks
    check_local_graphs(graph, partition, locals_)


@pytest.mark.parametrize("policy", [Random(), BlockRow(permutation="degree-balanced"), Metis(balance=("vertices",))])
@pytest.mark.parametrize("symmetric", [True, False])
def test_aggregation_over_ranks_equals_the_whole(policy: Random, symmetric: bool) -> None:
    graph = random_graph(300, 2000, symmetric=symmetric)
    partition = partitioned(policy, graph, np.zeros(5, dtype=np.int64), seed=1)
    locals_ = list(build_local_graphs(graph.csr, partition, policy.reorder))
    check_local_graphs(graph, partition, locals_)
    x = np.random.default_rng(0).standard_normal((graph.vertices, 8))
    whole = dense(graph.csr) @ x
    for one in locals_:
        # halo rows arrive from their owners by the lists of the owners, as the executor sends them
        halo = np.empty((len(one.halo), 8))
        for peer, part in one.receive.items():
            halo[part] = x[locals_[peer].owned][locals_[peer].send_rows[one.rank]]
        found = dense(one.csr) @ np.concatenate((x[one.owned], halo))
        np.testing.assert_allclose(found, whole[one.owned], rtol=1e-12, atol=1e-12)


def test_orders_of_own_rows() -> None:
    path = graph_of(np.array([[0, 4], [4, 1], [1, 3], [3, 2]]), 5)
    partition = Partition("edge-cut", 1, np.zeros(5, dtype=np.int32))
    plain, degree, rcm = (next(build_local_graphs(path.csr, partition, r)).owned for r in ("none", "degree", "rcm"))
    assert plain.tolist() == [0, 1, 2, 3, 4]
    assert degree.tolist() == [1, 3, 4, 0, 2]
    # on a path reverse Cuthill-McKee walks from end to end
    assert rcm.tolist() in ([0, 4, 1, 3, 2], [2, 3, 1, 4, 0])


def test_vertex_cut_has_no_halo_graphs() -> None:
    graph = random_graph(30, 60)
    partition = partitioned(Ebv(), graph, np.zeros(2, dtype=np.int64), seed=0)
    with pytest.raises(ConfigError, match=r"edge-cut.*partition\.kind"):
        next(build_local_graphs(graph.csr, partition, "none"))


def test_rank_without_rows() -> None:
    graph = random_graph(20, 40)
    partition = Partition("edge-cut", 3, np.zeros(20, dtype=np.int32))
    locals_ = list(build_local_graphs(graph.csr, partition, "rcm"))
    check_local_graphs(graph, partition, locals_)
    assert len(locals_[2].owned) == 0
    assert locals_[2].csr.rows == 0
