"""``simgnn simulate`` from the command line to the prediction."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from simgnn.analysis.compare import compare_runs
from simgnn.api.predict import FALLBACK_PROFILE, default_cluster
from simgnn.cli.main import invoke
from simgnn.errors import ConfigError
from simgnn.hardware.profile.library import find_profile
from simgnn.hardware.profile.profile import load_profile
from simgnn.record.limited_by import LimitedBy
from simgnn.record.result import read_result
from simgnn.record.rundir import RunDirectory, read_table
from simgnn.tomlfile import load_toml, write_toml


def test_a_prediction_leaves_a_complete_run_directory_and_repeats_exactly(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digests = []
    for name in ("one", "two"):
        out = tmp_path / name
        arguments = ["simulate", str(small), "--hardware", FALLBACK_PROFILE, "--out", str(out), "--json"]
        assert invoke([*arguments, "--ranks", "2"]) == 0
        told = capsys.readouterr()
        assert told.err == ""
        printed = json.loads(told.out)
        result = read_result(RunDirectory(out).result)
        assert (printed["backend"], printed["status"], printed["hardware"]) == ("sim", "ok", FALLBACK_PROFILE)
        assert len(result.epoch_s) == 4
        assert result.loss is None
        assert result.accuracy is None
        assert result.uncalibrated
        assert load_profile(RunDirectory(out).hardware).meta.name == FALLBACK_PROFILE
        assert set(read_table(RunDirectory(out).trace)["rank"].to_pylist()) == {0, 1}
        held = read_table(RunDirectory(out).memory)
        assert result.peak_memory_bytes is not None
        assert max(held["device_bytes"].to_pylist()) == max(result.peak_memory_bytes)
        counters = json.loads(RunDirectory(out).perfetto.read_text())["traceEvents"]
        assert {event["pid"] for event in counters if event["name"] == "memory bytes"} == {0, 1}
        digests.append(result.digest)
    assert digests[0] == digests[1]


def test_without_a_cluster_the_profile_s_is_taken_and_no_calibration_is_told(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["simulate", str(small), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    hosts, each = default_cluster(load_profile(FALLBACK_PROFILE))
    assert (result["hosts"], result["ranks"]) == (hosts, hosts * each)
    assert "never calibrated" in result["notes"][0]
    assert invoke(["simulate", str(small)]) == 0
    told = capsys.readouterr()
    assert "predicted on" in told.out
    assert "uncalibrated" in told.err


def test_running_out_of_memory_is_a_result_with_its_own_status(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = load_toml(find_profile(FALLBACK_PROFILE))
    for device in table["devices"].values():
        device["memory"] = {"value": "16 KiB", "source": "assumed"}
    write_toml(tmp_path / "tiny.toml", table)
    out = tmp_path / "out"
    arguments = ["simulate", str(small), "--hardware", str(tmp_path / "tiny.toml"), "--ranks", "2", "--out", str(out)]
    assert invoke(arguments) == 3
    told = capsys.readouterr()
    assert "out of memory" in told.err
    assert "epoch, median" not in told.out, "what does not run takes no time"
    assert "of 16 KiB" in told.out
    result = read_result(RunDirectory(out).result)
    assert result.status == "oom"
    assert (result.epoch_s, result.epoch_s_median, result.epoch_s_interval) == ([], None, None)
    assert (result.per_rank, result.jitter, result.energy_J) == ([], None, None)
    assert "interval" not in result.confidence
    assert result.peak_memory_bytes is not None
    assert max(result.peak_memory_bytes) > 16 * 2**10
    assert not RunDirectory(out).trace.exists()
    with pytest.raises(ConfigError, match=r"no finished run \(status 'oom'\).*out of memory"):
        compare_runs(out, out)


def test_parts_of_memory_are_printed_on_request(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", str(small), "--hardware", "dgx-a100", "--ranks", "2"]
    assert invoke(arguments) == 0
    brief = capsys.readouterr().out
    assert "of 80 GiB (" in brief
    assert "kept free by the allocator" not in brief
    assert invoke([*arguments, "--verbose"]) == 0
    assert "kept free by the allocator" in capsys.readouterr().out


def test_every_prediction_says_what_limits_it(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", str(small), "--hardware", "cpu-25gbe-4"]
    assert invoke(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    named = lines[lines.index("limited by") + 1 :][:3]
    assert [line.split(":")[0].strip() for line in named] == ["time", "capped by", "no effect"]
    assert "(assumed; twice as good: " in named[1]
    assert "links.ethernet.bandwidth = 25 Gbit/s" in named[2]
    assert invoke([*arguments, "--json"]) == 0
    found = LimitedBy.model_validate(json.loads(capsys.readouterr().out)["limited_by"])
    assert sum(part.share for part in found.time) == pytest.approx(1.0)
    assert all(number.checked for number in found.numbers)
    for name, text in found.lines().items():
        assert any(name in line and text in line for line in named), "the same again: nothing in it depends on chance"


def test_energy_is_told_for_each_device(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = load_toml(find_profile(FALLBACK_PROFILE))
    for device in table["devices"].values():
        device["idle_power"] = {"value": "100 W", "source": "assumed"}
        device["active_power"] = {"value": "300 W", "source": "assumed"}
    write_toml(tmp_path / "powered.toml", table)
    out = tmp_path / "out"
    arguments = ["simulate", str(small), "--hardware", str(tmp_path / "powered.toml"), "--out", str(out)]
    assert invoke([*arguments, "--set", "cluster.hosts=3", "--set", "cluster.ranks_per_host=2"]) == 0
    result = read_result(RunDirectory(out).result)
    assert {(figure.name, figure.host) for figure in result.energy} == {(f"node{n}/cpu", f"node{n}") for n in range(3)}
    assert sorted(rank for figure in result.energy for rank in figure.ranks) == list(range(6))
    assert result.energy_J == pytest.approx(sum(figure.total_J or 0.0 for figure in result.energy))
    least = 100 * sum(result.epoch_s) * (1 - 1e-9)  # evaluations come on top
    assert all(figure.total_J is not None and figure.total_J >= least for figure in result.energy)
    assert "energy of the devices" in capsys.readouterr().out


def test_a_simulation_never_loads_torch(small: Path) -> None:
    script = (
        "import sys\nfrom simgnn.cli.main import invoke\n"
        f"status = invoke(['simulate', {str(small)!r}, '--hardware', {FALLBACK_PROFILE!r}, '--ranks', '2', '--json'])\n"
        "print('LOADED', [name for name in ('torch', 'dgl') if name in sys.modules], status, file=sys.stderr)"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "LOADED [] 0" in told.stderr
