"""Every shipped system is predicted on every shipped profile, with an interval, and says what it rests on."""

from pathlib import Path

import pytest

from simgnn.cli.main import invoke
from simgnn.record.result import Result
from tools import list_predictions
from tools.list_predictions import labels, needs_record, predictions, profiles, record, systems

FEW = ["a800-pcie-ib-2x8", "cpu-25gbe-4", "dgx-a100"]
"""A GPU profile without and one with a stated CPU, and a CPU profile."""


def check(system: str, profile: str, result: Result) -> None:
    """What holds for every prediction."""
    where = f"{system} on {profile}"
    assert result.status == "ok", where
    assert result.epoch_s_median is not None
    assert result.epoch_s_interval is not None, where
    low, high = result.epoch_s_interval
    assert 0.0 < low < result.epoch_s_median < high < 200 * low, where
    assert ("sample" in result.assumed) is (system == "distdgl"), f"{where}: no shipped profile measured sampling"
    assert result.uncalibrated is (profile != "vm-epyc-2"), where
    if result.energy_J is None:
        (figure,) = result.energy
        assert figure.status == "unavailable"
        assert all(f".{key}_power" in figure.source for key in ("idle", "active")), where
    print(where, result.epoch_s_interval, "; ".join(labels(result)))


def test_all_systems_and_profiles_are_listed() -> None:
    assert (len(systems()), len(profiles())) == (11, 10)


def test_a_system_on_the_full_graph_is_predicted_on_every_profile() -> None:
    found = list(predictions({}, ["vanilla"]))
    assert len(found) == 10
    for entry in found:
        check(*entry)


def test_sampling_is_predicted_on_gpus_and_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_predictions, "profiles", lambda: FEW)
    for entry in predictions({}, ["distdgl"]):
        check(*entry)


def test_a_system_that_needs_a_record_says_the_command_that_makes_it(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--set", "graph.source=synthetic:communities", "--set", "graph.vertices=200", "--set", "graph.edges=800"]
    place = ["--set", "cluster.hosts=1", "--set", "cluster.ranks_per_host=2"]
    assert invoke(["simulate", "cdfgnn", "--hardware", "dgx-a100", "--epochs", "2", *given, *place]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert f"simgnn run cdfgnn --ranks 2 {' '.join(given)} --epochs 2 --out runs/recorded" in told
    assert "--activity runs/recorded" in told


@pytest.mark.slow
def test_all_systems_are_predicted_on_all_profiles(tmp_path: Path) -> None:
    recorded = {name: record(name, tmp_path) for name in systems() if needs_record(name)}
    assert sorted(recorded) == ["adaqp", "cdfgnn"]
    found = list(predictions(recorded))
    assert len({entry[:2] for entry in found}) == 80
    for entry in found:
        check(*entry)
