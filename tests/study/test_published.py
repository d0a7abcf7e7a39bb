"""Published results: rows are selected, predicted under varied assumptions, and judged; faults are told."""

from pathlib import Path

import numpy as np
import pytest

from simgnn.api.backend import CommandBackend
from simgnn.cli.tables.console import Reporter
from simgnn.errors import ConfigError
from simgnn.hardware.profile.profile import load_profile
from simgnn.report.validation import print_published
from simgnn.study.profile_variants import adjusted
from simgnn.study.published.graph import Variation, divide, statistics
from simgnn.study.published.rows import PublishedRow, rounding
from simgnn.study.published.score import score_published
from simgnn.study.published.suite import Adjustment, PublishedSuite

GRAPH = {"vertices": 10_000, "edges": 200_000, "features": 32, "classes": 4, "train_share": 0.5, "assumed": "invented"}
SMALL = {**GRAPH, "names": ["small"], "halo": {"2": 0.5}}
HUGE = {**GRAPH, "names": ["huge"], "vertices": 10**9, "edges": 10**10}
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
plain,small,GCN,1,0.100,ok
plain,small,GCN,2,0.050,ok
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
        "datasets": [SMALL, HUGE],
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
    assert (board.left_out, board.otherwise) == (1, 1)  # GAT, timeout; rows of other systems are none of it
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
    assert (board.within.tau, board.within.pairs) == (board.tau, 1)
    assert board.tau is not None
    assert (board.across.tau, board.across.pairs) == (None, 0)
    wrong = board.within.discordant
    assert [row.discordant for row in board.rows] == [wrong, wrong, None]
    assert f"tau {board.tau:.2f} over 1 pairs of rows: {board.tau:.2f} over 1 of one table, - over 0 across" in told
    assert "3 right, 0 wrong, 0 undecided" in told
    assert "not scored: 1" in told
    assert "assumed: small: invented; 50 % of its vertices are trained on" in told


def predicted(
    tables: Path, backend: CommandBackend, dataset: dict[str, object] | None = None, **changes: object
) -> dict[int, PublishedRow]:
    """Rows of the small graph by their number of GPUs, under changes of the table, or of the ``dataset``."""
    small = {**SMALL, **(dataset or {})}
    (tables / "of-small.csv").write_text("".join(row for row in ROWS.splitlines(True) if ",huge," not in row))
    table = {**TABLE, "file": "of-small.csv", **changes}
    board = score_published(suite(datasets=[small, HUGE], tables=[table]), tables, backend)
    return {row.ranks: row for row in board.rows}


def known(row: PublishedRow) -> tuple[float, float, float]:
    """Prediction and range of a row that fits."""
    assert row.predicted_s is not None
    assert row.low_s is not None
    assert row.high_s is not None
    return row.predicted_s, row.low_s, row.high_s


def test_adjusted_costs_change_the_prediction_by_their_factor(tables: Path, backend: CommandBackend) -> None:
    plain = known(predicted(tables, backend)[1])[0]
    same = {"primitive": "spmm", "costs": {"gathered_bytes": 1.0}, "assumed": "invented"}
    assert known(predicted(tables, backend, adjust=[same])[1])[0] == plain
    profile = load_profile("a100-nvlink-4")
    ten = Adjustment.model_validate({**same, "costs": {"gathered_bytes": 10.0}, "cache": 2.0})
    gpu, slower = profile.devices["a100"], adjusted(profile, [ten], 1.25).devices["a100"]
    (before,), (after,) = gpu.curves_of("spmm"), slower.curves_of("spmm")
    assert after.costs == {**before.costs, "gathered_bytes": 10.0 * before.costs["gathered_bytes"]}
    assert {name: cache.size.value for name, cache in slower.caches.items()} == {
        name: 2.0 * cache.size.value for name, cache in gpu.caches.items() if name in before.caches
    }
    assert slower.memory.value == pytest.approx(gpu.memory.value / 1.25)
    assert slower.curves_of("matmul") == gpu.curves_of("matmul")
    assert known(predicted(tables, backend, adjust=[ten.model_dump()])[1])[0] > plain
    both = {"models": {"GCN": "gcn", "GAT": "gat"}}
    of_gat = predicted(tables, backend, **both, adjust=[{**ten.model_dump(), "models": ["gat"]}])
    assert known(of_gat[1])[0] == plain, "a row of a GCN, which the adjustment is not about"
    of_gcn = predicted(tables, backend, **both, adjust=[{**ten.model_dump(), "models": ["gcn"]}])
    assert known(of_gcn[1])[0] > plain
    with pytest.raises(ValueError, match=r"adjust\.models: got gat, expected kinds of the table: gcn"):
        suite(tables=[{**TABLE, "adjust": [{**same, "models": ["gat"]}]}])
    of_huge = predicted(tables, backend, adjust=[{**ten.model_dump(), "datasets": ["huge"]}])
    assert known(of_huge[1])[0] == plain, "a row of another graph"
    small = suite().datasets[0]
    for datasets, concerned in (((), True), (("small",), True), (("huge",), False)):
        assert ten.model_copy(update={"datasets": datasets}).concerns("gcn", small) is concerned
    with pytest.raises(ValueError, match=r"adjust\.datasets: got tiny, expected names of datasets: huge, small"):
        suite(tables=[{**TABLE, "adjust": [{**same, "datasets": ["tiny"]}]}])
    unheard = {**same, "costs": {"rows": 2.0}}
    with pytest.raises(ConfigError, match="spmm has no cost 'rows' on any GPU of 'a100-nvlink-4'"):
        predicted(tables, backend, adjust=[unheard])


def test_an_even_counted_partition_is_what_is_assumed(tables: Path, backend: CommandBackend) -> None:
    assumed = known(predicted(tables, backend)[2])
    even = {"rows": [5000, 5000], "edges": [100_000, 100_000], "halo": [[0, 1, 2500], [1, 0, 2500]]}
    assert known(predicted(tables, backend, {"counted": {"2": even}})[2]) == assumed
    uneven = {"rows": [5000, 5000], "edges": [150_000, 50_000], "halo": [[0, 1, 1000], [1, 0, 4000]]}
    assert known(predicted(tables, backend, {"counted": {"2": uneven}})[2])[0] > assumed[0]
    with pytest.raises(ValueError, match=r"counted\.2\.edges: add up to 150000, expected 200000"):
        predicted(tables, backend, {"counted": {"2": {**even, "edges": [100_000, 50_000]}}})


def test_what_is_open_widens_the_range_of_models_that_have_it(tables: Path, backend: CommandBackend) -> None:
    plain = known(predicted(tables, backend)[1])
    wide = {"models": ["gcn"], "set": {"model": {"hidden": 1024}}, "assumed": "invented"}
    widened = known(predicted(tables, backend, open=[wide])[1])
    assert widened[:2] == plain[:2]
    assert widened[2] > plain[2]
    both = {"models": {"GCN": "gcn", "SAGE": "sage"}}
    of_sage = {**wide, "models": ["sage"]}
    assert known(predicted(tables, backend, **both, open=[of_sage])[1]) == plain


def test_given_settings_reach_the_models_that_they_name(tables: Path, backend: CommandBackend) -> None:
    plain = known(predicted(tables, backend)[1])
    wide = {"models": ["gcn"], "set": {"model": {"hidden": 1024}}, "assumed": "invented"}
    given = known(predicted(tables, backend, given=[wide])[1])
    assert given[0] > plain[0]
    both = {"models": {"GCN": "gcn", "SAGE": "sage"}}
    of_sage = {**wide, "models": ["sage"]}
    assert known(predicted(tables, backend, **both, given=[of_sage])[1]) == plain
    for key in ("given", "open"):
        with pytest.raises(ValueError, match=rf"{key}\.models: got sage, expected kinds of the table: gcn"):
            suite(tables=[{**TABLE, key: [of_sage]}])
    table = {**TABLE, "given": [wide], "set": {"communication": {"kind": "halo", "rows": "input"}}}
    told = suite(tables=[table]).assumptions()
    assert "invented, gcn: invented; set: model.hidden = 1024" in told
    assert "invented; set: communication.kind = 'halo', communication.rows = 'input'" in told


@pytest.mark.parametrize(
    ("row", "told"),
    [
        *((f"plain,small,GCN,1,{got},ok", f"seconds: got '{got}', expected seconds above zero") for got in (
            "0", "-1", "nan", "inf", "abc", "", "1e-400")),
        *((f"plain,small,GCN,{got},0.1,ok", f"gpus: got '{got}', expected a whole number of 1 or more") for got in (
            "x", "0", "-2", "1.5", "")),
        ("plain,small,GCN,2", "ends before column seconds, status"),
    ],
)  # fmt: skip
def test_numbers_that_nobody_can_have_printed_are_refused(
    row: str, told: str, tables: Path, backend: CommandBackend
) -> None:
    (tables / "made-up.csv").write_text(f"{ROWS}{row}\nplain,small,GCN,1,-7,ok\n")
    with pytest.raises(ConfigError) as caught:
        score_published(suite(), tables, backend)
    assert list(caught.value.problems) == [
        f"published: {tables / 'made-up.csv'}, line {line}: {words}"
        for line, words in ((8, caught.value.problems[0].partition("line 8: ")[2]),
                            (9, "seconds: got '-7', expected seconds above zero, since the status is 'ok'"))
    ]  # fmt: skip
    assert told in caught.value.problems[0]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"vary": 1.0}, "vary"),
        ({"datasets": [{**GRAPH, "names": ["small"], "assumed": ""}]}, "assumed"),
        ({"datasets": [{**GRAPH, "names": ["small"], "assumed": "  "}]}, "assumed"),
        ({"datasets": [{**GRAPH, "names": ["small"], "halo": {"2": 50.0}}]}, "halo.2: got 50, expected a rank count"),
        (
            {"datasets": [{**GRAPH, "names": ["small"], "halo": {"two": 0.5}}]},
            "halo.two: got 0.5, expected a rank count",
        ),
        ({"tables": [{**TABLE, "noise_assumed": ""}]}, "noise_assumed"),
    ],
)
def test_assumptions_without_reason_or_sense_are_refused(change: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        suite(**change)


def test_what_a_system_keeps_by_its_own_sums_decides_its_verdict(tables: Path, backend: CommandBackend) -> None:
    kept = {"rows": 2.0, "hidden": 2.0, "last": 3.0, "edge_bytes": 0.0, "assumed": "invented"}
    # 10,000 vertices of 4 bytes x 2 x (32 + 256 + 4) + 2 x 256 + 3 x 4 values: 44 MB, of 80 GB
    assert predicted(tables, backend, kept=kept)[1].verdict == "fits"
    nearly = 80e9 / (10_000 * 4 * (2 * (32 + 256 + 4) + 2 * 256 + 3 * 4))
    scaled = {name: 0.9 * nearly * kept[name] for name in ("rows", "hidden", "last")}
    found = predicted(tables, backend, kept={**kept, **scaled})[1]
    assert (found.verdict, found.predicted_s is None) == ("undecided", False)
    beyond = predicted(tables, backend, kept={**kept, "edge_bytes": 1e6})[1]
    assert (beyond.verdict, beyond.predicted_s) == ("oom", None)


def test_rows_read_again_are_as_far_away_as_the_suite_says(tables: Path, backend: CommandBackend) -> None:
    dataset = suite().datasets[0]
    like = {"graph": "alike", "degree": 30.0, "hits": [0.1, 0.5, 1.0]}
    unlike = {"graph": "dense", "degree": 10.0, "hits": [0.9, 0.9, 1.0]}
    reuse = {"shares": [0.25, 0.5, 1.0], "of": [unlike, like], "assumed": "invented"}
    balance = {"edges": {"2": 1.2}, "halo": {"2": 1.1}, "assumed": "invented"}
    assumed = suite(reuse=reuse, balance=balance)
    written = statistics(assumed, dataset, "small", 2, Variation())
    load = divide(assumed, dataset, 2, Variation())
    assert load.edges.tolist() == [120_000, 80_000]
    assert load.halo.tolist() == [2750, 2250]
    forward = np.array(written["partition"]["tables"]["locality/forward"])
    again = 1 - (load.rows + load.halo) / load.edges
    assert forward[:, -1] == pytest.approx(again), "all but the first reads of a row lie among all rows"
    assert np.all(np.diff(forward, axis=1) >= 0)
    assert forward[0, 5] == 0.0, "32 rows are a smaller share than any that is told"
    at = np.log2(0.5 * (load.rows + load.halo)[0])
    assert np.interp(at, np.arange(forward.shape[1]), forward[0]) == pytest.approx(0.5 * again[0], abs=0.05)
    more = divide(assumed, dataset, 2, Variation(balance=2.0))
    assert more.edges.tolist() == [140_000, 60_000]
    four = suite(balance=balance, datasets=[{**GRAPH, "names": ["small"], "halo": {"4": 1.0}}])
    with pytest.raises(ConfigError, match=r"balance\.edges: has no entry for 4 ranks"):
        divide(four, four.datasets[0], 4, Variation())


def test_gaps_within_rounding_and_noise_order_nothing(tables: Path, backend: CommandBackend) -> None:
    assert rounding("0.19") == pytest.approx(0.01 / 12**0.5 / 0.19)
    assert rounding("12") == pytest.approx(1 / 12**0.5 / 12)
    assert score_published(suite(), tables, backend).tau_pairs == 1
    noisy = suite(tables=[{**TABLE, "noise": 0.5}])
    assert score_published(noisy, tables, backend).tau_pairs == 0


def test_a_wrong_verdict_breaks_the_bar(tables: Path, backend: CommandBackend) -> None:
    (tables / "made-up.csv").write_text(ROWS.replace("plain,small,GCN,1,0.100,ok", "plain,small,GCN,1,,oom"))
    board = score_published(suite(), tables, backend)
    assert (board.wrong, board.holds) == (1, False)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (ROWS.replace("gpus", "cards"), "no column gpus"),
        (ROWS.replace("plain", "other"), "no row of"),
        (ROWS.replace("plain,huge", "plain,unheard"), "has rows of the graph 'unheard'"),
        (ROWS.replace("GCN,2", "GCN,3"), r"no entry halo\.3"),
    ],
)
def test_faults_are_told(tables: Path, backend: CommandBackend, rows: str, words: str) -> None:
    (tables / "made-up.csv").write_text(rows)
    with pytest.raises(ConfigError, match=words):
        score_published(suite(), tables, backend)
