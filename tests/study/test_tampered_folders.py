"""Folders of validations that were damaged or edited are rejected by their digests and never scored."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from simgnn.cli.main import invoke
from simgnn.errors import BackendError, ConfigError
from simgnn.record.result import versions
from simgnn.record.rundir import read_table, write_table
from simgnn.seal import file_digest
from simgnn.study.validate.ground_truth import (
    EARLIER_VERSIONS,
    RUNS_SCHEMA,
    Measured,
    TruthFolder,
    as_row,
    read_runs,
)
from simgnn.study.validate.scoreboard import Scoreboard
from simgnn.study.validate.suite_runs import keep, rescore, validate
from simgnn.tomlfile import load_toml, write_toml
from tests.study.worlds import Pretended, small_suite


@pytest.fixture
def kept(finished: tuple[Scoreboard, Path, Pretended], tmp_path: Path) -> Path:
    """The ground truth of a finished validation, to be damaged."""
    keep(finished[1], tmp_path / "small")
    return tmp_path / "small"


@pytest.mark.parametrize("key", ["canary_s", "digests", "versions", "format"])
def test_a_freeze_of_another_schema_is_rejected(key: str, kept: Path) -> None:
    frozen = json.loads((kept / "frozen.json").read_text()) | {key: None}
    (kept / "frozen.json").write_text(json.dumps(frozen))
    with pytest.raises(ConfigError, match=rf"frozen\.json: {key}"):
        rescore(kept, Pretended())


def test_a_freeze_that_is_no_text_is_rejected(kept: Path) -> None:
    (kept / "frozen.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(ConfigError, match=r"frozen\.json: not a readable JSON file"):
        rescore(kept, Pretended())


def test_an_index_without_a_case_is_rejected(kept: Path) -> None:
    index = load_toml(kept / "stats" / "index.toml")
    case = next(iter(index))
    write_toml(kept / "stats" / "index.toml", {name: digest for name, digest in index.items() if name != case})
    frozen = json.loads((kept / "frozen.json").read_text())
    frozen["digests"]["stats/index.toml"] = file_digest(kept / "stats" / "index.toml")
    (kept / "frozen.json").write_text(json.dumps(frozen))
    with pytest.raises(ConfigError, match=rf"index\.toml: no statistics are named for case {case}"):
        rescore(kept, Pretended())


def test_every_frozen_file_that_changed_or_went_missing_is_named(kept: Path) -> None:
    names = json.loads((kept / "frozen.json").read_text())["digests"]
    assert {"suite.toml", "predictions.parquet", "profile.toml", "stats/index.toml"} < names.keys()
    for name in names:
        path = kept / name
        whole = path.read_bytes()
        for damage in (lambda path=path, whole=whole: path.write_bytes(whole + b"\n# edited"), path.unlink):
            damage()
            for again in (lambda: rescore(kept, Pretended()), lambda: validate(small_suite(), kept, Pretended())):
                with pytest.raises(ConfigError) as raised:
                    again()
                assert name in str(raised.value) or name == "suite.toml"
                assert raised.value.exit_status == 2
        path.write_bytes(whole)
    assert rescore(kept, Pretended()).holds


@pytest.mark.parametrize(
    "change",
    [
        lambda runs: [*runs, runs[0]],
        lambda runs: runs[:-1],
        lambda runs: [replace(runs[0], canary_s=0.01), *runs[1:]],
        lambda runs: [replace(runs[0], times=replace(runs[0].times, epoch_s=1.0)), *runs[1:]],
    ],
)
def test_runs_that_changed_after_they_were_measured_are_rejected(
    change: Callable[[list[Measured]], list[Measured]], kept: Path
) -> None:
    path = kept / "runs.parquet"
    table = pa.Table.from_pylist([as_row(run) for run in change(read_runs(TruthFolder(kept))[0])], schema=RUNS_SCHEMA)
    write_table(table.replace_schema_metadata(read_table(path).schema.metadata), path)
    for again in (lambda: rescore(kept, Pretended()), lambda: validate(small_suite(), kept, Pretended())):
        with pytest.raises(ConfigError, match=r"runs\.parquet"):
            again()


def test_runs_of_an_earlier_version_are_read_without_a_digest(
    finished: tuple[Scoreboard, Path, Pretended], kept: Path
) -> None:
    """As the kept truths have them: versions beside the runs, other keys in the freeze."""
    runs, used = read_runs(TruthFolder(kept))
    assert used == [versions()]
    write_table(pa.Table.from_pylist([as_row(run) for run in runs], schema=RUNS_SCHEMA), kept / "runs.parquet")
    (kept / EARLIER_VERSIONS).write_text(json.dumps({"format": 1, "versions": [{**versions(), "torch": "0.1"}]}))
    frozen = json.loads((kept / "frozen.json").read_text()) | {"format": 2, "prepared": {}}
    (kept / "frozen.json").write_text(json.dumps(frozen))
    board = rescore(kept, Pretended())
    assert board.lines == finished[0].lines
    assert any("torch 0.1" in note for note in board.notes)


def test_other_versions_than_were_frozen_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite, root, told = small_suite(repeats=1), tmp_path / "small", list[str]()
    with pytest.raises(BackendError, match="a rank died"):
        validate(suite, root, Pretended(fail_at=3))
    with monkeypatch.context() as patched:
        patched.setattr("simgnn.study.validate.suite_runs.versions", lambda: {**versions(), "torch": "0.1"})
        again = Pretended()
        patched.setattr(again, "tell", told.append)
        board = validate(suite, root, again)
    said = f"torch 0.1 (frozen: {versions()['torch']}): part of the errors may be theirs"
    assert any(said in line for line in told), "on screen when the runs begin"
    for later in (board, validate(suite, root, Pretended()), rescore(root, Pretended())):
        assert any(said in note for note in later.notes), "and in the score, whoever asks for it later"


def test_what_a_run_starts_from_is_frozen(tmp_path: Path) -> None:
    suite, root = small_suite(repeats=2), tmp_path / "small"
    with pytest.raises(BackendError, match="a rank died"):
        validate(suite, root, Pretended(fail_at=6))
    case = suite.cases()[0].name
    stored = root / "work" / case / "experiment.toml"
    honest = stored.read_text()
    stored.write_text(honest.replace("learning_rate = 0.01", "learning_rate = 0.02"))
    again = Pretended()
    with pytest.raises(ConfigError, match=rf"{case}: experiment\.toml changed"):
        validate(suite, root, again)
    assert again.events == []
    stored.write_text(honest)
    keep(root, tmp_path / "kept")
    with pytest.raises(ConfigError, match="--rescore"):
        validate(suite, tmp_path / "kept", again)
    validate(suite, root, again)
    assert again.names().count("run") == 16 - 5


def test_a_folder_of_another_suite_is_not_scored_under_this_name(
    finished: tuple[Scoreboard, Path, Pretended], capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["validate", "quick", "--rescore", "--out", str(finished[1])]) == 2
    assert "'quick'" in capsys.readouterr().err


def test_a_suite_file_whose_bars_have_changed_is_not_ignored(
    finished: tuple[Scoreboard, Path, Pretended], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stricter = tmp_path / "small.toml"
    write_toml(stricter, small_suite(bars={"median_error": 0.01, "tau": 0.9}).to_table())
    assert invoke(["validate", str(stricter), "--rescore", "--out", str(finished[1])]) == 2
    assert "bars.median_error, bars.regret" in " ".join(capsys.readouterr().err.split())
    assert invoke(["validate", str(finished[1] / "suite.toml"), "--rescore", "--out", str(finished[1]), "--json"]) == 0
    capsys.readouterr()
    keep(finished[1], tmp_path / "kept")
    write_toml(tmp_path / "kept" / "suite.toml", small_suite(bars={"median_error": 0.01}).to_table())
    assert invoke(["validate", str(finished[1] / "suite.toml"), "--rescore", "--out", str(tmp_path / "kept")]) == 2
    assert "suite.toml" in capsys.readouterr().err
