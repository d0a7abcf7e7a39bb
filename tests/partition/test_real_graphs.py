"""Real graphs through partitioners, local graphs, artefacts and shards; the speed that EBV has to reach."""

import time
from pathlib import Path

import numpy as np
import pytest
from partition_graphs import check_local_graphs
from scipy import sparse

from simgnn.graph.load import load_graph
from simgnn.partition.local.edge_cut import build_local_graphs
from simgnn.partition.local.shards import shard_artifact
from simgnn.partition.partition import partitioned
from simgnn.partition.partitioners.ebv import Ebv
from simgnn.partition.partitioners.metis import Metis
from simgnn.partition.partitioners.random import Random
from simgnn.partition.store import partition_artifact


@pytest.mark.realdata
@pytest.mark.alone
def test_arxiv_is_cut_exactly_and_fast(data_dir: Path) -> None:
    graph = load_graph(str(data_dir / "ogbn_arxiv.npz"))
    partition = partitioned(Metis(balance=("vertices",)), graph, np.zeros(4, dtype=np.int64), seed=0)
    next(build_local_graphs(graph.csr, partition))  # compiles
    start = time.perf_counter()
    locals_ = list(build_local_graphs(graph.csr, partition))
    assert time.perf_counter() - start < 2.0
    check_local_graphs(graph, partition, locals_)


@pytest.mark.realdata
def test_sparse_features_of_a_real_graph(data_dir: Path, tmp_path: Path) -> None:
    graph = load_graph(str(data_dir / "coauthor_physics.npz"))
    hosts = np.array([0, 0, 1])
    artifact = partition_artifact(graph, Metis(balance=("vertices",)), hosts, 0, tmp_path)
    stats = artifact.stats
    assert stats.tables["feature_nonzeros"].sum() == graph.facts().feature_nonzeros
    assert (stats.tables["aggregated_feature_nonzeros"] >= stats.tables["feature_nonzeros"]).all()
    shards = shard_artifact(graph, artifact, "float32")
    for rank in range(3):
        features = shards.rank(rank).features
        assert isinstance(features, sparse.csr_array)
        assert (features != sparse.csr_array(graph.features)[artifact.local(rank).owned].astype(np.float32)).nnz == 0


@pytest.mark.realdata
def test_partitioners_in_the_expected_order(data_dir: Path, tmp_path: Path) -> None:
    graph = load_graph(str(data_dir / "cora.npz"))
    hosts = np.arange(4) // 2
    metis, random, ebv = (
        partition_artifact(graph, p, hosts, 0, tmp_path).quality
        for p in (Metis(balance=("vertices",)), Random(), Ebv())
    )
    assert metis.edge_cut is not None
    assert random.edge_cut is not None
    assert metis.edge_cut < 0.2 * random.edge_cut
    assert metis.replication_factor < ebv.replication_factor < random.replication_factor
    assert ebv.edge_imbalance < 1.05


@pytest.mark.slow
def test_ebv_assigns_three_million_edges_a_second() -> None:
    # the bar of the issue: 16 ranks, 10 million R-MAT edges, one core, sorting and masters included;
    # processor time, since other work on the machine is not its fault
    options = {"vertices": 2**20, "edges": 10_000_000, "feature_width": 0}
    hosts = np.arange(16) // 8
    partitioned(Ebv(), load_graph("synthetic:rmat", options={**options, "vertices": 256, "edges": 900}), hosts, seed=0)
    graph = load_graph("synthetic:rmat", options=options)
    best = 0.0
    for _ in range(3):
        start = time.process_time()
        partitioned(Ebv(), graph, hosts, seed=0)
        best = max(best, graph.edges / 2 / (time.process_time() - start))
    print(f"EBV: {best / 1e6:.2f} million edges/s")
    assert best >= 3e6, f"{best / 1e6:.2f} million edges/s"
