"""What a calibration leaves behind: the profile, the page, and nothing at all when it is interrupted."""

import json
import os
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from simgnn.api import measuring
from simgnn.api.measuring import forget_kept, kept_folder, torchrun_place
from simgnn.cli.main import invoke
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.library import calibration_path
from simgnn.hardware.profile.profile import load_profile
from simgnn.locks import locked_folder
from tests.hardware.conftest import work_seconds


def synthetic(ranks: int) -> dict[str, Any]:
    """Samples of a machine with simple costs: 1 Gflop/s, messages of 100 us and 1 GB/s."""

    def one(primitive: str, form: str, sizes: dict[str, float], seconds: float) -> dict[str, Any]:
        return {"primitive": primitive, "form": form, "sizes": sizes, "hosts": [0], "ranks": ranks, "active": ranks,
                "threads": 1, "seconds": seconds, "last_s": seconds, "mad_s": seconds / 50, "repeats": 5}  # fmt: skip

    samples = [
        one("matmul", "forward", {"rows": rows, "inner": inner, "outer": inner, "crossed": 0, "item_bytes": 4},
            2 * rows * inner * inner / 1e9 + 1e-5)
        for rows in (10, 100, 1000, 5000) for inner in (8, 64, 256)
    ]  # fmt: skip
    for nbytes in (1 << 10, 1 << 14, 1 << 20, 1 << 23):
        flowing = 1e-4 + nbytes / 1e9
        samples.append(one("send", "one-way", {"bytes": nbytes}, flowing))
        pairs = ranks * (ranks - 1)
        sizes = {"bytes": nbytes, "rank_bytes": nbytes * (ranks - 1), "total_bytes": nbytes * pairs}
        samples.append(one("exchange", "even", sizes, flowing))
        samples.append(one("allreduce", "allreduce", {"bytes": nbytes}, flowing))
    facts = {"host": "<test>", "system": "any", "cpu_model": "any <b>", "cores": 2, "memory_bytes": 1 << 30,
             "caches": [], "python": "3", "torch": "2", "device": "cpu"}  # fmt: skip
    return {"format": "simgnn-samples", "version": 2, "started": datetime.now(UTC).isoformat(),
            "hosts": [{"ranks": list(range(ranks)), "facts": facts}],
            "backend": "gloo", "ranks": ranks, "threads": 1, "quick": True, "samples": samples}  # fmt: skip


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """Instead of measuring: synthetic samples; the command lines that would have measured."""
    calls: list[list[str]] = []

    def measure(ranks: int, arguments: Sequence[str], *rest: object) -> None:
        calls.append(list(arguments))
        Path(arguments[arguments.index("--out") + 1]).write_text(json.dumps(synthetic(ranks)))

    monkeypatch.setenv("SIMGNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(measuring, "_measure", measure)
    monkeypatch.setattr(measuring, "_warn_if_busy", lambda reporter: None)
    return calls


def test_the_report_is_one_page_that_needs_nothing_else(
    measured: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, profile = tmp_path / "new" / "page.html", tmp_path / "mine.toml"
    assert invoke(["calibrate", "--quick", "--report", str(page), "--out", str(profile), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["report"] == str(page)
    text = page.read_text()
    for part in ("Plotly.newPlot", "plot0", "plot1", "cross-validated", "matmul", "allreduce", "left out", "4 robust"):
        assert part in text
    assert "<script src" not in text
    assert "any <b>" not in text
    assert "any &lt;b&gt;" in text
    assert load_profile(profile).calibrated
    assert not calibration_path().exists()
    assert not list(tmp_path.rglob(".*"))


def test_without_a_name_the_report_lies_beside_the_profile(
    measured: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["calibrate", "--quick", "--report", "--fresh"]) == 0
    (page,) = calibration_path().parent.glob("calibration/*.html")
    assert page.with_suffix(".toml").is_file()
    assert str(page) in capsys.readouterr().err
    assert "--fresh" in measured[0]
    assert str(kept_folder()) in measured[0]


def test_a_file_without_report_is_refused(measured: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["calibrate", "page.html"]) == 2
    assert "--report page.html" in capsys.readouterr().err
    assert not measured


def test_an_interruption_leaves_kept_samples_and_nothing_else(
    measured: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    real = measuring._measure

    def interrupted(ranks: int, *rest: Any) -> None:
        if ranks == 2:
            raise KeyboardInterrupt
        real(ranks, *rest)
        kept_folder().mkdir(parents=True, exist_ok=True)
        (kept_folder() / f"full-{ranks}-work.json").write_text("{}")

    monkeypatch.setattr(measuring, "_measure", interrupted)
    assert invoke(["calibrate", "--ranks", "2"]) == 1
    assert "are kept for a day: the same command goes on" in " ".join(capsys.readouterr().err.split())
    assert invoke(["calibrate", "--ranks", "1,2", "--report", "--samples", str(tmp_path / "raw")]) == 1
    assert "are kept for a day" in " ".join(capsys.readouterr().err.split())
    assert [path.name for path in kept_folder().iterdir()] == ["full-1-work.json"]
    assert not calibration_path().exists()
    assert not list(calibration_path().parent.rglob("*.html"))
    forget_kept(quick=True)
    assert kept_folder().is_dir(), "a quick calibration drops what a full one has kept"
    monkeypatch.setattr(measuring, "_measure", real)
    assert invoke(["calibrate", "--ranks", "2"]) == 0
    assert calibration_path().is_file()
    assert not kept_folder().exists()


def test_two_calibrations_never_run_at_once(measured: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    with locked_folder(calibration_path().parent, "calibrate"):
        assert invoke(["calibrate", "--quick"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert f"is in use by process {os.getpid()}; wait for it, or end it" in told
    assert not measured


def test_kept_samples_of_several_calibrations_are_pooled_without_measuring(
    measured: list[list[str]], tmp_path: Path
) -> None:
    folders = [tmp_path / "morning", tmp_path / "noon"]
    for folder in folders:
        assert invoke(["calibrate", "--ranks", "2,4", "--samples", str(folder), "--out", str(tmp_path / "x.toml")]) == 0
    for path in folders[1].iterdir():
        slower = json.loads(path.read_text())
        for sample in slower["samples"]:
            sample["seconds"] *= 3
        path.write_text(json.dumps({**slower, "started": "2031-02-03T12:00:00Z"}))
    commands = len(measured)
    pooled = [option for folder in folders for option in ("--pool", str(folder))]
    assert invoke(["calibrate", *pooled, "--out", str(tmp_path / "pooled.toml")]) == 0
    assert len(measured) == commands
    profile, once = load_profile(tmp_path / "pooled.toml"), load_profile(tmp_path / "x.toml")
    assert profile.meta.date == date(2031, 2, 3)
    assert profile.meta.calibrated_ranks == once.meta.calibrated_ranks == (2, 4)
    sizes = {"rows": 1000, "inner": 64, "outer": 64, "crossed": 0, "item_bytes": 4}
    one, twice = (work_seconds(Machine.place(each, [0, 0]), 0, "matmul", sizes).seconds for each in (once, profile))
    assert twice == pytest.approx(2 * one, rel=0.01)


def test_what_cannot_be_pooled_is_refused(
    measured: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, empty, out = tmp_path / "kept", tmp_path / "empty", tmp_path / "pooled.toml"
    assert invoke(["calibrate", "--ranks", "2,4", "--samples", str(folder), "--out", str(tmp_path / "x.toml")]) == 0
    empty.mkdir()
    other = tmp_path / "other"
    other.mkdir()
    for path in folder.iterdir():
        document = json.loads(path.read_text())
        document["hosts"][0]["facts"]["torch"] = "1"
        (other / path.name).write_text(json.dumps(document))
    kept = ["--pool", str(folder)]
    for more, told in (
        (["--pool", str(empty)], f"--pool: {empty} holds no samples-*.json"),
        (["--pool", f"{tmp_path}/./kept"], "is named twice"),
        (["--pool", str(other)], "expected the same hosts"),
        (["--quick", "--passes", "2"], "--pool: got --quick, --passes too"),
        (["--ranks", "2"], "--pool: got --ranks too"),
    ):
        capsys.readouterr()
        assert invoke(["calibrate", *kept, *more, "--out", str(out)]) == 2
        assert told in capsys.readouterr().err
        assert not out.exists()


def test_under_torchrun_all_ranks_measure_and_rank_0_alone_fits(
    measured: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert torchrun_place() == (1, 2, 1)
    assert invoke(["calibrate", "--quick", "--json"]) == 0
    assert capsys.readouterr().out == ""
    assert not calibration_path().exists()
    monkeypatch.setenv("RANK", "0")
    assert invoke(["calibrate", "--quick"]) == 0
    assert load_profile(calibration_path()).meta.calibrated_ranks == (2,)
    assert len(measured) == 2
    assert all("--ranks" not in arguments for arguments in measured), "torchrun has started the ranks already"
    assert invoke(["calibrate", "--ranks", "4"]) == 2
    assert "--ranks: got 4, but torchrun started 2" in capsys.readouterr().err


def test_help_states_the_outlier_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["calibrate", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for part in ("10 median absolute deviations", "4 robust sigmas", "factor of 1.25", "--fresh", "torchrun"):
        assert part in told
