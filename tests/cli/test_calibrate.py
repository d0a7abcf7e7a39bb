"""``simgnn calibrate``: a machine is measured whole or not at all."""

import json
from pathlib import Path

import pytest

from simgnn.cli.calibrate import calibrate, parse_ranks
from simgnn.cli.console import Reporter
from simgnn.cli.main import invoke
from simgnn.errors import BackendError, ConfigError
from simgnn.hardware.library import calibration_path
from simgnn.hardware.machine import Machine
from simgnn.hardware.profile import load_profile


def test_rank_counts_are_read_and_refused() -> None:
    assert parse_ranks(None) is None
    assert parse_ranks("4,1,2,2") == (1, 2, 4)
    for wrong in ("0", "two", "", "1,-2"):
        with pytest.raises(ConfigError, match="--ranks"):
            parse_ranks(wrong)


def test_a_failed_measurement_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "here" / "machine.toml"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")
    with pytest.raises(BackendError, match="measuring with 2 ranks"):
        calibrate(out, quick=True, ranks=(2,), reporter=Reporter(quiet=True))
    assert not out.exists()


@pytest.mark.slow
def test_quick_calibration_is_what_simulations_use_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SIMGNN_CACHE", str(tmp_path))
    assert invoke(["calibrate", "--quick", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {row["primitive"] for row in told["curves"]} >= {"matmul", "spmm", "elementwise", "loss"}
    profile = load_profile(calibration_path())
    assert load_profile(told["profile"]) == profile
    assert profile.calibrated
    machine = Machine.place(profile, [0, 0])
    sizes = {"rows": 5e3, "inner": 128, "outer": 64, "item_bytes": 4}
    assert 0 < machine.work_seconds(0, "matmul", sizes).seconds < 1
    assert not list(tmp_path.rglob(".*"))
