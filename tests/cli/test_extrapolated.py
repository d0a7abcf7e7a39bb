"""A prediction on a size outside the measured range says so, in result.json and on screen."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simgnn.cli.main import invoke
from simgnn.hardware.profile.profile import parse_profile, save_profile
from simgnn.record.result import read_result
from simgnn.record.rundir import RunDirectory

PROFILE = Path(__file__).parent.parent / "hardware" / "data" / "invented-8x8.toml"
WIDE = ["0 B", "1 TB"]
RANKS = 2


def nothing(table: dict[str, Any]) -> None:
    pass


def small_messages(table: dict[str, Any]) -> None:
    for link in table["links"].values():
        link["bandwidth"]["range"] = ["0 B", "8 B"]


def small_library_messages(table: dict[str, Any]) -> None:
    table["backends"]["gloo"]["message"]["bandwidth"] = {
        "value": "1 GB/s",
        "source": "assumed",
        "range": ["0 B", "8 B"],
    }


def small_collectives(table: dict[str, Any]) -> None:
    for entry in table["backends"]["gloo"]["collectives"]:
        if entry["kind"] == "allreduce":
            entry["bus_bandwidth"] = {"value": "1 GB/s", "source": "assumed", "range": ["0 B", "8 B"]}


def other_ranks(table: dict[str, Any]) -> None:
    for entry in table["backends"]["gloo"]["collectives"]:
        if entry["kind"] == "allreduce":
            entry["ranks"] = [16]


def small_work(table: dict[str, Any]) -> None:
    curve = next(curve for curve in table["devices"]["cpu"]["curves"] if curve["primitive"] == "matmul")
    curve["range"] = {"flops": ["1 flop", "10 flops"]}


def exact_levels(table: dict[str, Any]) -> None:
    """Curves at just the level that the test runs: 2 ranks of 4 threads; no cache to miss."""
    for curve in table["devices"]["cpu"]["curves"]:
        curve["concurrency"], curve["threads"] = RANKS, 4
        curve["costs"] = {name: cost for name, cost in curve["costs"].items() if not name.startswith("missed")}
        curve.pop("range", None)
    for link in table["links"].values():
        link["bandwidth"]["range"] = WIDE


@pytest.mark.parametrize(
    ("narrow", "flagged"),
    [
        (nothing, ()),
        (small_messages, ("exchange",)),
        (small_library_messages, ("exchange",)),
        (small_collectives, ("allreduce",)),
        (other_ranks, ("allreduce",)),
        (small_work, ("transform",)),
    ],
)
def test_sizes_outside_the_measured_range_are_flagged(
    narrow: Callable[[dict[str, Any]], None],
    flagged: tuple[str, ...],
    small: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = tomllib.loads(PROFILE.read_text())
    exact_levels(table)
    narrow(table)
    save_profile(parse_profile(table), tmp_path / "machine.toml")
    words = ["simulate", str(small), "--ranks", str(RANKS), "--hardware", str(tmp_path / "machine.toml")]
    assert invoke([*words, "--out", str(tmp_path / "out")]) == 0
    run = RunDirectory(tmp_path / "out")
    import pyarrow.parquet as pq

    ops = pq.read_table(run.ops).to_pydict()
    kind_of = dict(zip(ops["op"], ops["kind"], strict=True))
    named = read_result(run.result).extrapolated
    assert {kind_of[name] for name in named} == set(flagged)
    assert ("sizes beyond the calibration" in capsys.readouterr().err) == bool(flagged)
