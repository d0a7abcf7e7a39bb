"""Published results: rows are selected, predicted under varied assumptions, and judged; faults are told."""

from pathlib import Path

import pytest

from simgnn.cli.console import Reporter
from simgnn.cli.main import invoke
from simgnn.cli.validate import CommandBackend
from simgnn.errors import ConfigError
from simgnn.report.validation_published import print_published
from simgnn.study.published import PublishedSuite, load_published, published_folder, score_published
from simgnn.study.suite import find_suite

GRAPH = {"vertices": 10_000, "edges": 200_000, "features": 32, "classes": 4, "train_share": 0.5, "assumed": "invented"}
TABLE = {
    "file": "made-up.csv",
    "select": {"system": ["plain"]},
    "dataset": "graph",
    "model": "model",
    "time": "seconds",
    "epochs": 10,
    "ranks": "gpus",
    "layers": 2,
    "models": {"GCN": "gcn"},
    "profile": "a100-nvlink-4",
    "label": "invented",
}
ROWS = """\
system,graph,model,gpus,seconds,status
plain,small,GCN,1,0.1,ok
plain,small,GCN,2,0.05,ok
plain,small,GAT,2,0.1,ok
plain,huge,GCN,1,,oom
plain,small,GCN,4,,timeout
clever,small,GCN,1,0.01,ok
"""


def suite(**changes: object) -> PublishedSuite:
    """Two invented graphs, one of which fits into no GPU."""
    table = {
        "kind": "published",
        "name": "made-up",
        "description": "invented numbers",
        "vary": 0.2,
        "bars": {"median_factor": 1e9, "tau": -1.0},
        "datasets": [
            {**GRAPH, "names": ["small"], "halo": {"2": 0.5}},
            {**GRAPH, "names": ["huge"], "vertices": 10**9, "edges": 10**10},
        ],
        "tables": [TABLE],
    }
    return PublishedSuite.model_validate({**table, **changes})


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A folder with one table of invented results."""
    (tmp_path / "made-up.csv").write_text(ROWS)
    return tmp_path


@pytest.fixture
def backend() -> CommandBackend:
    """The simulator itself."""
    return CommandBackend(Reporter(quiet=True))


def test_rows_are_predicted_and_judged(
    tables: Path, backend: CommandBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    board = score_published(suite(), tables, backend)
    assert [(row.dataset, row.ranks, row.published_s) for row in board.rows] == [
        ("small", 1, pytest.approx(0.01)),
        ("small", 2, pytest.approx(0.005)),
        ("huge", 1, None),
    ]
    assert board.left_out == 1  # GAT; rows that ended otherwise, and of other systems, are none of it
    assert [row.verdict for row in board.rows] == ["fits", "fits", "oom"]
    assert (board.right, board.wrong, board.undecided) == (3, 0, 0)
    for row in board.rows[:2]:
        assert row.low_s is not None
        assert row.predicted_s is not None
        assert row.high_s is not None
        assert 0 < row.low_s <= row.predicted_s <= row.high_s
        assert row.low_s < row.high_s
    huge = board.rows[2]
    assert (huge.predicted_s, huge.low_s, huge.high_s) == (None, None, None), "what does not fit takes no time"
    factors = [max(row.factor, 1 / row.factor) for row in board.rows if row.factor is not None]
    assert board.median_factor == pytest.approx(sum(factors) / 2)
    assert board.holds
    print_published(board)
    told = capsys.readouterr().out
    assert "3 right, 0 wrong, 0 undecided" in told
    assert "assumed: small: invented" in told


def test_a_wrong_verdict_breaks_the_bar(tables: Path, backend: CommandBackend) -> None:
    (tables / "made-up.csv").write_text(ROWS.replace("plain,small,GCN,1,0.1,ok", "plain,small,GCN,1,,oom"))
    board = score_published(suite(), tables, backend)
    assert board.wrong == 1
    assert not board.holds


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (ROWS.replace("gpus", "cards"), "no column gpus"),
        (ROWS.replace("plain", "other"), "no row of"),
        (ROWS.replace("plain,huge", "plain,unheard"), "speaks of 'unheard'"),
        (ROWS.replace("GCN,2", "GCN,3"), "no halo for 3 ranks"),
    ],
)
def test_faults_are_told(tables: Path, backend: CommandBackend, rows: str, words: str) -> None:
    (tables / "made-up.csv").write_text(rows)
    with pytest.raises(ConfigError, match=words):
        score_published(suite(), tables, backend)


def test_the_shipped_suite_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_published(find_suite("published"))
    assert loaded.vary == 0.2
    assert all(dataset.assumed for dataset in loaded.datasets)
    monkeypatch.setenv("SIMGNN_DATA", str(tmp_path / "nowhere" / "data"))
    with pytest.raises(ConfigError, match="'published' beside SIMGNN_DATA"):
        published_folder()
    assert invoke(["validate", "published"]) == 2
    assert invoke(["validate", "published", "--out", str(tmp_path)]) == 2
