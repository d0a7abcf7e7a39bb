"""``stats:`` files: round trips, even spreads, and a clear message for every fault."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from partition_graphs import random_graph

from simgnn.errors import ConfigError
from simgnn.graph.store import graph_digest
from simgnn.partition.partition import partitioned
from simgnn.partition.partitioners.ebv import Ebv
from simgnn.partition.partitioners.random import Random
from simgnn.partition.statistics.count import partition_stats
from simgnn.partition.statistics.file import even, load_stats, save_stats
from simgnn.partition.statistics.partition_stats import Origin, measure, stats_to_parts
from simgnn.partition.statistics.schema import LARGEST_RANKS
from simgnn.partition.store import partition_artifact
from simgnn.policy import Partitioner

GRAPH = """
[graph]
name = "papers100M"
vertices = 1000
edges = 9001
feature_width = 128
classes = 172
train_vertices = 11
validation_vertices = 5
"""
EXPLICIT = """
[partition]
rows = [600, 400]
edges = [5001, 4000]
halo = [[0, 1, 77], [1, 0, 90]]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "stats.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("policy", [Random(), Ebv()], ids=lambda policy: policy.kind)
@pytest.mark.parametrize("ranks", [1, 3, 40])
def test_round_trip(policy: Partitioner, ranks: int, tmp_path: Path) -> None:
    graph = random_graph(300, 2000)
    hosts = np.arange(ranks) // 2
    stats = partition_stats(graph, partitioned(policy, graph, hosts, 0), hosts)
    path = tmp_path / "kept.toml"
    save_stats(stats, path)
    assert path.with_suffix(".npz").exists() == (ranks == 40 or (ranks == 1 and policy.kind == "ebv"))
    found = load_stats(path)
    described, arrays = stats_to_parts(stats)
    described_too, arrays_too = stats_to_parts(found)
    assert {**described, "digest": ""} == {**described_too, "digest": ""}
    assert arrays.keys() == arrays_too.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, arrays_too[name])
    save_stats(found, path)
    assert load_stats(path).digest == found.digest
    assert measure(found) == measure(stats)


@pytest.mark.parametrize("policy", [Random(), Ebv()], ids=lambda policy: policy.kind)
@pytest.mark.parametrize("ranks", [3, 40])
def test_a_file_says_what_it_was_counted_from(policy: Partitioner, ranks: int, tmp_path: Path) -> None:
    """Inline and with a companion file; while its numbers are as they were counted."""
    graph, path = random_graph(300, 2000), tmp_path / "kept.toml"
    artifact = partition_artifact(graph, policy, np.arange(ranks) // 2, 0, tmp_path)
    assert artifact.stats.origin == Origin(graph_digest(graph), artifact.cut_digest, artifact.digest)
    save_stats(artifact.stats, path)
    found = load_stats(path)
    assert found.origin == artifact.origin
    assert found.on_hosts(found.hosts).origin == artifact.origin
    assert found.on_hosts(np.arange(ranks)).origin == replace(artifact.origin, partition=None)
    save_stats(found, path)
    assert load_stats(path).origin == artifact.origin
    text = path.read_text()
    path.write_text(text.replace(f'name = "{graph.name}"', 'name = "another"'))
    assert load_stats(path).origin == artifact.origin
    path.write_text(text.replace("classes = ", "classes = 1"))
    with pytest.raises(ConfigError, match=r"partition\.counted_from\.numbers") as raised:
        load_stats(path)
    assert raised.value.exit_status == 2
    section = text.index("[partition.counted_from]")
    rest = text.find("\n[", section)
    path.write_text(text[:section] + (text[rest:] if rest >= 0 else ""))
    assert load_stats(path).origin is None
    numbers = text.index("numbers = ")
    path.write_text(text[:numbers] + text[text.index("\n", numbers) :])
    with pytest.raises(ConfigError, match=r"partition\.counted_from\.numbers: missing"):
        load_stats(path)


def test_explicit_numbers(tmp_path: Path) -> None:
    stats = load_stats(write(tmp_path, GRAPH + EXPLICIT))
    assert stats.rows.tolist() == [600, 400]
    assert stats.halo.matrix(2).tolist() == [[0, 77], [90, 0]]
    assert stats.hosts.tolist() == [0, 0]
    assert stats.notes == ()
    assert stats.facts.validation_vertices == 5


def test_summary_numbers_are_spread_and_marked(tmp_path: Path) -> None:
    text = GRAPH + "feature_nonzeros = 5000\n[partition]\nranks = 4\nhosts = [0, 0, 1, 1]\nreplication_factor = 1.5\n"
    stats = load_stats(write(tmp_path, text))
    assert stats.rows.tolist() == [250, 250, 250, 250]
    assert stats.edges.tolist() == [2251, 2250, 2250, 2250]
    assert stats.halo_rows().tolist() == [125, 125, 125, 125]
    matrix = stats.halo.matrix(4)
    assert sorted(set(matrix[~np.eye(4, dtype=bool)].tolist())) == [41, 42]
    assert matrix.sum(axis=1).tolist() == [125, 125, 125, 125]
    assert stats.tables["train_rows"].sum() == 11
    assert stats.tables["feature_nonzeros"].sum() == 5000
    assert measure(stats).replication_factor == 1.5
    assert "spread evenly" in stats.notes[0]
    imbalanced = text + "vertex_imbalance = 1.2\nedge_imbalance = 2.0\n"
    quality = measure(load_stats(write(tmp_path, imbalanced)))
    assert quality.vertex_imbalance == pytest.approx(1.2)
    assert quality.edge_imbalance == pytest.approx(2.0, rel=1e-3)


def test_halo_rows_by_rank_and_one_rank(tmp_path: Path) -> None:
    stats = load_stats(write(tmp_path, GRAPH + "[partition]\nranks = 3\nhalo_rows = [10, 0, 7]\n"))
    assert stats.halo_rows().tolist() == [10, 0, 7]
    assert (
        load_stats(write(tmp_path, GRAPH + "[partition]\nranks = 3\nhalo_rows = 4\n")).halo_rows().tolist() == [4] * 3
    )
    alone = load_stats(write(tmp_path, GRAPH + "[partition]\nranks = 1\n"))
    assert alone.rows.tolist() == [1000]
    assert len(alone.halo.rows) == 0


def test_tables_in_the_file(tmp_path: Path) -> None:
    text = GRAPH + EXPLICIT + '[partition.tables]\ntrain_rows = [6, 5]\n"locality/forward" = [[0.1, 0.5], [0.2, 0.2]]\n'
    stats = load_stats(write(tmp_path, text))
    assert stats.tables["train_rows"].dtype == np.int64
    assert stats.tables["locality/forward"].tolist() == [[0.1, 0.5], [0.2, 0.2]]


def test_digest_is_of_the_numbers(tmp_path: Path) -> None:
    one = load_stats(write(tmp_path, GRAPH + EXPLICIT)).digest
    assert load_stats(write(tmp_path, GRAPH.replace("papers100M", "x") + EXPLICIT)).digest == one
    assert load_stats(write(tmp_path, GRAPH + EXPLICIT.replace("77", "78"))).digest != one
    assert load_stats(write(tmp_path, GRAPH.replace("128", "129") + EXPLICIT)).digest != one


FAULTS = {
    "no table graph": (EXPLICIT, r"graph: missing; expected a table with name, vertices"),
    "unknown key": (
        GRAPH + EXPLICIT + "halos = 3\n",
        r"partition\.halos: unknown key \(did you mean 'halo'\?\)",
    ),
    "unknown table": (GRAPH + EXPLICIT + "[partitions]\nranks = 3\n", r"partitions: unknown key \(did you mean"),
    "unknown maker": (GRAPH + EXPLICIT + "[partition.made_by]\nkind = 'mets'\n", r"made_by: kind: .*mean 'metis'"),
    "maker without a kind": (GRAPH + EXPLICIT + "made_by = 'metis'\n", r"partition\.made_by: expected a table"),
    "unknown option of the maker": (
        GRAPH + EXPLICIT + "[partition.made_by]\nkind = 'metis'\nbalanse = ['edges']\n",
        r"made_by: balanse: unknown key \(did you mean 'balance'",
    ),
    "not a number": (GRAPH.replace("1000", "'many'") + EXPLICIT, r"graph\.vertices.*'many'"),
    "no partition": (GRAPH + "[partition]\n", r"partition: expected ranks"),
    "neither factor nor rows": (GRAPH + "[partition]\nranks = 4\n", r"replication_factor and halo_rows"),
    "two forms": (GRAPH + EXPLICIT + "replication_factor = 2.0\n", r"partition: mixes two forms"),
    "half of a form": (GRAPH + "[partition]\nrows = [1000]\n", r"needed together"),
    "rows do not add up": (GRAPH + EXPLICIT.replace("600", "601"), r"partition\.rows: add up to 1001.*1000"),
    "edges do not add up": (GRAPH + EXPLICIT.replace("5001", "5002"), r"partition\.edges: add up to 9002"),
    "rank out of range": (
        GRAPH + EXPLICIT.replace("[1, 0, 90]", "[2, 0, 90]"),
        r"partition\.halo.*expected numbers in 0\.\.1",
    ),
    "own halo": (GRAPH + EXPLICIT.replace("[1, 0, 90]", "[1, 1, 90]"), r"partition\.halo.*itself"),
    "pair twice": (GRAPH + EXPLICIT.replace("[1, 0, 90]", "[0, 1, 90]"), r"partition\.halo.*twice"),
    "more than the owner has": (GRAPH + EXPLICIT.replace("90", "401"), r"partition\.halo.*more rows"),
    "hosts": (GRAPH + EXPLICIT + "hosts = [0]\n", r"partition\.hosts: got 1 numbers, expected 2"),
    "factor above ranks": (
        GRAPH + "[partition]\nranks = 2\nreplication_factor = 3.0\n",
        r"replication_factor.*at most 2",
    ),
    "imbalance above ranks": (
        GRAPH + "[partition]\nranks = 2\nhalo_rows = 3\nedge_imbalance = 3.0\n",
        r"edge_imbalance: got 3\.0, expected at most 2",
    ),
    "halo rows by rank": (GRAPH + "[partition]\nranks = 3\nhalo_rows = [1, 2]\n", r"partition\.halo_rows: got 2"),
    "masks": (GRAPH.replace("train_vertices = 11", "train_vertices = 999") + EXPLICIT, r"graph: train.*1004"),
    "mask table": (GRAPH + EXPLICIT + "[partition.tables]\ntrain_rows = [1, 2]\n", r"tables\.train_rows.*= 11"),
    "ragged table": (GRAPH + EXPLICIT + "[partition.tables]\nx = [[1], [1, 2]]\n", r"partition\.tables\.x"),
    "words in a table": (GRAPH + EXPLICIT + "[partition.tables]\nx = ['a']\n", r"partition\.tables\.x"),
    "locality": (
        GRAPH + EXPLICIT + '[partition.tables]\n"locality/forward" = [[0.5, 0.1], [0.1, 0.2]]\n',
        r"locality/forward.*do not decrease",
    ),
    "companion": (GRAPH + "[partition]\narrays = 'none.npz'\n", r"partition\.arrays: 'none\.npz' cannot be read"),
    "toml": (GRAPH + "[partition", r"not valid TOML"),
    "format": ("format = 9\n" + GRAPH + EXPLICIT, r"format"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_name_their_key(fault: str, tmp_path: Path) -> None:
    text, message = FAULTS[fault]
    with pytest.raises(ConfigError, match=message) as caught:
        load_stats(write(tmp_path, text))
    assert str(tmp_path / "stats.toml") in str(caught.value)


def test_bad_companions(tmp_path: Path) -> None:
    path = write(tmp_path, GRAPH + "[partition]\narrays = 'c.npz'\n")
    (tmp_path / "c.npz").write_bytes(b"no zip")
    with pytest.raises(ConfigError, match=r"cannot be read as \.npz"):
        load_stats(path)
    np.savez(tmp_path / "c.npz", rows=np.array([1000]), extra=np.array([1]))
    with pytest.raises(ConfigError, match=r"lacks edges.*unknown arrays: extra"):
        load_stats(path)
    np.savez(tmp_path / "c.npz", **{name: np.array(["x"]) for name in ("rows", "edges")})
    with pytest.raises(ConfigError, match="lacks"):
        load_stats(path)
    pickled = np.array([{}], dtype=object)
    np.savez(tmp_path / "c.npz", rows=pickled)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_stats(path)


@pytest.mark.parametrize("ranks", [0, LARGEST_RANKS + 1])
def test_companions_have_no_more_ranks_than_the_file_may(ranks: int, tmp_path: Path) -> None:
    path = write(tmp_path, GRAPH.replace("1000", str(LARGEST_RANKS + 1)) + "[partition]\narrays = 'c.npz'\n")
    edges = np.zeros(ranks, dtype=np.int64)
    edges[:1] = 9001
    none = dict.fromkeys(("halo/source", "halo/target", "halo/rows"), np.empty(0, dtype=np.int64))
    np.savez(tmp_path / "c.npz", rows=np.ones(ranks, dtype=np.int64), edges=edges, **none)
    with pytest.raises(ConfigError, match=rf"partition\.rows: got {ranks} numbers, expected .* 1\.\.{LARGEST_RANKS}"):
        load_stats(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_stats(tmp_path / "absent.toml")


def test_even_shares() -> None:
    assert even(7, 3).tolist() == [3, 2, 2]
    assert even(0, 2).tolist() == [0, 0]


def test_notes_are_kept(tmp_path: Path) -> None:
    stats = load_stats(write(tmp_path, GRAPH + EXPLICIT))
    save_stats(replace(stats, notes=("made up",)), tmp_path / "other.toml")
    assert load_stats(tmp_path / "other.toml").notes == ("made up",)
