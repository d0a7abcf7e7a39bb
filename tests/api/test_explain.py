"""``simgnn explain``: parts of the path sum to the epoch, effects are those of changed profiles, runs are measured."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import simgnn
from simgnn.api.predict import ChosenProfile, predict
from simgnn.cli.main import invoke
from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.hardware.profile.numbers import grouped_numbers
from simgnn.hardware.profile.profile import load_profile
from simgnn.progress import Progress
from simgnn.record.explanation import ExplainedEpoch, Explanation

GPUS = "a800-pcie-ib-2x8"


def check_sums(epoch: ExplainedEpoch, epoch_s: float) -> None:
    assert sum(part.seconds for part in epoch.path) == pytest.approx(epoch_s, abs=1e-9)
    assert epoch.epoch_s == pytest.approx(epoch_s, abs=1e-9)
    waits = np.array(epoch.waits)
    assert waits.sum(axis=1) == pytest.approx([one.waits_s for one in epoch.ranks])
    assert waits.sum(axis=0) == pytest.approx([one.waited_for_s for one in epoch.ranks])
    assert (waits.diagonal() == 0).all()


def test_parts_add_up_and_effects_are_those_of_changed_profiles(small: Path) -> None:
    experiment = load_experiment(small, ranks=4, hardware=GPUS)
    found = simgnn.explain(experiment).explanation
    predicted = simgnn.simulate(experiment).result
    assert found.epoch_s == predicted.epoch_s_median
    check_sums(found.predicted, found.epoch_s)
    assert found.measured is None
    profile = load_profile(GPUS)
    numbers = {number.key: number for number in grouped_numbers(profile)}
    rows = [one for one in found.effects if one.part != "experiment"]
    assert len(rows) >= 3
    assert not set(found.without_effect) & {one.key for one in rows}
    for row in rows[:4]:
        number = numbers[row.key]
        for changed, seconds in ((number.doubled(profile), row.better_s), (number.halved(profile), row.worse_s)):
            by_hand = predict(experiment, Progress(), ChosenProfile(changed, "changed"), limits=False)
            assert by_hand.result.epoch_s_median == seconds
    gains = [row.gain(found.epoch_s) for row in found.effects]
    assert gains == sorted(gains, reverse=True)


def test_a_device_twice_as_fast_with_links_twice_as_fast_halves_the_epoch(small: Path) -> None:
    """All work costs are one number: doubling it changes computing alone, exactly by half where nothing is sent."""
    found = simgnn.explain(small, ranks=1, hardware="cpu-100gbe-8").explanation
    work = next(one for one in found.effects if one.key.endswith("(all work)"))
    assert work.better_s is not None
    assert work.worse_s is not None
    assert work.better_s == pytest.approx(found.predicted.epoch_s / 2, rel=0.02)
    assert work.worse_s == pytest.approx(found.predicted.epoch_s * 2, rel=0.02)
    assert found.even_work.epoch_s == pytest.approx(found.epoch_s, rel=1e-9)
    assert found.even_work.shares == [1.0]


@pytest.mark.slow
def test_even_work_gives_a_slow_device_less(small: Path) -> None:
    settings = {"graph.vertices": 20_000, "graph.edges": 400_000, "model.hidden": 128}
    found = simgnn.explain(small, ranks=8, hardware="mixed-pcie3-8", set=settings).explanation
    shares = np.array(found.even_work.shares)
    assert shares.sum() == pytest.approx(1.0)
    assert shares[0] > 1.2 * shares[-1], "an RTX 3090 is faster than a GTX 1660 Ti"
    assert found.even_work.epoch_s < found.epoch_s
    slowest = max(found.predicted.ranks, key=lambda one: one.waited_for_s)
    assert slowest.rank in (6, 7), "others wait for the slowest devices"
    assert slowest.compute_s == max(one.compute_s for one in found.predicted.ranks)


@pytest.mark.slow
def test_amounts_of_the_experiment_are_halved_and_doubled(small: Path) -> None:
    cached = {"freshness.kind": "refresh-interval", "freshness.refresh_interval": 2, "placement.device_rows": 8}
    found = simgnn.explain(small, ranks=2, hardware=GPUS, set={**cached, "communication.resend_inputs": True})
    rows = {one.key: one for one in found.explanation.effects if one.part == "experiment"}
    told = set(rows) | set(found.explanation.without_effect)
    assert told >= {"placement.device_rows", "freshness.refresh_interval"}
    table = found.table("effects")
    assert set(table.columns) >= {"key", "better_s", "worse_s", "better_gain", "worse_gain"}
    assert len(found.table("ranks")) == 2
    assert found.table()["predicted_s"].sum() == pytest.approx(found.explanation.predicted.epoch_s)
    with pytest.raises(ConfigError, match="expected one of 'path'"):
        found.table("links")  # type: ignore[arg-type]


def test_a_value_that_is_refused_is_a_row_with_its_reason(small: Path) -> None:
    coded = {"codec.kind": "stochastic", "codec.bits": 8}
    found = simgnn.explain(small, ranks=2, hardware=GPUS, set=coded).explanation
    bits = next(one for one in found.effects if one.key == "codec.bits")
    assert [one is None for one in (bits.better_s, bits.worse_s)] == [False, True], "16 bits are refused"
    assert "codec.bits" in bits.refused[0]


@pytest.mark.slow
def test_a_run_is_explained_by_its_measured_trace(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = tmp_path / "trained"
    simgnn.run(small, ranks=2, epochs=6, out=trained)
    assert invoke(["explain", str(trained), "--hardware", "cpu-100gbe-8", "--json"]) == 0
    found = Explanation.model_validate(json.loads(capsys.readouterr().out))
    result = json.loads((trained / "result.json").read_text())
    assert found.measured is not None
    assert found.measured_s == result["epoch_s_median"]
    check_sums(found.measured, result["epoch_s"][found.measured.epoch])
    computed = sum(part.seconds for part in found.measured.path if part.activity == "compute")
    assert computed > 0.0
    assert invoke(["explain", str(trained), "--hardware", "cpu-100gbe-8"]) == 0
    text = capsys.readouterr().out
    for told in ("measured", "Where the epoch goes", "others wait for it", "Predicted epoch with other numbers"):
        assert told in text

    refuses_others(trained, tmp_path, capsys)


def refuses_others(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*words: str) -> str:
        assert invoke(["explain", *words]) == 2
        return capsys.readouterr().err

    empty = tmp_path / "empty"
    empty.mkdir()
    assert "holds no result" in refused(str(empty))
    told = refused(str(trained), "--ranks", "4", "--epochs", "2")
    assert "--ranks, --epochs" in told
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    text = (copy / "experiment.toml").read_text()
    (copy / "experiment.toml").write_text(text.replace('kind = "gcn"', 'kind = "mine:Layer"'))
    assert "code of your own" in refused(str(copy))
    (copy / "experiment.toml").write_text(text.replace("hidden = 8", "hidden = 24"))
    assert "run again" in refused(str(copy), "--hardware", "cpu-100gbe-8")
    with pytest.raises(ConfigError, match="expected the run alone"):
        simgnn.explain(trained, epochs=3)
