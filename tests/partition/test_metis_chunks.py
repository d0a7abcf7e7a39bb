"""The partitioner metis-chunks: METIS's parts, chunks kept on disk, tables of statistics, and what is refused."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chunk_reference import Reference, Sets, total
from partition_graphs import random_graph
from pydantic import ValidationError

from simgnn.errors import ConfigError
from simgnn.graph.graph import Graph
from simgnn.hardware.price.transfer_rates import TransferRates
from simgnn.partition.chunks.counts import counted, kept_counts
from simgnn.partition.chunks.store import ChunkArtifact, chunk_artifact
from simgnn.partition.chunks.tables import BY_BATCH, BY_PAIR, HELD, LOADED, REMOTE, ROWS, buffer_rows
from simgnn.partition.folder import CorruptArtifactError, cache_folder
from simgnn.partition.partition import partitioned
from simgnn.partition.partitioners.metis import Metis
from simgnn.partition.partitioners.metis_chunks import MetisChunks
from simgnn.partition.statistics.file import load_stats, save_stats
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.partition.store import PartitionArtifact, partition_artifact
from simgnn.seal import file_digest

RATES = TransferRates(host_to_device_bytes_per_s=3e10, device_to_device_bytes_per_s=2e11, reuse_bytes_per_s=7e11)
HOSTS = np.zeros(3, dtype=np.int64)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return random_graph(300, 1200, seed=2)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def parts(graph: Graph, cache: Path) -> PartitionArtifact:
    return partition_artifact(graph, MetisChunks(chunks=5), HOSTS, 0, cache)


@pytest.fixture(scope="module")
def chunks(graph: Graph, parts: PartitionArtifact, cache: Path) -> ChunkArtifact:
    return chunk_artifact(graph, parts, MetisChunks(chunks=5, rates=RATES).settings(), cache)


def test_its_parts_are_those_of_metis_by_vertices_to_the_last_bit(
    graph: Graph, parts: PartitionArtifact, cache: Path
) -> None:
    metis = partition_artifact(graph, Metis(balance=("vertices",)), HOSTS, 0, cache)
    assert (metis.path, metis.digest, metis.made) == (parts.path, parts.digest, False)
    direct = partitioned(MetisChunks(chunks=5), graph, HOSTS, 0)
    assert direct.digest == partitioned(Metis(balance=("vertices",)), graph, HOSTS, 0).digest
    two = np.array([0, 0, 1])
    for hosts, policy in (
        (HOSTS, MetisChunks(chunks=2, imbalance=1.2)),
        (HOSTS, MetisChunks(chunks=2, reorder="none")),
        (np.array([0, 0, 1, 1]), MetisChunks(chunks=2, across="hosts")),
    ):
        assert partition_artifact(graph, policy, hosts, 0, cache).path != parts.path
    with pytest.raises(ConfigError, match="across = 'hosts'"):
        partition_artifact(graph, MetisChunks(chunks=2, across="hosts"), two, 0, cache)


def test_what_is_kept_is_what_the_definitions_say(
    graph: Graph, parts: PartitionArtifact, chunks: ChunkArtifact
) -> None:
    reference = Reference.of(graph.csr, parts.partition.owner, 3, 5, 1.0, True)
    sets = Sets.of(reference, chunks.order.tolist())
    volumes = chunks.volumes
    assert (volumes.v_ori, volumes.v_p2p, volumes.v_ru) == (sets.v_ori, sets.v_p2p, sets.v_ru)
    assert (volumes.v_dd, volumes.v_ddr) == (total(sets.remote), total(sets.remote_new))
    assert volumes.v_reuse_only == sets.v_reuse_only
    for rank in range(3):
        kept, slots = chunks.rank(rank), sets.slots(rank)
        assert kept.vertices.tolist() == np.flatnonzero(parts.partition.owner == rank).tolist()
        for j, batch in enumerate(kept.batches()):
            assert dict(zip(batch.held.tolist(), batch.slots.tolist(), strict=True)) == slots[j]
            assert batch.needed.tolist() == sorted(sets.needed[rank][j])
            assert {owner: part.stop - part.start for owner, part in batch.remote.items()} == {
                owner: len(sets.remote[rank][j] & reference.own(owner))
                for owner in range(3)
                if sets.remote[rank][j] & reference.own(owner)
            }
    assert buffer_rows(chunks.tables).tolist() == [max(map(len, held)) for held in sets.held]
    assert chunks.tables[LOADED].tolist() == [[len(batch) for batch in loaded] for loaded in sets.loaded]
    assert chunks.costs[chunks.chosen].cost <= chunks.costs["initial"].cost  # type: ignore[operator]


def test_chunks_are_made_once_for_their_settings_on_any_hosts(
    graph: Graph, parts: PartitionArtifact, chunks: ChunkArtifact, cache: Path
) -> None:
    assert chunks.made
    policy = MetisChunks(chunks=5, rates=RATES)
    again = chunk_artifact(graph, parts, policy.settings(), cache)
    assert (again.made, again.path, again.digest) == (False, chunks.path, chunks.digest)
    others = [
        MetisChunks(chunks=4, rates=RATES),
        MetisChunks(chunks=5, rates=RATES, chunk_vertex_weight=2.0),
        MetisChunks(chunks=5, rates=RATES, include_self=False),
        MetisChunks(chunks=5, rates=RATES, peer_rows="exact"),
        MetisChunks(chunks=5, rates=RATES, candidates=("p1",)),
        MetisChunks(chunks=5, rates=RATES.model_copy(update={"reuse_bytes_per_s": 1e9})),
    ]
    paths = {chunk_artifact(graph, parts, other.settings(), cache).path for other in others}
    assert len(paths | {chunks.path}) == 1 + len(others)
    elsewhere = partition_artifact(graph, policy, np.arange(3), 0, cache)
    if elsewhere.partition.digest == parts.partition.digest:
        assert chunk_artifact(graph, elsewhere, policy.settings(), cache).path == chunks.path


def test_counts_without_keeping_are_those_that_are_kept(
    graph: Graph, parts: PartitionArtifact, chunks: ChunkArtifact
) -> None:
    settings = MetisChunks(chunks=5, rates=RATES).settings()
    assert counted(graph, parts, settings) == kept_counts(chunks, graph.vertices)
    one = counted(graph, parts, MetisChunks(chunks=5, candidates=("initial",)).settings(1))
    assert (one.volumes.v_ru, one.volumes.v_p2p, one.cost) == (300, 300, None)


def copied(chunks: ChunkArtifact, tmp_path: Path) -> Path:
    return Path(shutil.copytree(chunks.path, tmp_path / "copy"))


@pytest.mark.parametrize("file", ["rank-1/slots", "rank-0/indices", "table/chunks/loaded", "order"])
def test_damage_is_noticed_and_made_again(
    graph: Graph, parts: PartitionArtifact, cache: Path, tmp_path: Path, file: str
) -> None:
    settings = MetisChunks(chunks=3, rates=RATES).settings()
    made = chunk_artifact(graph, parts, settings, tmp_path)
    path = made.path / f"{file}.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    opened = ChunkArtifact(made.folder)
    with pytest.raises(CorruptArtifactError, match=f"{file}.npy is damaged"):
        _ = opened.order, opened.tables, opened.rank(0), opened.rank(1)
    again = chunk_artifact(graph, parts, settings, tmp_path)
    assert (again.made, again.digest) == (True, made.digest)


def test_a_foreign_folder_is_refused(graph: Graph, parts: PartitionArtifact, tmp_path: Path) -> None:
    three, four = (MetisChunks(chunks=number, rates=RATES).settings() for number in (3, 4))
    made = chunk_artifact(graph, parts, three, tmp_path)
    other = chunk_artifact(graph, parts, four, tmp_path)
    shutil.rmtree(other.path)
    shutil.copytree(made.path, other.path)
    with pytest.raises(ConfigError, match="holds chunks of another partition or order"):
        chunk_artifact(graph, parts, four, tmp_path)
    with pytest.raises(ConfigError, match="there is no rank 3"):
        made.rank(3)


@pytest.mark.parametrize("change", ["another type", "an unknown array", "a missing array"])
def test_arrays_of_another_schema_are_noticed_though_their_digests_fit(
    graph: Graph, parts: PartitionArtifact, tmp_path: Path, change: str
) -> None:
    made = chunk_artifact(graph, parts, MetisChunks(chunks=2, rates=RATES).settings(), tmp_path)
    files = dict(made.folder.files)
    name = "rank-0/extra" if change == "an unknown array" else "rank-0/slots"
    if change == "a missing array":
        del files[name]
    else:
        np.save(made.path / f"{name}.npy", np.zeros(3))
        files[name] = file_digest(made.path / f"{name}.npy")
    with pytest.raises(CorruptArtifactError, match="not made by this version"):
        ChunkArtifact(replace(made.folder, files=files)).rank(0)


def test_tables_go_to_statistics_files_and_back(
    parts: PartitionArtifact, chunks: ChunkArtifact, tmp_path: Path
) -> None:
    stats = replace(parts.stats, tables={**parts.stats.tables, **chunks.tables})
    save_stats(stats, tmp_path / "stats.toml")
    found = load_stats(tmp_path / "stats.toml")
    for name in (*BY_BATCH, *BY_PAIR):
        assert found.tables[name].tolist() == chunks.tables[name].tolist()


def with_table(stats: PartitionStats, name: str, change: Any) -> PartitionStats:
    table = np.array(stats.tables[name])
    return replace(stats, tables={**stats.tables, name: change(table)}, origin=None)


FAULTS = {
    "another number of batches": (HELD, lambda table: table[:, :-1], "got numbers of shape"),
    "rows of a rank": (ROWS, lambda table: table + 1, "add up to"),
    "a rank that is not there": (REMOTE, lambda table: table + np.array([9, 0, 0, 0]), "below"),
    "evicted rows": (LOADED, lambda table: table * 0, "expected as many rows as"),
    "rows of a pair": (REMOTE, lambda table: table[1:], "expected as many rows as"),
    "order of pairs": (REMOTE, lambda table: table[::-1], "ascending order"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_tables_that_contradict_each_other_name_their_key(
    parts: PartitionArtifact, chunks: ChunkArtifact, tmp_path: Path, fault: str
) -> None:
    name, change, told = FAULTS[fault]
    stats = replace(parts.stats, tables={**parts.stats.tables, **chunks.tables})
    save_stats(with_table(stats, name, change), tmp_path / "stats.toml")
    with pytest.raises(ConfigError, match=told) as refused:
        load_stats(tmp_path / "stats.toml")
    assert "partition.tables.chunks/" in str(refused.value)


def test_tables_of_chunks_come_together(parts: PartitionArtifact, chunks: ChunkArtifact, tmp_path: Path) -> None:
    some = {name: table for name, table in chunks.tables.items() if name != HELD}
    save_stats(replace(parts.stats, tables={**parts.stats.tables, **some}, origin=None), tmp_path / "stats.toml")
    with pytest.raises(ConfigError, match=f"got no table {HELD}"):
        load_stats(tmp_path / "stats.toml")


@pytest.mark.parametrize(
    "options",
    [
        {"chunks": 0},
        {"chunks": 2**16 + 1},
        {"chunks": 2.5},
        {"chunks": True},
        {"chunks": "some"},
        {"chunk_vertex_weight": -1.0},
        {"candidates": ()},
        {"candidates": ("p3",)},
        {"peer_rows": "all"},
        {"imbalance": 1.0},
        {"rates": {"host_to_device_bytes_per_s": 0.0, "reuse_bytes_per_s": 1.0}},
        {"rates": {"reuse_bytes_per_s": 1.0}},
    ],
    ids=str,
)
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MetisChunks(**options)


def test_auto_and_too_many_chunks_are_refused(graph: Graph, parts: PartitionArtifact, cache: Path) -> None:
    with pytest.raises(ConfigError, match=r"partition\.chunks: got 'auto', expected a number"):
        MetisChunks().settings()
    fewest = int(parts.partition.rows().min())
    settings = MetisChunks(chunks=fewest + 1, rates=RATES).settings()
    before = sorted(cache_folder(cache).rglob("*"))
    with pytest.raises(ConfigError, match=rf"partition\.chunks: got {fewest + 1}, expected at most {fewest}"):
        chunk_artifact(graph, parts, settings, cache)
    assert [path for path in sorted(cache.rglob("*")) if path.suffix != ".lock"] == [
        path for path in before if path.suffix != ".lock"
    ], "nothing is left half-written"
    chunk_artifact(graph, parts, MetisChunks(chunks=fewest, candidates=("initial",)).settings(), cache)
