"""Damaged statistics files: every table and every number of the base, dropped, shortened, or holding what cannot be."""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from partition_graphs import random_graph
from scipy import sparse

from simgnn.errors import ConfigError
from simgnn.partition.build_stats import partition_stats
from simgnn.partition.degrees import DEGREES, degree_table
from simgnn.partition.partition import partitioned
from simgnn.partition.partitioners.ebv import Ebv
from simgnn.partition.partitioners.random import Random
from simgnn.partition.stats import Origin, PartitionStats
from simgnn.partition.statscode import TABLE, stats_to_parts
from simgnn.partition.statsfile import load_stats, save_stats
from simgnn.tomlfile import write_toml

HOSTS = np.array([0, 0, 1, 1])
Change = Callable[[NDArray[Any]], Any]


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


def first(value: Any) -> Change:
    """Another first number."""

    def change(array: NDArray[Any]) -> NDArray[Any]:
        wide = array.astype(np.float64 if isinstance(value, float) or array.dtype.kind == "f" else np.int64)
        wide.flat[0] = value
        return wide

    return change


CHANGES: Mapping[str, Change] = {
    "a row less": lambda array: array[:-1],
    "a column less": lambda array: array[..., :-1],
    "negative": first(-1),
    "too large": first(2**61),
    "larger than any": lambda array: np.full(array.shape, 2**40, np.int64),
    "no number": first(float("nan")),
    "infinite": first(float("inf")),
    "a fraction": first(2.5),
    "text": lambda array: array.astype(str),
    "truth": lambda array: array.astype(bool),
    "one axis more": lambda array: array[None],
    "complex": lambda array: array.astype(complex),
    "dates": lambda array: array.astype(np.int64).astype("datetime64[s]"),
}
INLINE = ("a row less", "negative", "no number", "text")


@pytest.mark.parametrize("cut", ["edge-cut", "vertex-cut"])
@pytest.mark.parametrize("change", CHANGES)
def test_changed_arrays_are_refused(cut: str, change: str, tmp_path: Path) -> None:
    """In the companion file."""
    stats, path = counted(cut), tmp_path / "stats.toml"
    save_stats(replace(stats, tables={**stats.tables}), path)
    arrays = {name: np.asarray(array) for name, array in stats_to_parts(stats)[1].items()}
    document = tomllib.loads(path.read_text())
    section = {key: document["partition"][key] for key in ("kind", "made_by", "counted_from")}
    write_toml(path, {**document, "partition": {**section, "arrays": "stats.npz"}})
    np.savez(tmp_path / "stats.npz", **arrays)
    assert load_stats(path).origin == stats.origin
    for name, array in arrays.items():
        found = CHANGES[change](array)
        if array.dtype.kind == "f" and change in ("a fraction",):
            found = np.full_like(array, 2.5)
        np.savez(tmp_path / "stats.npz", **{**arrays, name: found})
        with pytest.raises(ConfigError, match=str(path)):
            load_stats(path)


@pytest.mark.parametrize("cut", ["edge-cut", "vertex-cut"])
def test_changed_numbers_in_the_file_are_refused(cut: str, tmp_path: Path) -> None:
    """Inline: every list dropped, shortened, and with another first number; dropped tables that only other questions
    need change nothing."""
    stats, path = counted(cut), tmp_path / "stats.toml"
    save_stats(stats, path)
    document, digest = tomllib.loads(path.read_text()), load_stats(path).digest
    lists = [("partition", name) for name in ("rows", "edges", "hosts", "halo")]
    lists += [("partition", "tables", name) for name in document["partition"]["tables"]]
    for keys in lists:
        *parents, name = keys
        for change in (None, *INLINE):
            table = _copied(document)
            section: Any = table
            for part in parents:
                section = section[part]
            if change is None:
                del section[name]
            else:
                section[name] = CHANGES[change](np.array(section[name])).tolist()
            write_toml(tmp_path / "changed.toml", table)
            if change is None and name == DEGREES:
                assert load_stats(tmp_path / "changed.toml").digest != digest
                continue
            with pytest.raises(ConfigError, match=r"changed\.toml"):
                load_stats(tmp_path / "changed.toml")


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return list(value) if isinstance(value, list) else value


@pytest.mark.parametrize("cut", ["edge-cut", "vertex-cut"])
def test_any_one_whole_number_that_is_changed_is_refused(cut: str, tmp_path: Path) -> None:
    """Sums agree, so that no number of rows, edges, mirrors or labels stands alone."""
    stats, path = counted(cut), tmp_path / "stats.toml"
    arrays = {name: np.asarray(array) for name, array in stats_to_parts(stats)[1].items()}
    save_stats(stats, path)
    document, draw = tomllib.loads(path.read_text()), np.random.default_rng(0)
    section = {key: document["partition"][key] for key in ("kind", "made_by", "counted_from")}
    write_toml(path, {**document, "partition": {**section, "arrays": "stats.npz"}})
    free = ["neighbor_feature_nonzeros", "aggregated_feature_nonzeros", "halo_feature_nonzeros", "hosts"]
    free += ["halo/rows"] if cut == "edge-cut" else []  # nothing tells how many edges there are of a halo row
    names = [name for name in arrays if not name.endswith(tuple(free)) and arrays[name].dtype.kind == "i"]
    assert {"rows", "edges", "halo/source", "train_rows"} <= {name.removeprefix(TABLE) for name in names}
    for name in (each for each in names for _ in range(4)):
        changed = arrays[name].copy()
        changed.flat[draw.integers(changed.size)] += draw.choice([-1, 1])
        np.savez(tmp_path / "stats.npz", **{**arrays, name: changed})
        with pytest.raises(ConfigError, match=str(path)):
            load_stats(path)


@pytest.mark.parametrize(
    ("hosts", "message"), [(0, "got 0"), (1, "got 1"), (3, r"2\.\.3 hosts of a vertex, expected 2")]
)
def test_a_vertex_lies_on_as_many_hosts_as_there_are(hosts: int, message: str, tmp_path: Path) -> None:
    stats, path = counted("vertex-cut"), tmp_path / "stats.toml"
    table = stats.tables["mirrors/across/hosts"].copy()
    table[0 if hosts < 2 else -1, 2] = hosts
    save_stats(replace(stats, tables={**stats.tables, "mirrors/across/hosts": table}), path)
    with pytest.raises(ConfigError, match=rf"mirrors/across/hosts: .*{message}"):
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
    with pytest.raises(ConfigError, match="no archive"):
        load_stats(path)
