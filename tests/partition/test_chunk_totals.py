"""Statistics of chunks from totals: rho, phi and psi of a graph that nobody here can load."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.partition.chunks.spread import ChunkTotals
from simgnn.partition.chunks.tables import (
    BY_BATCH,
    BY_PAIR,
    EVICTED,
    HELD,
    LOADED,
    NEEDED,
    REMOTE,
    ROWS,
    TRANSITION,
    batches_in,
    table_faults,
    volumes_of,
)
from simgnn.partition.statistics.file import load_partitions, load_stats, save_stats
from simgnn.planner.from_statistics import from_statistics
from simgnn.program.sizes import IntArray, Route
from simgnn.progress import SILENT
from simgnn.tomlfile import write_toml

GRAPH = {
    "name": "web", "vertices": 100_000, "edges": 1_500_000, "feature_width": 64, "classes": 8, "train_vertices": 25_000
}  # fmt: skip
PARTITION = {"ranks": 4, "replication_factor": 1.35}
CHUNKS = {"chunks": 8, "rho": 1.9, "phi": 0.7, "psi": 0.6}


def write(folder: Path, partition: Any = None, **chunks: Any) -> Path:
    path = folder / "stats.toml"
    table = {key: value for key, value in {**CHUNKS, **chunks}.items() if value is not None}
    write_toml(path, {"graph": GRAPH, "partition": partition or {**PARTITION, "chunks": table}})
    return path


def test_volumes_are_the_stated_shares(tmp_path: Path) -> None:
    stats = load_stats(write(tmp_path))
    volumes = volumes_of(stats.tables)
    assert volumes.v_ori == pytest.approx(190_000, abs=32)
    assert volumes.v_p2p == pytest.approx(133_000, abs=32)
    assert volumes.v_ru == pytest.approx(114_000, abs=32)
    assert volumes.v_dd == pytest.approx(57_000, abs=32), "equation 4: rows that chunks need beyond those of batches"
    assert volumes.v_ddr == pytest.approx(57_000 * 6 / 7, rel=1e-3)
    assert any("8 chunks" in note and "rho, phi and psi" in note for note in stats.notes)
    save_stats(stats, tmp_path / "again.toml")
    again = load_stats(tmp_path / "again.toml")
    assert all(np.array_equal(stats.tables[name], again.tables[name]) for name in (*BY_BATCH, *BY_PAIR))


def test_other_shares_are_another_partition(tmp_path: Path) -> None:
    one = load_stats(write(tmp_path))
    assert load_stats(write(tmp_path)).digest == one.digest
    assert load_stats(write(tmp_path, psi=0.65)).digest != one.digest


@settings(deadline=None, max_examples=60)
@given(
    ranks=st.integers(1, 5),
    chunks=st.integers(1, 9),
    vertices=st.integers(60, 5000),
    shares=st.tuples(*[st.floats(0, 1)] * 3),
    seed=st.integers(0, 99),
)
def test_tables_that_totals_allow_contradict_nothing(
    ranks: int, chunks: int, vertices: int, shares: tuple[float, float, float], seed: int
) -> None:
    """Whatever rho, phi and psi a partition can have: what is loaded leaves, sets contain each other, sums hold."""
    random = np.random.default_rng(seed)
    cuts = np.sort(random.choice(np.arange(1, vertices // chunks), ranks - 1, replace=False)) * chunks
    rows = np.diff(np.concatenate(([0], cuts, [vertices]))).astype(np.int64)
    edges = random.integers(0, 100, ranks)
    matrix = random.integers(0, 1 + rows.min() // 4, (ranks, ranks))
    np.fill_diagonal(matrix, 0)
    halo = Route.from_matrix(matrix)
    totals = _possible(ranks, chunks, vertices, int(halo.rows.sum()), shares)
    assume(not list(totals.faults(vertices, rows, halo)))
    tables = totals.tables(vertices, rows, edges, halo)
    assert list(table_faults(tables, rows, edges)) == []
    assert all((tables[name] >= 0).all() for name in (*BY_BATCH, *BY_PAIR))
    assert np.array_equal(tables[LOADED][:, 0], tables[TRANSITION][:, 0])
    assert np.array_equal(tables[EVICTED][:, -1], tables[TRANSITION][:, -1])
    slack = 2 * ranks * chunks
    volumes = volumes_of(tables)
    assert abs(volumes.v_p2p - totals.rho * totals.phi * vertices) <= slack
    assert abs(volumes.v_ru - totals.rho * totals.psi * vertices) <= slack
    assert abs(volumes.v_ori - totals.rho * vertices) <= slack
    assert volumes.v_dd >= volumes.v_ori - volumes.v_p2p - slack
    assert volumes.v_ru <= volumes.v_p2p <= volumes.v_ori + slack
    assert tables[NEEDED].sum() == volumes.v_ori
    assert (tables[HELD] >= tables[NEEDED]).all()
    read = tables[HELD] - tables[TRANSITION]
    assert (tables[NEEDED] - read >= tables[ROWS]).all(), "a chunk needs the rows of its own vertices"
    assert int(tables[REMOTE][:, 3].sum()) == volumes.v_dd


def _possible(ranks: int, chunks: int, vertices: int, halo: int, shares: tuple[float, float, float]) -> ChunkTotals:
    """Totals between the bounds that any partition has."""
    rho = (1 + halo / vertices) * (1 + shares[0] * 3)
    least, most = max(1 / ranks, 1 / rho), min(1.0, chunks / rho)
    phi = least + shares[1] * max(most - least, 0.0)
    low = max(1 / rho, phi / chunks)
    return ChunkTotals(chunks=chunks, rho=rho, phi=phi, psi=min(low + shares[2] * max(phi - low, 0.0), phi))


FAULTS = {
    "rho is missing": ({"rho": None}, r"partition\.chunks\.rho"),
    "phi is missing": ({"phi": None}, r"partition\.chunks\.phi"),
    "psi is missing": ({"psi": None}, r"partition\.chunks\.psi"),
    "chunks are missing": ({"chunks": None}, r"partition\.chunks\.chunks"),
    "psi above phi": ({"psi": 0.71}, r"chunks\.psi: got 0\.71, expected at most phi"),
    "phi above 1": ({"phi": 1.01}, r"partition\.chunks\.phi"),
    "psi of zero": ({"psi": 0.0}, r"partition\.chunks\.psi"),
    "phi that no number of ranks allows": ({"phi": 0.24, "psi": 0.2, "rho": 6.0}, r"chunks\.phi: .*1 / 4"),
    "rows that are never loaded": ({"psi": 0.5}, r"chunks\.psi: .*1 / rho"),
    "fewer rows than with one chunk": ({"rho": 1.2, "phi": 1.0, "psi": 1.0}, r"chunks\.rho: .*1\.35"),
    "more rows of a batch than vertices": ({"chunks": 1, "rho": 1.4, "phi": 0.9, "psi": 0.9}, r"chunks\.phi: .*chunks"),
    "more chunks than vertices": ({"chunks": 30_000}, r"chunks\.chunks: got 30000, expected at most 25000"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_totals_that_no_partition_has_are_refused(fault: str, tmp_path: Path) -> None:
    changed, message = FAULTS[fault]
    with pytest.raises(ConfigError, match=message):
        load_stats(write(tmp_path, **changed))


def test_a_rank_alone_shares_no_rows(tmp_path: Path) -> None:
    partition = {"ranks": 1, "chunks": {**CHUNKS, "rho": 1.2, "phi": 0.9, "psi": 0.9}}
    with pytest.raises(ConfigError, match=r"phi: got 0\.9, expected 1\.0"):
        load_stats(write(tmp_path, partition))


def test_totals_beside_tables_or_of_mirrors_are_refused(tmp_path: Path) -> None:
    stats = load_stats(write(tmp_path))
    tables = {name: stats.tables[name].tolist() for name in (*BY_BATCH, *BY_PAIR)}
    with pytest.raises(ConfigError, match="keep one of them"):
        load_stats(write(tmp_path, {**PARTITION, "chunks": CHUNKS, "tables": tables}))
    with pytest.raises(ConfigError, match="vertex-cut"):
        load_stats(write(tmp_path, {**PARTITION, "kind": "vertex-cut", "chunks": CHUNKS}))
    counted = {"graph": "a", "cut": "b", "numbers": "c"}
    with pytest.raises(ConfigError, match="counted"):
        load_stats(write(tmp_path, {**PARTITION, "chunks": CHUNKS, "counted_from": counted}))


def _chosen(path: Path, chunks: int) -> IntArray:
    set_ = {"partition.kind": "metis-chunks", "partition.chunks": chunks, "graph.source": f"stats:{path}"}
    experiment = load_experiment("vanilla", {**set_, "partition.candidates": ["initial"]}, ranks=4)
    return from_statistics(experiment, None, None, SILENT)[1].tables[LOADED]


def test_a_file_serves_the_numbers_of_chunks_that_it_states(tmp_path: Path) -> None:
    two = [{**PARTITION, "chunks": CHUNKS}, {**PARTITION, "chunks": {**CHUNKS, "chunks": 16, "rho": 2.2}}]
    path = write(tmp_path, two)
    assert [batches_in(one.tables) for one in load_partitions(path)] == [8, 16]
    assert _chosen(path, 8).shape == (4, 8)
    assert _chosen(path, 16).shape == (4, 16)
    with pytest.raises(ConfigError, match=r"partition\.chunks: got 4, .* 8 or 16 chunks"):
        _chosen(path, 4)
    with pytest.raises(ConfigError, match=r"partition\.chunks: got 4"):
        _chosen(write(tmp_path), 4)
