"""Counts that a suite of published results takes from graphs that are here: laws, the command, the shipped suite."""

import tomllib
from pathlib import Path

import numpy as np
import pytest

from simgnn.cli.main import invoke
from simgnn.errors import ConfigError
from simgnn.graph.load import load_graph
from simgnn.study.published.halo_rows import HaloLike
from simgnn.study.published.suite import Balance, Counted, Reuse, load_published, published_folder
from simgnn.study.validate.suite_file import find_suite
from tools.count_published import block_edges, degree, divided, halo_rows, main, reread_hits

SHARES = 2.0 ** np.arange(-10, 1)
REAL = (
    "amazon_computers",
    "coauthor_cs",
    "coauthor_physics",
    "cora",
    "cora_full_structure",
    "ogbn_arxiv",
    "pubmed",
    "tolokers",
)
"""What the shipped suite's counts are of: all real graphs of the folder (minesweeper is a made grid)."""


def write_edges(path: Path, edges: np.ndarray) -> Path:
    np.save(path, edges.astype(np.int64))
    return path


def test_reads_in_a_ring_find_their_rows_among_the_last_few(tmp_path: Path) -> None:
    start = np.arange(4096)
    ring = write_edges(tmp_path / "ring.npy", np.stack((start, (start + 1) % 4096), axis=1))
    hits = reread_hits(load_graph(str(ring)), SHARES)
    assert hits[-1] == 1.0
    assert hits[SHARES == 4 / 4096] == pytest.approx(1.0, abs=0.01), "each row is read by its two neighbours in turn"


def test_reads_at_random_find_as_many_rows_as_there_are_kept(tmp_path: Path) -> None:
    drawn = np.random.default_rng(0).integers(0, 2000, (100_000, 2))
    hits = reread_hits(load_graph(str(write_edges(tmp_path / "drawn.npy", drawn))), SHARES)
    many = SHARES > 0.1  # fewer are not even the rows of one sum, each of which is read once
    assert hits[many] == pytest.approx(SHARES[many], abs=0.03)
    assert np.all(hits[~many] <= SHARES[~many])


def test_the_command_writes_what_a_suite_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn = np.random.default_rng(1).integers(0, 500, (5000, 2))
    graph = write_edges(tmp_path / "drawn.npy", drawn)
    assert main([str(graph), "--ranks", "2", "--partition", str(graph), "--halo", "2"]) == 0
    table = tomllib.loads(capsys.readouterr().out)
    reuse = Reuse.model_validate({**table["reuse"], "assumed": "counted"})
    found = load_graph(str(graph))
    assert [(one.graph, one.degree) for one in reuse.of] == [("drawn", pytest.approx(degree(found), abs=0.006))]
    balance = Balance.model_validate({**table["balance"], "assumed": "counted"})
    counted = Counted.model_validate(table["counted"]["2"])
    assert np.sum(table["blocks"]["2"]) == found.csr.edges
    stats = divided(found, 2)
    assert sum(counted.rows) == stats.facts.vertices
    assert sum(counted.edges) == stats.facts.edges
    assert balance.edges["2"] == pytest.approx(max(counted.edges) / (sum(counted.edges) / 2), abs=0.1)
    halo = HaloLike.model_validate({**table["halo_rows"], "assumed": "counted"})
    assert (halo.ranks, halo.of[0].sharing) == (2, 1.0), "of two ranks each halo row is needed by one"
    assert halo.of[0].halo == pytest.approx(stats.halo_rows().sum() / stats.facts.vertices, abs=0.1)
    assert halo.of[0].cut == pytest.approx(stats.tables["cut_edges"].sum() / stats.facts.edges, abs=0.1)
    assert main([str(tmp_path / "absent.npy")]) == 2
    assert "absent.npy" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.realdata
def test_the_shipped_suite_says_what_is_counted(data_dir: Path) -> None:
    """METIS may divide anew a little differently; the reuse of rows is exact."""
    suite = load_published(find_suite("published"))
    assert suite.reuse is not None
    assert suite.balance is not None
    graphs = [load_graph(str(data_dir / f"{name}.npz")) for name in REAL]
    for name, graph, stated in zip(REAL, graphs, suite.reuse.of, strict=True):
        assert stated.graph == name
        assert stated.degree == pytest.approx(degree(graph), abs=0.006)
        assert stated.hits == pytest.approx(reread_hits(graph, np.array(suite.reuse.shares)).tolist(), abs=0.0006)
    assert suite.halo_rows is not None
    for name, graph, halo in zip(REAL, graphs, suite.halo_rows.of, strict=True):
        counted = halo_rows(graph, suite.halo_rows.ranks)
        assert (halo.graph, halo.degree) == (name, counted["degree"])
        for key in ("halo", "cut", "sharing"):
            assert getattr(halo, key) == pytest.approx(counted[key], rel=0.15), (name, key)
        assert halo.edges == pytest.approx(counted["edges"], abs=0.05)
    for ranks, uneven in suite.balance.edges.items():
        found = [divided(graph, int(ranks)).edges for graph in graphs]
        assert uneven == pytest.approx(float(np.median([edges.max() / edges.mean() for edges in found])), rel=0.1)


@pytest.mark.realdata
def test_the_shipped_suite_says_which_edges_blocks_hold(data_dir: Path) -> None:
    told = {name: one.blocks for one in load_published(find_suite("published")).datasets for name in one.names}
    graph = load_graph(str(data_dir / "coauthor_physics.npz"))
    found = {str(ranks): tuple(map(tuple, block_edges(graph, ranks).tolist())) for ranks in (2, 3, 4)}
    assert told["CoauthorPhysics"] == found


def test_the_shipped_suite_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_published(find_suite("published"))
    assert loaded.vary == 0.2
    assert all(dataset.assumed for dataset in loaded.datasets)
    monkeypatch.setenv("SIMGNN_DATA", str(tmp_path / "nowhere" / "data"))
    with pytest.raises(ConfigError, match="'published' beside SIMGNN_DATA"):
        published_folder()
    assert invoke(["validate", "published"]) == 2
    assert invoke(["validate", "published", "--out", str(tmp_path)]) == 2


def test_blocks_of_rows_hold_all_edges_between_them(tmp_path: Path) -> None:
    drawn = np.random.default_rng(2).integers(0, 301, (4000, 2))
    graph = load_graph(str(write_edges(tmp_path / "drawn.npy", drawn)))
    assert block_edges(graph, 1).tolist() == [[graph.csr.edges]]
    for ranks in (2, 4):
        found = block_edges(graph, ranks)
        ends = np.cumsum([301 // ranks + (rank < 301 % ranks) for rank in range(ranks)])
        target = np.repeat(np.arange(301), np.diff(graph.csr.indptr))
        expected = np.zeros((ranks, ranks), dtype=np.int64)
        np.add.at(
            expected, (np.searchsorted(ends, target, "right"), np.searchsorted(ends, graph.csr.indices, "right")), 1
        )
        assert found.tolist() == expected.tolist()
