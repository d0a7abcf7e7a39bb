"""Figures of energy: a curve of joules read at the ends of a run and of its epochs."""

import json
from pathlib import Path

import numpy as np
import pytest

from simgnn.record.energy import EnergyFigure, describe, energy_over, joules_text, sum_of, why_unknown
from simgnn.record.result import Result, read_result, write_result

EPOCHS = np.array([[1.0, 2.0], [2.0, 4.0], [5.0, 6.0]])


def figure(**fields: object) -> EnergyFigure:
    made = {"part": "device", "name": "gpu", "host": "here", "ranks": [0], "status": "measured", "source": "counter"}
    return EnergyFigure.model_validate({**made, **fields})


def test_totals_are_of_the_run_and_statistics_of_its_epochs() -> None:
    # 10 W until second 4, then 50 W: the evaluation between 4 and 5 is in the total alone
    found = figure(**energy_over(lambda t: 10 * t + 40 * np.maximum(t - 4, 0), (0.0, 7.0), EPOCHS, 0.5))
    assert (found.total_J, found.duration_s, found.mean_power_W) == pytest.approx((190.0, 7.0, 190 / 7))
    assert (found.epoch_mean_J, found.epoch_min_J, found.epoch_max_J) == pytest.approx((80 / 3, 10.0, 50.0))


def test_epochs_that_samples_cannot_tell_apart_have_no_least_and_no_most() -> None:
    found = figure(**energy_over(lambda t: 10 * t, (0.0, 7.0), EPOCHS, 0.6))
    assert (found.epoch_mean_J, found.epoch_min_J, found.epoch_max_J) == (pytest.approx(40 / 3), None, None)
    none = figure(**energy_over(lambda t: 10 * t, (0.0, 0.0), EPOCHS[:0], 0.1))
    assert (none.total_J, none.mean_power_W, none.epoch_mean_J, none.epoch_min_J) == (0.0, None, None, None)


def test_a_sum_is_known_where_all_of_it_is() -> None:
    known = figure(total_J=1500.0, mean_power_W=3.0, epoch_mean_J=0.02)
    gone = figure(status="unavailable", source="no counter", part="device")
    memory = figure(part="memory", total_J=7.0)
    assert sum_of([known, known, memory], "device", "total_J") == 3000.0
    assert sum_of([known, gone, memory], "device", "total_J") is None
    assert sum_of([memory], "device", "total_J") is None
    assert why_unknown([known, gone], "device") == "no counter"
    assert why_unknown([memory], "device") == "not recorded"
    assert why_unknown([known], "device") == ""
    assert describe([known, memory], "device") == "1.5 kJ, 3 W on average, 20 mJ an epoch"
    assert describe([known, gone], "device") == "unknown: no counter"
    assert [joules_text(value) for value in (2.5e6, 0.0, 4e-6)] == ["2.5 MJ", "0 J", "4e-06 J"]


def test_results_keep_figures_and_those_of_earlier_versions_are_read(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    result = Result(backend="executor", status="ok", name="made up", digest=None, program_digest="d", seed=0, ranks=1,
                    hosts=1, epochs=1, epoch_s=[1.0], epoch_s_median=1.0, energy=[figure(total_J=3.0)])  # fmt: skip
    write_result(result, path)
    assert read_result(path) == result
    table = json.loads(path.read_text())
    path.write_text(json.dumps({**table, "energy_by_device_J": {"gpu": 3.0}, "energy_by_host_J": None}))
    assert read_result(path) == result
