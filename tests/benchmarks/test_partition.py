"""Partitioning and local graphs: `pytest -n 0 tests/benchmarks --benchmark-only`."""

import numpy as np
import pytest

from simgnn.graph.load import load_graph
from simgnn.partition.local.edge_cut import build_local_graphs
from simgnn.partition.partition import partitioned
from simgnn.partition.partitioners.ebv import Ebv
from simgnn.partition.partitioners.metis import Metis

RANKS = 8
OPTIONS = {"vertices": 20_000, "edges": 200_000}


@pytest.mark.parametrize("policy", [Ebv(), Metis(balance=("vertices",))], ids=lambda policy: policy.kind)
def test_partition(benchmark, policy: Ebv | Metis) -> None:
    graph = load_graph("synthetic:rmat", options=OPTIONS)
    partition = benchmark(policy.partition, graph, np.zeros(RANKS, dtype=np.int64), 0)
    assert partition.ranks == RANKS


def test_local_graphs(benchmark) -> None:
    graph = load_graph("synthetic:rmat", options=OPTIONS)
    partition = partitioned(Metis(balance=("vertices",)), graph, np.zeros(RANKS, dtype=np.int64), 0)
    found = benchmark(lambda: list(build_local_graphs(graph.csr, partition, "rcm")))
    assert sum(len(local.owned) for local in found) == graph.vertices
