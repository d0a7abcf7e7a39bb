"""What a validation holds its score to, and what it says that it cannot tell."""

from dataclasses import replace
from pathlib import Path

import pytest

from simgnn.errors import ConfigError
from simgnn.report.validation import closing_lines
from simgnn.study.validate.ground_truth import TruthFolder, read_predictions, read_runs, write_runs
from simgnn.study.validate.scoreboard import Scoreboard, build_scoreboard
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
        notes = build_scoreboard(small_suite(), some, runs, 0.05).notes
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
