"""Statistics files that were damaged: those that were counted by their digest, hand-written ones by their schema."""

import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from partition_graphs import random_graph
from scipy import sparse

from simgnn.errors import ConfigError
from simgnn.partition.partition import partitioned
from simgnn.partition.partitioners.ebv import Ebv
from simgnn.partition.partitioners.random import Random
from simgnn.partition.statistics.count import partition_stats
from simgnn.partition.statistics.file import load_stats, save_stats
from simgnn.partition.statistics.partition_stats import DEGREES, Origin, PartitionStats, degree_table, stats_to_parts
from simgnn.tomlfile import write_toml

HOSTS = np.array([0, 0, 1, 1])


@cache
def counted(cut: str) -> PartitionStats:
    """Statistics of a small graph with sparse features, with every table that there is."""
    policy = Ebv() if cut == "vertex-cut" else Random()
    graph = random_graph(60, 200, width=6)
    features = np.asarray(graph.features)
    graph = replace(graph, features=sparse.csr_array(np.where(features > 0, features, 0)))
    stats = partition_stats(graph, partitioned(policy, graph, HOSTS, 0), HOSTS)
    tables = {**stats.tables} if cut == "vertex-cut" else {**stats.tables, DEGREES: degree_table(graph.csr)}
    return replace(stats, tables=tables, made_by=policy, origin=Origin("g", "c", "p"))


def with_companion(stats: PartitionStats, path: Path, counted_from: bool) -> dict[str, Any]:
    """Write ``stats`` with all arrays in a companion file, which are returned."""
    save_stats(stats if counted_from else replace(stats, origin=None), path)
    document = tomllib.loads(path.read_text())
    section = {key: document["partition"][key] for key in ("kind", "made_by", "counted_from")[: 2 + counted_from]}
    write_toml(path, {**document, "partition": {**section, "arrays": "stats.npz"}})
    arrays: dict[str, Any] = {name: np.asarray(array) for name, array in stats_to_parts(stats)[1].items()}
    np.savez(path.with_suffix(".npz"), **arrays)
    return arrays


@pytest.mark.parametrize("cut", ["edge-cut", "vertex-cut"])
def test_any_number_that_changed_after_it_was_counted_is_found(cut: str, tmp_path: Path) -> None:
    stats, path, draw = counted(cut), tmp_path / "stats.toml", np.random.default_rng(0)
    arrays = with_companion(stats, path, counted_from=True)
    assert load_stats(path).origin == stats.origin
    for name, array in arrays.items():
        changed = array.copy()
        changed.flat[draw.integers(changed.size)] += 1
        for damaged in ({**arrays, name: changed}, {key: value for key, value in arrays.items() if key != name}):
            np.savez(tmp_path / "stats.npz", **damaged)
            with pytest.raises(ConfigError, match=r"stats\.toml: partition\.(counted_from|arrays|\w+: got)"):
                load_stats(path)


@pytest.mark.parametrize("cut", ["edge-cut", "vertex-cut"])
@pytest.mark.parametrize("change", ["shorter", "negative", "no number", "text", "one axis more"])
def test_tables_of_another_form_are_rejected_without_a_digest(cut: str, change: str, tmp_path: Path) -> None:
    """As a hand-written file may have them."""
    stats, path = counted(cut), tmp_path / "stats.toml"
    arrays = with_companion(stats, path, counted_from=False)
    assert load_stats(path).origin is None
    for name, array in arrays.items():
        first = array.astype(np.float64 if change == "no number" else array.dtype)
        first.flat[0] = {"negative": -1, "no number": np.nan}.get(change, first.flat[0])
        shorter = array[:-1] if "locality" in name else array[..., :-1]
        changed = {"shorter": shorter, "text": array.astype(str), "one axis more": array[None]}.get(change, first)
        np.savez(tmp_path / "stats.npz", **{**arrays, name: changed})
        with pytest.raises(ConfigError, match=r"stats\.toml: partition\."):
            load_stats(path)


def test_companions_that_are_cut_off_are_refused(tmp_path: Path) -> None:
    stats, path = counted("vertex-cut"), tmp_path / "stats.toml"
    save_stats(stats, path)
    document = tomllib.loads(path.read_text())
    write_toml(path, {**document, "partition": {"kind": "vertex-cut", "arrays": "stats.npz"}})
    companion = tmp_path / "stats.npz"
    np.savez_compressed(companion, **stats_to_parts(stats)[1])  # type: ignore[arg-type]
    whole = companion.read_bytes()
    load_stats(path)
    for size in (0, 1, 30, len(whole) // 2, len(whole) - 1):
        companion.write_bytes(whole[:size])
        with pytest.raises(ConfigError, match=r"'stats\.npz' cannot be read as \.npz"):
            load_stats(path)
    refused = list[str]()
    for place in range(0, len(whole), len(whole) // 40):
        companion.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            assert load_stats(path).tables.keys() == stats.tables.keys()  # a date or another field that nobody reads
        except ConfigError as error:
            refused.append(str(error))
    assert len(refused) > 20
    assert all("stats.toml" in told for told in refused)
    np.save(tmp_path / "single.npy", np.arange(3))
    companion.write_bytes((tmp_path / "single.npy").read_bytes())
    with pytest.raises(ConfigError, match=r"not an \.npz archive"):
        load_stats(path)
