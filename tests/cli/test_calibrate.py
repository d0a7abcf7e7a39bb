"""``simgnn calibrate``: a machine is measured whole or not at all."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from simgnn.api import executor_process, measuring
from simgnn.api.calibrate import calibrate
from simgnn.cli.commands.calibrate import parse_ranks
from simgnn.cli.main import invoke
from simgnn.cli.tables.console import Reporter
from simgnn.errors import BackendError, ConfigError
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.library import calibration_path
from simgnn.hardware.profile.profile import load_profile
from tests.hardware.conftest import work_seconds


def test_rank_counts_are_read_and_refused() -> None:
    assert parse_ranks(None) is None
    assert parse_ranks("4,1,2,2") == (1, 2, 4)
    for wrong in ("0", "two", "", "1,-2"):
        with pytest.raises(ConfigError, match="--ranks"):
            parse_ranks(wrong)


def test_more_ranks_than_the_machine_can_hold_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("ranks were started")

    monkeypatch.setattr(executor_process.subprocess, "Popen", started)
    for cores, most in ((1, 16), (2, 16), (64, 512)):
        monkeypatch.setattr(measuring, "usable_threads", lambda cores=cores: cores)
        measuring.check_counts((1, most))
        assert invoke(["calibrate", "--ranks", f"2,{most + 1}", "--out", str(tmp_path / "new" / "x.toml")]) == 2
        assert f"--ranks: got {most + 1}, expected at most {most}" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_ranks_that_do_not_end_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_process, "GRACE_S", 0.2)
    deaf = "import signal, subprocess, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    child = deaf + "time.sleep(600)"
    parent = f"{deaf}print(subprocess.Popen([sys.executable, '-c', {child!r}]).pid, flush=True)\ntime.sleep(600)"
    process = subprocess.Popen(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert int(process.stdout.readline()) > 0
    executor_process.end_session(process)
    assert process.poll() == -signal.SIGKILL
    assert process.stdout.read() == ""  # ends only when the child, which shares it, is gone too


def test_a_failed_measurement_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "here" / "machine.toml"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-interface")
    with pytest.raises(BackendError, match="measuring with 2 ranks"):
        calibrate(out, quick=True, ranks=(2,), progress=Reporter(quiet=True))
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
    assert 0 < work_seconds(machine, 0, "matmul", sizes).seconds < 1
    assert not list(tmp_path.rglob(".*"))
