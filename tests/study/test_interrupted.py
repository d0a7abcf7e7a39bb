"""A validation that was killed: what lies in its folder is gone on with, begun anew, or told of."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from simgnn.cli.main import invoke
from simgnn.errors import ConfigError
from simgnn.locks import LOCK
from simgnn.study.validate.ground_truth import TruthFolder
from simgnn.study.validate.suite_runs import rescore, validate
from tests.study.worlds import Pretended, small_suite

HERE: dict[str, Any] = {
    "topologies": [{"name": "here"}],
    "group_bars": [],
    "bars": {"median_error": 0.15},
    "hold_out": [],
    "repeats": 1,
}


class StoppedError(Exception):
    """Ends a validation of which a copy was made."""


def killed(root: Path, step: str, half: bool = False) -> None:
    """Leave in ``root`` what lies on disk when a validation is killed in a step; ``half``: writing what that makes."""
    backend, there = Pretended(), root.with_name("killed")

    def stop(*given: Any) -> None:
        if half:
            given[-1].with_name(f".{given[-1].name}.abc123").write_text("half")
        shutil.copytree(there, root)
        raise StoppedError

    setattr(backend, step, stop)
    with pytest.raises(StoppedError):
        validate(small_suite(**HERE), there, backend)
    assert (root / LOCK).is_file()


class Telling(Pretended):
    """Keeps what it tells; the reference work takes ever longer."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []
        self.asked = 0

    def tell(self, text: str) -> None:
        self.told.append(text)

    def canary(self) -> float:
        self.asked += 1
        self.events.append("canary")
        return 0.05 * self.asked


@pytest.mark.parametrize(
    ("step", "half", "suite"),
    [
        ("calibrate", False, {}),
        ("calibrate", True, {"repeats": 2}),
        ("canary", False, {"calibration": {"ranks": [2], "quick": False}}),
    ],
)
def test_killed_before_its_calibration_was_through_it_begins_anew_with_any_suite(
    step: str, half: bool, suite: dict[str, Any], tmp_path: Path
) -> None:
    root = tmp_path / "out"
    killed(root, step, half)
    with pytest.raises(ConfigError, match="holds no validation"):
        rescore(root, Pretended())
    again = Pretended()
    validate(small_suite(**{**HERE, **suite}), root, again)
    assert again.names().count("calibrate") == 1
    assert not list(root.glob("*profile.toml.*"))


def test_killed_while_it_predicted_it_goes_on_with_its_calibration_and_what_was_timed_beside_it(tmp_path: Path) -> None:
    root = tmp_path / "out"
    killed(root, "predict")
    with pytest.raises(ConfigError, match="calibrated, not yet predicted"):
        rescore(root, Pretended())
    again = Telling()
    board = validate(small_suite(**HERE), root, again)
    assert any("calibrated, not yet predicted" in line for line in again.told)
    assert not {"calibrate", "prepare"} & set(again.names())
    assert again.asked == 4, "once a run"
    assert json.loads(TruthFolder(root).frozen.read_text())["canary_s"] == 0.05 == board.drift.canary_s
    assert not (root / ".canary.json").exists()


def test_killed_before_its_calibration_has_its_name_it_goes_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, suite = tmp_path / "out", small_suite(**HERE)

    def stop(*_: Any) -> None:
        raise StoppedError

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", stop)
        with pytest.raises(StoppedError):
            validate(suite, root, Pretended())
    assert TruthFolder(root).suite.is_file()
    assert not TruthFolder(root).profile.exists()
    with pytest.raises(ConfigError, match=r"another suite \('small', calibrated, not yet predicted;"):
        validate(small_suite(**{**HERE, "repeats": 2}), root, Pretended())
    again = Telling()
    board = validate(suite, root, again)
    assert any("calibrated, not yet predicted" in line for line in again.told)
    assert "calibrate" not in again.names()
    assert (again.asked, board.drift.canary_s) == (4, 0.05)
    assert not list(root.glob("*.partial"))


def test_a_broken_time_of_the_reference_work_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "out"
    killed(root, "predict")
    (root / ".canary.json").write_text('{"canary_s": null}')
    with pytest.raises(ConfigError, match=r"\.canary\.json"):
        validate(small_suite(**HERE), root, Pretended())


def test_another_suite_is_told_what_lies_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "out"
    killed(root, "predict")
    with pytest.raises(
        ConfigError, match=r"another suite \('small', calibrated, not yet predicted; its repeats differ"
    ) as caught:
        validate(small_suite(**{**HERE, "repeats": 2}), root, Pretended())
    assert f"simgnn validate {root / 'suite.toml'} --out {root}" in str(caught.value)
    assert invoke(["validate", "quick", "--out", str(root)]) == 2
    assert "('small', calibrated, not yet predicted;" in " ".join(capsys.readouterr().err.split())


def test_files_of_others_are_never_taken_for_ones_that_were_cut_short(tmp_path: Path) -> None:
    (tmp_path / "suite.toml.partial").write_text("mine")
    with pytest.raises(ConfigError, match="not empty and holds no validation"):
        validate(small_suite(**HERE), tmp_path, Pretended())
    assert (tmp_path / "suite.toml.partial").read_text() == "mine"
