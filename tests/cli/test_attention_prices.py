"""Attention is priced as it was measured, or the result says that it was not."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simgnn.cli.main import invoke
from simgnn.hardware.primitives import PRIMITIVES
from simgnn.hardware.profile.profile import parse_profile, save_profile
from simgnn.record.result import Result, read_result
from simgnn.record.rundir import RunDirectory

STAND_INS = {name for name, row in PRIMITIVES.items() if row.stand_in is not None}
PROFILE = Path(__file__).parent.parent / "hardware" / "data" / "invented-8x8.toml"
COSTS = {
    "attention_scores": {"bytes": "10 GB/s"},
    "attention_maximum": {"weights": "2 ns/element"},
    "attention_sums": {"weights": "10 ns/element", "gathered_bytes": "20 GB/s", "missed_bytes/l3": "2 GB/s"},
    "attention_gradients": {"weights": "20 ns/element", "gathered_bytes": "10 GB/s", "missed_bytes/l3": "1 GB/s"},
}
Predict = Callable[..., Result]


@pytest.fixture
def predict(small: Path, tmp_path: Path) -> Predict:
    """The result of a simulation of GAT on a profile with curves of the ``measured`` primitives."""

    def run(measured: tuple[str, ...], *settings: str, slower: float = 1.0) -> Result:
        table: dict[str, Any] = tomllib.loads(PROFILE.read_text())
        for name in measured:
            costs = COSTS[name]
            if slower != 1.0:
                costs = {"weights": f"{slower * 10} ns/element"}
            curve = {"primitive": name, "concurrency": 8, "source": "assumed", "costs": costs}
            table["devices"]["cpu"]["curves"].append(curve)
        save_profile(parse_profile(table), tmp_path / "machine.toml")
        words = ["simulate", str(small), "--ranks", "2", "--hardware", str(tmp_path / "machine.toml"), "--force"]
        words += [word for setting in ("model.kind=gat", *settings) for word in ("--set", setting)]
        assert invoke([*words, "--out", str(tmp_path / "out")]) == 0
        return read_result(RunDirectory(tmp_path / "out").result)

    return run


def test_a_profile_without_attention_says_so_on_screen_and_in_the_result(
    predict: Predict, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = predict(())
    assert set(result.assumed) == set(STAND_INS)
    told = capsys.readouterr().err.replace("\n", " ")
    assert "assumed: 'invented-8x8' has no measurement of attention_scores" in told
    assert json.loads(RunDirectory(tmp_path / "out").result.read_text())["assumed"] == result.assumed
    assert {"forward/1/maximum", "forward/1/aggregate", "backward/1/aggregate"} <= set(result.extrapolated)
    assert predict(("attention_sums", "attention_gradients")).assumed == ["attention_scores", "attention_maximum"]


def test_what_was_measured_is_no_assumption_and_other_models_have_none(
    predict: Predict, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict(tuple(STAND_INS)).assumed == []
    assert "no measurement of" not in capsys.readouterr().err
    assert predict((), "model.kind=gcn").assumed == []


def test_epochs_follow_the_measurement_of_attention(predict: Predict) -> None:
    """Twice the price of weights, the only one here, adds as much again; so do twice the heads."""
    names, settings = ("attention_sums", "attention_gradients"), ("model.layers=2", "model.hidden=16")
    times = []
    for slower, heads in ((0.0001, 2), (100.0, 2), (200.0, 2), (100.0, 4)):
        result = predict(names, *settings, f"model.heads={heads}", slower=slower)
        assert result.epoch_s_median is not None
        times.append(result.epoch_s_median)
    free, once, twice, more = times
    assert twice - free == pytest.approx(2 * (once - free), rel=0.02)
    # the last layer has one head, whatever the first has
    assert (more - free) / (once - free) == pytest.approx((4 + 1) / (2 + 1), rel=0.05)
