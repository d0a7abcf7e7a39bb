"""What a validation holds its score to, and what it says that it cannot tell."""

import html
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simgnn.cli.main import invoke
from simgnn.errors import ConfigError
from simgnn.report.validation import closing_lines, verdict_line, write_report
from simgnn.study.validate.build_scoreboard import build_scoreboard
from simgnn.study.validate.drift_check import canary_seconds
from simgnn.study.validate.ground_truth import Measured, TruthFolder, read_predictions, read_runs, write_runs
from simgnn.study.validate.scoreboard import Scoreboard
from simgnn.study.validate.suite_file import truth_folder
from simgnn.study.validate.suite_runs import keep, rescore, validate
from tests.study.worlds import Pretended, small_suite


def test_kept_runs_without_a_bound_guard_nothing_and_are_refused(
    finished: tuple[Scoreboard, Path, Pretended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert finished[0].guarded is None, "no bound was stated, so none can hold"
    kept = tmp_path / "truth" / "small"
    kept.parent.mkdir()
    keep(finished[1], kept)
    monkeypatch.setattr("simgnn.study.validate.suite_file.TRUTH", kept.parent)
    with pytest.raises(ConfigError, match=r"without a bound\.toml, expected the worst score"):
        truth_folder("small")
    (kept / "bound.toml").write_text("")
    with pytest.raises(ConfigError, match="expected one or more of median_error"):
        truth_folder("small")
    (kept / "bound.toml").write_text("better_than_baselines = 1.5\n")
    with pytest.raises(ConfigError, match="better_than_baselines: unknown key"):
        truth_folder("small")
    (kept / "bound.toml").write_text("median_error = 0.1\n")
    assert truth_folder("small") == kept


def test_repeats_that_are_missing_are_told(finished: tuple[Scoreboard, Path, Pretended], tmp_path: Path) -> None:
    kept = tmp_path / "truth"
    keep(finished[1], kept)
    runs, _ = read_runs(TruthFolder(kept))
    assert not any("repeats" in note for note in rescore(kept, Pretended()).notes)
    some = [run for run in runs if run.repeat < 2 or run.case.graph == "small"]
    write_runs(some, [], TruthFolder(kept).runs)
    assert "4 of 8 cases have fewer than 3 repeats, the fewest 2" in rescore(kept, Pretended()).notes


def test_cases_without_an_interval_are_told_where_others_have_one(
    finished: tuple[Scoreboard, Path, Pretended],
) -> None:
    folder = TruthFolder(finished[1])
    predictions, (runs, _) = read_predictions(folder.predictions), read_runs(folder)

    def noted(bounded: set[str]) -> bool:
        some = [
            replace(one, low_s=0.1 * one.times.epoch_s, high_s=10.0 * one.times.epoch_s)
            if one.case.graph in bounded
            else replace(one, low_s=None, high_s=None)
            for one in predictions
        ]
        notes = build_scoreboard(small_suite(), some, runs, 0.05, finished[0].origin).notes
        return "4 of 8 cases have no prediction interval: coverage is that of the others" in notes

    graphs = {one.case.graph for one in predictions}
    assert noted({"small"})
    assert not noted(graphs)
    assert not noted(set())


def test_a_suite_that_fails_anyhow_must_still_notice_more_than_noise(tmp_path: Path) -> None:
    """Links between hosts that are a hundredth slower make errors grow, but by less than the runs' own noise."""
    changes = {"bars": {"median_error": 0.001}, "group_bars": [], "sensitivity": [
        {"primitive": "*"}, {"link": "ethernet", "share": 0.99}]}  # fmt: skip
    board = validate(small_suite(**changes), tmp_path / "small", Pretended(factor=0.9))
    assert not board.holds
    assert [entry.worse for entry in board.sensitivity] == [True, False]
    assert [entry.why for entry in board.sensitivity] == [
        None,
        "bars that fail with it fail without it too, and errors of the cases that it changes grow within noise",
    ]
    assert any(
        line.startswith("self-test: the score does not notice 0.99 of the rate of ethernet links: ")
        for line in closing_lines(board)
    )


def test_what_cannot_be_told_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Pretended()
    honest = backend.run
    monkeypatch.setattr(backend, "run", lambda *a: honest(*a).model_copy(update={"epoch_s_median": 0.01}))
    suite = small_suite(bars={"tau": 0.5, "regret": 0.1}, group_bars=[], sensitivity=[], repeats=1)
    board = validate(suite, tmp_path / "small", backend)
    assert [(verdict.bar, verdict.figure, verdict.holds) for verdict in board.verdicts] == [
        ("tau", None, False),
        ("regret", None, False),
    ]
    assert "all: tau cannot be told, so its bar does not hold: no two of its measured medians differ by more than" in (
        "\n".join(board.notes)
    )
    assert any(note.startswith("all: regret cannot be told") for note in board.notes)


def test_bars_that_are_too_wide_to_notice_are_told(tmp_path: Path) -> None:
    suite = small_suite(bars={"median_error": 0.95}, group_bars=[], repeats=1)
    board = validate(suite, tmp_path / "small", Pretended())
    assert not board.holds
    assert [entry.why for entry in board.sensitivity] == [
        "every bar on times holds with it too: the bars are too wide, or the cases use it too little"
    ]


def outcome(
    finished: tuple[Scoreboard, Path, Pretended],
    epoch_s: Callable[[Measured], float],
    canary_s: float = 0.05,
    **changes: Any,
) -> Scoreboard:
    """The board of the finished validation, had its runs taken ``epoch_s`` beside reference work of ``canary_s``."""
    folder = TruthFolder(finished[1])
    runs = [
        replace(run, times=replace(run.times, epoch_s=epoch_s(run)), canary_s=canary_s) for run in read_runs(folder)[0]
    ]
    predictions = read_predictions(folder.predictions)
    return build_scoreboard(small_suite(**changes), predictions, runs, 0.05, finished[0].origin)


def test_a_noisy_machine_makes_a_validation_inconclusive_whatever_the_bars_say(
    finished: tuple[Scoreboard, Path, Pretended],
) -> None:
    assert outcome(finished, lambda run: run.times.epoch_s).outcome == "passed"
    for canary_s in (0.05 * 1.31, 0.05 / 1.31):
        board = outcome(finished, lambda run: run.times.epoch_s, canary_s)
        assert board.holds
        assert board.outcome == "inconclusive"
        assert "24 of 24 runs reference work was more than 30 %" in verdict_line(board)
    assert outcome(finished, lambda run: run.times.epoch_s, 0.05 * 1.29).outcome == "passed"
    stricter = {"noise": {"drift": 0.1}}
    assert outcome(finished, lambda run: run.times.epoch_s, 0.05 * 1.29, **stricter).outcome == "inconclusive"


def test_bars_that_hold_only_because_runs_spread_are_inconclusive(
    finished: tuple[Scoreboard, Path, Pretended],
) -> None:
    """Repeats that take 1, 4 and 8 times as long: errors of 77 % are within two standard errors, and excused."""
    board = outcome(finished, lambda run: run.times.epoch_s * (1, 4, 8)[run.repeat])
    assert all(verdict.holds for verdict in board.verdicts if verdict.bar == "median_error")
    assert board.outcome == "inconclusive"
    assert "in 8 of 8 experiments repeats spread by more than +-25 %" in verdict_line(board)
    wide = {"noise": {"spread": 10.0}}
    assert outcome(finished, lambda run: run.times.epoch_s * (1, 4, 8)[run.repeat], **wide).outcome != "inconclusive"


def test_one_noisy_experiment_does_not_excuse_a_bar_on_the_largest_error(
    finished: tuple[Scoreboard, Path, Pretended],
) -> None:
    noisy = small_suite().cases()[0]
    suite = {"bars": {"max_error": 0.15}, "group_bars": []}
    factors = (1, 4, 8)
    board = outcome(
        finished, lambda run: run.times.epoch_s * (factors[run.repeat] if run.case == noisy else 1), **suite
    )
    (verdict,) = board.verdicts
    assert (verdict.holds, verdict.figure) == (True, 0.15)
    assert verdict.raw is not None
    assert verdict.raw > 0.7
    assert board.outcome == "inconclusive"
    assert "all: max_error is 77 %, and meets its bar of 15 % only because so noisy runs excuse it" in verdict_line(
        board
    )


def test_the_page_says_verdict_and_origin_first_and_explains_each_column(
    finished: tuple[Scoreboard, Path, Pretended], tmp_path: Path
) -> None:
    board = finished[0]
    write_report(board, tmp_path / "page.html")
    text = html.unescape((tmp_path / "page.html").read_text())
    first = [text.index(words) for words in (
        verdict_line(board), board.origin.frozen, board.origin.machine, f"numpy {board.origin.versions['numpy']}",
        "<table>",
    )]  # fmt: skip
    assert first == sorted(first)
    headers = re.findall(r"<th>(.*?)</th>", text)
    assert headers
    assert set(headers) <= set(re.findall(r"<dt>(.*?)</dt>", text))


@pytest.mark.parametrize(("result", "status"), [("passed", 0), ("failed", 1), ("inconclusive", 4)])
def test_exit_status(
    result: str, status: int, finished: tuple[Scoreboard, Path, Pretended], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    board = finished[0]
    if result == "failed":
        board = replace(board, verdicts=(replace(board.verdicts[0], holds=False),))
    if result == "inconclusive":
        board = replace(board, inconclusive=("repeats spread",))
    monkeypatch.setattr("simgnn.study.validate.suite_runs.validate", lambda *given: board)
    assert invoke(["validate", "quick", "--out", str(tmp_path / "out")]) == status
    said = " ".join(capsys.readouterr().out.split())
    assert {0: "passed: every bar", 1: "failed: all: median_error", 4: "inconclusive: too noisy: repeats spread"}[
        status
    ] in said


def test_the_reference_work_is_timed_on_every_core() -> None:
    assert 0 < canary_seconds() < math.inf
