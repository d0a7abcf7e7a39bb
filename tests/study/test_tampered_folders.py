"""Folders of validations that were changed by hand: refused in one sentence, never scored."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from simgnn.cli.main import invoke
from simgnn.errors import BackendError, ConfigError
from simgnn.record.provenance import versions
from simgnn.study.results import Scoreboard
from simgnn.study.truth import RUNS_SCHEMA, Measured, read_runs, write_rows
from simgnn.study.validate import keep, rescore, validate
from simgnn.tomlfile import write_toml
from tests.study.worlds import Pretended, small_suite


def test_runs_without_what_was_frozen_before_them_are_refused(
    finished: tuple[Scoreboard, Path, Pretended], tmp_path: Path
) -> None:
    kept = tmp_path / "small"
    keep(finished[1], kept)
    (kept / "frozen.json").unlink()
    with pytest.raises(ConfigError, match="nothing tells what was predicted before"):
        validate(small_suite(), kept, Pretended())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"canary_s": None}, "canary_s None, expected seconds above zero"),
        ({"canary_s": 0.0}, "canary_s 0.0"),
        ({"canary_s": "x"}, "canary_s x"),
        ({"format": 99}, "format 99, expected 3"),
        ({"format": 1}, "earlier version, which froze no statistics"),
        ({"prepared": None}, "prepared None, expected a digest of each case"),
        ({"digests": {}}, "no digest of suite.toml"),
        ({"versions": 3}, "versions 3, expected a table"),
    ],
)
def test_a_damaged_freeze_is_refused(
    change: dict[str, object], told: str, finished: tuple[Scoreboard, Path, Pretended], tmp_path: Path
) -> None:
    kept = tmp_path / "small"
    keep(finished[1], kept)
    frozen = json.loads((kept / "frozen.json").read_text()) | change
    (kept / "frozen.json").write_text(json.dumps(frozen))
    with pytest.raises(ConfigError, match=told):
        rescore(kept, Pretended())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda runs: [*runs, runs[0]], "is there 2 times"),
        (lambda runs: [replace(runs[0], repeat=-5), *runs[1:]], "got repeat -5, expected 0 to 2"),
        (lambda runs: [replace(runs[0], case=replace(runs[0].case, graph="other")), *runs[1:]], "no such case"),
        (lambda runs: [replace(runs[0], canary_s=0.0), *runs[1:]], "canary_s: got 0.0"),
        *(
            (
                lambda runs, wrong=wrong: [replace(runs[0], times=replace(runs[0].times, epoch_s=wrong)), *runs[1:]],
                "epoch_s",
            )
            for wrong in (0.0, -1.0, float("nan"), float("inf"))
        ),
        *(
            (
                lambda runs, key=key, wrong=wrong: [replace(runs[0], times=replace(runs[0].times, **{key: wrong}))],
                f"repeat 0: {key}: got {wrong}, expected",
            )
            for key, wrong in (
                ("compute_s", -5.0),
                ("compute_s", float("nan")),
                ("wait_s", float("inf")),
                ("transfer_s", None),
                ("memory_bytes", 0),
                ("memory_bytes", -1),
            )
        ),
        (lambda runs: [replace(run, program_digest="x") for run in runs], "24 runs are of another program than was"),
        (
            lambda runs: [replace(run, times=replace(run.times, epoch_s=1.5 * run.times.epoch_s)) for run in runs],
            r"repeat 0 is not as it was measured; .* \(and 21 more\): changed after the runs",
        ),
        (lambda runs: [replace(runs[0], canary_s=0.01), *runs[1:]], "repeat 0 is not as it was measured: changed"),
        (lambda runs: runs[:-1], "repeat 2 is gone: changed after the runs"),
        (lambda runs: [], "repeat 0 is gone; "),
    ],
)
def test_runs_that_no_validation_wrote_are_refused(
    change: Callable[[list[Measured]], list[Measured]],
    told: str,
    finished: tuple[Scoreboard, Path, Pretended],
    tmp_path: Path,
) -> None:
    kept = tmp_path / "small"
    keep(finished[1], kept)
    write_rows(change(read_runs(kept / "runs.parquet")), RUNS_SCHEMA, kept / "runs.parquet")
    with pytest.raises(ConfigError, match=told):
        rescore(kept, Pretended())


@pytest.mark.parametrize("name", ["predictions.parquet", "profile.toml"])
def test_a_frozen_file_that_is_gone_is_named(
    name: str, finished: tuple[Scoreboard, Path, Pretended], tmp_path: Path
) -> None:
    kept = tmp_path / "small"
    keep(finished[1], kept)
    (kept / name).unlink()
    with pytest.raises(ConfigError, match=rf"{name} gone after it was frozen"):
        rescore(kept, Pretended())


def test_digests_of_runs_are_needed_and_whole(finished: tuple[Scoreboard, Path, Pretended], tmp_path: Path) -> None:
    kept = tmp_path / "small"
    keep(finished[1], kept)
    digests = kept / "runs.json"
    honest = digests.read_text()
    for change, told in (
        ({"format": 9}, "format 9, expected 1"),
        ({"digests": None}, "digests None"),
        ({"versions": [1]}, "versions"),
        ({"complete": 1}, "complete 1"),
    ):
        digests.write_text(json.dumps(json.loads(honest) | change))
        with pytest.raises(ConfigError, match=rf"runs\.json: not what a validation writes \({told}"):
            rescore(kept, Pretended())
    digests.unlink()
    for again in (lambda: rescore(kept, Pretended()), lambda: validate(small_suite(), kept, Pretended())):
        with pytest.raises(ConfigError, match=r"runs\.json: gone, so nothing tells"):
            again()
    frozen = json.loads((kept / "frozen.json").read_text()) | {"format": 2}
    (kept / "frozen.json").write_text(json.dumps(frozen))
    board = rescore(kept, Pretended())
    assert board.notes[0].startswith("an earlier version kept no digests of these runs")


def test_interrupted_between_digest_and_run_the_run_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    suite, root = small_suite(repeats=1), tmp_path / "small"
    with pytest.raises(BackendError, match="a rank died"):
        validate(suite, root, Pretended(fail_at=3))
    with monkeypatch.context() as patched:
        patched.setattr("simgnn.study.run_digests.write_rows", interrupted)
        with pytest.raises(KeyboardInterrupt):
            validate(suite, root, Pretended())
    assert len(json.loads((root / "runs.json").read_text())["digests"]) == 3
    again = Pretended()
    board = validate(suite, root, again)
    assert again.names().count("run") == 8 - 2
    assert [line.repeats for line in board.cases] == [1] * 8
    assert json.loads((root / "runs.json").read_text())["complete"]


def test_other_versions_than_were_frozen_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite, root, told = small_suite(repeats=1), tmp_path / "small", list[str]()
    with pytest.raises(BackendError, match="a rank died"):
        validate(suite, root, Pretended(fail_at=3))
    with monkeypatch.context() as patched:
        patched.setattr("simgnn.study.validate.versions", lambda: {**versions(), "torch": "0.1"})
        again = Pretended()
        patched.setattr(again, "tell", told.append)
        board = validate(suite, root, again)
    said = f"torch 0.1 (frozen: {versions()['torch']}): part of the errors may be theirs"
    assert any(said in line for line in told), "on screen when the runs begin"
    for later in (board, validate(suite, root, Pretended()), rescore(root, Pretended())):
        assert any(said in note for note in later.notes), "and in the score, whoever asks for it later"


def test_runs_of_another_program_are_not_gone_on_with(
    finished: tuple[Scoreboard, Path, Pretended], tmp_path: Path
) -> None:
    kept = tmp_path / "small"
    keep(finished[1], kept)
    runs = [replace(run, program_digest="other") for run in read_runs(kept / "runs.parquet")]
    write_rows(runs, RUNS_SCHEMA, kept / "runs.parquet")
    with pytest.raises(ConfigError, match="24 runs are of another program than was predicted"):
        validate(small_suite(), kept, Pretended())


@pytest.mark.parametrize("companion", [False, True])
def test_statistics_that_changed_are_named(
    companion: bool, finished: tuple[Scoreboard, Path, Pretended], tmp_path: Path
) -> None:
    kept = tmp_path / "small"
    keep(finished[1], kept)
    path = next(path for path in sorted((kept / "stats").glob("*.toml")) if path.name != "index.toml")
    if companion:  # of statistics that are too long for the file itself
        path = path.with_suffix(".npz")
    with path.open("a") as file:
        file.write("# smaller\n")
    for again in (lambda: rescore(kept, Pretended()), lambda: validate(small_suite(), kept, Pretended())):
        with pytest.raises(ConfigError, match=f"stats/{path.name} changed after it was frozen"):
            again()


def test_an_index_that_changed_is_named(finished: tuple[Scoreboard, Path, Pretended], tmp_path: Path) -> None:
    kept = tmp_path / "small"
    keep(finished[1], kept)
    (kept / "stats" / "index.toml").write_text("")
    with pytest.raises(ConfigError, match=r"stats/index\.toml changed after it was frozen"):
        rescore(kept, Pretended())


def test_what_a_run_starts_from_is_frozen(tmp_path: Path) -> None:
    suite, root = small_suite(repeats=2), tmp_path / "small"
    with pytest.raises(BackendError, match="a rank died"):
        validate(suite, root, Pretended(fail_at=6))
    case = suite.cases()[0].name
    stored = root / "work" / case / "experiment.toml"
    honest = stored.read_text()
    stored.write_text(honest.replace("learning_rate = 0.01", "learning_rate = 0.02"))
    again = Pretended()
    with pytest.raises(ConfigError, match=f"{case} changed after it was frozen"):
        validate(suite, root, again)
    assert again.events == []
    stored.write_text(honest)
    keep(root, tmp_path / "kept")
    with pytest.raises(ConfigError, match="a folder of --keep is for --rescore"):
        validate(suite, tmp_path / "kept", again)
    validate(suite, root, again)
    assert again.names().count("run") == 16 - 5


def test_a_folder_of_another_suite_is_not_scored_under_this_name(
    finished: tuple[Scoreboard, Path, Pretended], capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["validate", "quick", "--rescore", "--out", str(finished[1])]) == 2
    assert "not of 'quick'" in " ".join(capsys.readouterr().err.split())


def test_a_suite_file_whose_bars_have_changed_is_not_ignored(
    finished: tuple[Scoreboard, Path, Pretended], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stricter = tmp_path / "small.toml"
    write_toml(stricter, small_suite(bars={"median_error": 0.01, "tau": 0.9}).to_table())
    assert invoke(["validate", str(stricter), "--rescore", "--out", str(finished[1])]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "'small' has changed since" in told
    assert "was frozen: bars.median_error, bars.regret; what was frozen is what is scored: name" in told
    assert invoke(["validate", str(finished[1] / "suite.toml"), "--rescore", "--out", str(finished[1]), "--json"]) == 0
    capsys.readouterr()
    keep(finished[1], tmp_path / "kept")
    write_toml(tmp_path / "kept" / "suite.toml", small_suite(bars={"median_error": 0.01}).to_table())
    assert invoke(["validate", str(finished[1] / "suite.toml"), "--rescore", "--out", str(tmp_path / "kept")]) == 2
    assert "suite.toml changed after it was frozen" in " ".join(capsys.readouterr().err.split())
