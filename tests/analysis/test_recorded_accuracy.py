"""Accuracy of a recorded run on a predicted clock."""

from pathlib import Path
from typing import Any

import pytest

from simgnn.analysis.replay.recorded_run import on_clock, recorded_result
from simgnn.errors import ConfigError
from simgnn.record.result import Accuracy, Result, TimedAccuracy, write_result
from simgnn.report.results import best_reached

CURVE = [Accuracy(epoch=e, train=None, validation=v, test=0.1) for e, v in ((1, 0.2), (2, 0.7), (4, 0.7), (6, 0.5))]


def result(**fields: Any) -> Result:
    made: dict[str, Any] = {"backend": "executor", "status": "ok", "name": "made up", "digest": None, "seed": 0,
                            "program_digest": "d", "ranks": 2, "hosts": 1, "epochs": 6, "epoch_s": [],
                            "epoch_s_median": None, "accuracy": CURVE}  # fmt: skip
    return Result(**{**made, **fields})


def test_an_epoch_ends_when_all_epochs_up_to_it_have_passed() -> None:
    timed = on_clock(CURVE, [3.0, 1.0, 1.0, 0.5])
    assert [one.seconds for one in timed] == pytest.approx([3.0, 4.0, 5.5])
    assert [one.validation for one in timed] == [0.2, 0.7, 0.7], "epoch 6 was not predicted"
    assert on_clock(CURVE, []) == []
    assert on_clock([], [1.0]) == []


def test_twice_the_speed_is_half_the_time() -> None:
    slow, fast = (on_clock(CURVE, [scale * s for s in (3.0, 1.0, 1.0, 0.5, 2.0, 2.0)]) for scale in (1.0, 0.5))
    assert [one.seconds for one in fast] == pytest.approx([one.seconds / 2 for one in slow])


def test_the_best_is_told_with_the_first_time_at_which_it_is_reached() -> None:
    assert best_reached(result(time_to_accuracy=on_clock(CURVE, [3.0, 1.0, 1.0, 0.5]))) == "70.0 % after 4 s"
    unknown = TimedAccuracy(epoch=1, train=0.5, validation=None, test=None, seconds=1.0)
    for none in (None, [], [unknown]):
        assert best_reached(result(time_to_accuracy=none)) == "-"


def test_only_a_run_that_ended_well_has_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--activity: got .*, which holds no result\.json; expected .*finished"):
        recorded_result(tmp_path)
    path = tmp_path / "result.json"
    write_result(result(), path)
    assert recorded_result(tmp_path).accuracy == CURVE
    write_result(result(accuracy=None), path)
    assert recorded_result(tmp_path).accuracy is None
    write_result(result(status="failed", message="a rank died"), path)
    with pytest.raises(ConfigError, match=r"ended with status 'failed' \(a rank died\)"):
        recorded_result(tmp_path)
    write_result(result(backend="sim"), path)
    with pytest.raises(ConfigError, match="holds a prediction"):
        recorded_result(tmp_path)
