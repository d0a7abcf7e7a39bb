"""Artefacts: made once, reused, equal when read back, and never trusted when damaged."""

import json
import logging
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from partition_graphs import random_graph
from scipy import sparse

from simgnn.errors import ConfigError, GraphError
from simgnn.partition import store
from simgnn.partition.folder import CorruptArtifactError, cache_folder
from simgnn.partition.local.edge_cut import build_local_graphs
from simgnn.partition.local.shards import ShardArtifact, shard_artifact
from simgnn.partition.local.vertex_cut import RankGraph, ReplicaGraph, build_replica_graphs
from simgnn.partition.partitioners.block_row import BlockRow
from simgnn.partition.partitioners.ebv import Ebv
from simgnn.partition.partitioners.metis import Metis
from simgnn.partition.partitioners.random import Random
from simgnn.partition.statistics.count import partition_stats
from simgnn.partition.statistics.partition_stats import stats_to_parts
from simgnn.partition.store import PartitionArtifact, partition_artifact
from simgnn.policy import Partitioner

HOSTS = np.array([0, 0, 1])


def same_stats(one: object, other: object) -> None:
    described, arrays = stats_to_parts(one)
    described_too, arrays_too = stats_to_parts(other)
    assert described == described_too
    assert arrays.keys() == arrays_too.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, arrays_too[name])
        assert array.dtype == arrays_too[name].dtype


def same_replica(kept: RankGraph, made: ReplicaGraph) -> None:
    assert isinstance(kept, ReplicaGraph)
    assert (kept.rank, kept.masters, kept.internal) == (made.rank, made.masters, made.internal)
    for name in ("vertices", "degree"):
        np.testing.assert_array_equal(getattr(kept, name), getattr(made, name))
    np.testing.assert_array_equal(kept.csr.indptr, made.csr.indptr)
    np.testing.assert_array_equal(kept.csr.indices, made.csr.indices)
    assert kept.mirrors == made.mirrors
    assert kept.mirrored.keys() == made.mirrored.keys()
    assert all((kept.mirrored[peer] == rows).all() for peer, rows in made.mirrored.items())


@pytest.mark.parametrize(
    "policy", [Random(), Metis(balance=("vertices",)), Ebv(), BlockRow(reorder="degree")], ids=lambda p: p.kind
)
def test_what_is_kept_is_what_was_made(policy: Partitioner, tmp_path: Path) -> None:
    graph = random_graph(120, 400, width=5)
    artifact = partition_artifact(graph, policy, HOSTS, 0, tmp_path)
    assert artifact.made
    assert artifact.ranks == 3
    expected = partition_stats(graph, artifact.partition, HOSTS, policy.reorder)
    for found in (
        artifact,
        partition_artifact(graph, policy, HOSTS, 0, tmp_path),
        PartitionArtifact.open(artifact.path),
    ):
        same_stats(found.stats, expected)
        assert found.digest == expected.digest
        assert found.partition.digest == artifact.partition.digest
    if artifact.kind == "vertex-cut":
        for replica in build_replica_graphs(graph, artifact.partition, policy.reorder):
            same_replica(PartitionArtifact.open(artifact.path).local(replica.rank), replica)
        return
    for local in build_local_graphs(graph.csr, artifact.partition, policy.reorder):
        kept = PartitionArtifact.open(artifact.path).local(local.rank)
        for name in ("owned", "halo", "degree"):
            np.testing.assert_array_equal(getattr(kept, name), getattr(local, name))
        np.testing.assert_array_equal(kept.csr.indptr, local.csr.indptr)
        np.testing.assert_array_equal(kept.csr.indices, local.csr.indices)
        assert kept.csr.columns == local.csr.columns
        assert kept.receive == local.receive
        assert kept.send_rows.keys() == local.send_rows.keys()
        assert all((kept.send_rows[peer] == rows).all() for peer, rows in local.send_rows.items())
        assert isinstance(kept.csr.indices.base, np.memmap) or kept.csr.edges == 0


def test_the_key_is_the_content(tmp_path: Path) -> None:
    graph = random_graph(60, 200)
    first = partition_artifact(graph, Metis(balance=("vertices",)), HOSTS, 0, tmp_path)
    renamed = partition_artifact(replace(graph, name="renamed"), Metis(balance=("vertices",)), HOSTS, 0, tmp_path)
    assert renamed.path == first.path
    assert not renamed.made
    assert renamed.stats.facts.name == "renamed"
    others = [
        partition_artifact(graph, Metis(balance=("vertices",), imbalance=1.1), HOSTS, 0, tmp_path),
        partition_artifact(graph, Metis(balance=("vertices",), reorder="none"), HOSTS, 0, tmp_path),
        partition_artifact(graph, Metis(balance=("vertices",)), np.array([0, 1, 1]), 0, tmp_path),
        partition_artifact(graph, Metis(balance=("vertices",)), HOSTS, 1, tmp_path),
        partition_artifact(random_graph(60, 201), Metis(balance=("vertices",)), HOSTS, 0, tmp_path),
    ]
    assert len({first.path, *(other.path for other in others)}) == 6
    assert all(other.made for other in others)


def test_metis_runs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(60, 200)
    kept = partition_artifact(graph, Metis(balance=("vertices",)), HOSTS, 0, tmp_path).partition.digest
    monkeypatch.setattr("simgnn.partition.algorithms.metis.metis_owner", None)
    assert partition_artifact(graph, Metis(balance=("vertices",)), HOSTS, 0, tmp_path).partition.digest == kept


def test_default_folder_is_the_environment(artefact_cache: Path) -> None:
    assert cache_folder(None) == artefact_cache
    artifact = partition_artifact(random_graph(20, 30), Random(), HOSTS, 0)
    assert artifact.path.is_relative_to(artefact_cache)


def _make(cache: Path, results: "multiprocessing.Queue[tuple[bool, str]]") -> None:
    artifact = partition_artifact(random_graph(2000, 9000), Metis(balance=("vertices",)), HOSTS, 0, cache)
    results.put((artifact.made, artifact.digest))


def test_one_process_makes_and_others_wait(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[tuple[bool, str]] = context.Queue()
    workers = [context.Process(target=_make, args=(tmp_path, results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join(timeout=30)
    assert sorted(made for made, _ in found) == [False, False, True]
    assert len({digest for _, digest in found}) == 1


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(60, 200)
    monkeypatch.setattr(store, "partition_stats", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        partition_artifact(graph, Random(), HOSTS, 0, tmp_path)
    assert [path for path in (tmp_path / "partitions").iterdir() if path.is_dir()] == []
    monkeypatch.undo()
    assert partition_artifact(graph, Random(), HOSTS, 0, tmp_path).made


CHANGED = ("byte", "short", "longer", "missing", "pipe", "device")
"""Damages of one array."""


@pytest.mark.parametrize("damage", [*CHANGED, "manifest", "version", "no manifest"])
def test_a_damaged_artefact_is_refused_and_made_again(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    graph = random_graph(60, 200, width=3)
    artifact = partition_artifact(graph, Random(), HOSTS, 0, tmp_path)
    before = artifact.digest
    file, manifest = artifact.path / "rank-1" / "indices.npy", artifact.path / "artifact.json"
    table = json.loads(manifest.read_text())
    if damage == "byte":
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    elif damage == "short":
        file.write_bytes(file.read_bytes()[:-4])
    elif damage == "longer":
        with file.open("ab") as stream:
            stream.truncate(2**43)
    elif damage in ("missing", "pipe", "device"):
        file.unlink()
        if damage == "pipe":
            os.mkfifo(file)
        elif damage == "device":
            file.symlink_to("/dev/zero")
    elif damage == "manifest":
        manifest.write_text(json.dumps({**table, "details": {**table["details"], "ranks": 2}}))
    elif damage == "version":
        manifest.write_text(json.dumps({**table, "format": 0}))
    else:
        manifest.unlink()
    with pytest.raises(CorruptArtifactError, match="again"):
        PartitionArtifact.open(artifact.path).local(1)
    if damage in CHANGED:
        PartitionArtifact.open(artifact.path).local(0)
    with caplog.at_level(logging.WARNING):
        again = partition_artifact(graph, Random(), HOSTS, 0, tmp_path)
    assert again.made
    assert again.digest == before
    assert "made again" in caplog.text
    again.local(1)


def test_a_rank_that_is_not_there(tmp_path: Path) -> None:
    artifact = partition_artifact(random_graph(60, 200, width=2), Random(), HOSTS, 0, tmp_path)
    shards = shard_artifact(random_graph(60, 200, width=2), artifact, "float32")
    for kept in (artifact.local, shards.rank):
        with pytest.raises(ConfigError, match="made for 3 ranks; there is no rank 3"):
            kept(3)
    with pytest.raises(ConfigError, match="partition"):
        ShardArtifact.open(artifact.path)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_shards_are_rows_in_local_order(dtype: str, tmp_path: Path) -> None:
    graph = random_graph(90, 300, width=7)
    artifact = partition_artifact(graph, Metis(balance=("vertices",)), HOSTS, 0, tmp_path)
    made = shard_artifact(graph, artifact, dtype)
    assert made.path.is_relative_to(tmp_path)
    assert not shard_artifact(graph, artifact, dtype).made
    for rank in range(3):
        shard, owned = ShardArtifact.open(made.path).rank(rank), artifact.local(rank).owned
        assert shard.features.dtype == dtype
        np.testing.assert_array_equal(shard.features, graph.features[owned].astype(dtype))
        np.testing.assert_array_equal(shard.labels, graph.labels[owned])
        for name in ("train_mask", "validation_mask", "test_mask"):
            np.testing.assert_array_equal(getattr(shard, name), getattr(graph, name)[owned])


def test_sparse_features_stay_sparse(tmp_path: Path) -> None:
    features = sparse.random_array((90, 40), density=0.1, format="csr", dtype=np.float32, rng=np.random.default_rng(1))
    labels = np.random.default_rng(0).integers(0, 2, (90, 4)).astype(bool)
    graph = replace(
        random_graph(90, 300), features=sparse.csr_array(features), labels=labels, multilabel=True, test_mask=None
    )
    artifact = partition_artifact(graph, Random(), HOSTS, 0, tmp_path)
    shards = shard_artifact(graph, artifact, "float64")
    for rank in range(3):
        shard, owned = shards.rank(rank), artifact.local(rank).owned
        assert isinstance(shard.features, sparse.csr_array)
        assert shard.features.dtype == np.float64
        np.testing.assert_array_equal(shard.features.todense(), features[owned].todense())
        np.testing.assert_array_equal(shard.labels, labels[owned])
        assert not shard.test_mask.any()


def test_shards_refuse_what_they_cannot_hold(tmp_path: Path) -> None:
    bare = random_graph(30, 60)
    artifact = partition_artifact(bare, Random(), HOSTS, 0, tmp_path)
    with pytest.raises(GraphError, match="stand_in_features"):
        shard_artifact(bare, artifact, "float32")
    huge = replace(bare, features=np.full((30, 2), 1e6, dtype=np.float32))
    artifact = partition_artifact(huge, Random(), HOSTS, 0, tmp_path)
    with pytest.raises(GraphError, match=r"too large for train\.dtype = 'float16'"):
        shard_artifact(huge, artifact, "float16")
    with pytest.raises(ConfigError, match=r"train\.dtype = 'int8'"):
        shard_artifact(huge, artifact, "int8")
