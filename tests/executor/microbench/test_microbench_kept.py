"""Samples of finished stages outlive an interruption, and only where nothing has changed."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch

from executor.microbench.samples import Kept, Sample, code_version, stage_key
from executor.microbench.suite import FULL, QUICK
from executor.microbench.world import World
from tests.executor.harness import quiet_port

WORLD = World(0, 1, torch.device("cpu"), "gloo", (1,), (0,))
HOSTS = [{"ranks": [0], "facts": {"host": "here", "cores": 2, "caches": [{"level": 2}]}}]


def sample(seconds: float = 1.0) -> Sample:
    return Sample("matmul", "forward", {"rows": 1.0}, [0], 1, 1, 1, seconds, seconds, 0.0, 3)


def kept(folder: Path, told: list[str], fresh: bool = False, **changed: object) -> Kept:
    key = {**stage_key(WORLD, HOSTS, QUICK, True), **changed}
    return Kept(folder, key, told.append, fresh)


def never() -> list[Sample]:
    raise AssertionError("measured again")


def test_a_finished_stage_is_not_measured_again(tmp_path: Path) -> None:
    told: list[str] = []
    first = kept(tmp_path, told).measured("work", WORLD, lambda: [sample()])
    assert kept(tmp_path, told).measured("work", WORLD, never) == first == [sample()]
    assert told == ["work: kept from the calibration that was interrupted"]
    assert not list(tmp_path.glob(".*"))


def test_an_interrupted_stage_leaves_nothing_behind(tmp_path: Path) -> None:
    def interrupted() -> list[Sample]:
        raise KeyboardInterrupt

    told: list[str] = []
    kept(tmp_path, told).measured("communication", WORLD, lambda: [sample()])
    with pytest.raises(KeyboardInterrupt):
        kept(tmp_path, told).measured("work", WORLD, interrupted)
    assert [path.name for path in tmp_path.iterdir()] == ["quick-1-communication.json"]


def test_fresh_measures_everything_anew(tmp_path: Path) -> None:
    told: list[str] = []
    kept(tmp_path, told).measured("work", WORLD, lambda: [sample(1.0)])
    assert kept(tmp_path, told, fresh=True).measured("work", WORLD, lambda: [sample(2.0)]) == [sample(2.0)]
    assert kept(tmp_path, told).measured("work", WORLD, never) == [sample(2.0)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ranks", 1.5),
        ("threads", 2),
        ("backend", "nccl"),
        ("hosts", [{**HOSTS[0], "ranks": [0, 1]}]),
        ("suite", stage_key(WORLD, HOSTS, FULL, True)["suite"]),
        ("code", "another"),
    ],
)
def test_stale_stages_are_refused_with_the_reason(tmp_path: Path, name: str, value: object) -> None:
    told: list[str] = []
    kept(tmp_path, told, **{name: value}).measured("work", WORLD, lambda: [sample(1.0)])
    for path in tmp_path.glob("*.json"):
        path.rename(tmp_path / "quick-1-work.json")
    assert kept(tmp_path, told).measured("work", WORLD, lambda: [sample(2.0)]) == [sample(2.0)]
    assert told == [f"work: kept samples are refused and measured anew: not the same {name}"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: text.replace('"seconds"', '"secs"'),
        lambda text: json.dumps({**json.loads(text), "started": "yesterday"}),
        lambda text: json.dumps({**json.loads(text), "started": (datetime.now(UTC) - timedelta(days=2)).isoformat()}),
        lambda text: json.dumps({**json.loads(text), "started": (datetime.now(UTC) + timedelta(days=2)).isoformat()}),
        lambda text: json.dumps({**json.loads(text), "samples": []}),
    ],
)
def test_damaged_and_old_stages_are_refused(tmp_path: Path, spoil: Callable[[str], str]) -> None:
    told: list[str] = []
    kept(tmp_path, told).measured("work", WORLD, lambda: [sample(1.0)])
    (path,) = tmp_path.glob("*.json")
    path.write_text(spoil(path.read_text()))
    assert kept(tmp_path, told).measured("work", WORLD, lambda: [sample(2.0)]) == [sample(2.0)]
    assert len(told) == 1
    assert "refused" in told[0]


def test_the_code_version_follows_the_code(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    source = tmp_path / "kernels" / "fast.py"
    source.write_text("one = 1\n")
    before = code_version(tmp_path)
    assert code_version(tmp_path) == before
    source.write_text("one = 2\n")
    assert code_version(tmp_path) != before


@pytest.mark.slow
def test_two_torchruns_measure_together_and_go_on(tmp_path: Path) -> None:
    out, kept_in = tmp_path / "samples.json", tmp_path / "kept"

    def measure_once() -> str:
        port = quiet_port()
        words = ["-m", "executor.microbench", "--quick", "--only", "communication", "--out", str(out)]
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1",
                 "--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", str(port), *words,
                 "--keep", str(kept_in if node == 0 else tmp_path / "another-disk")],
                env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"}, stderr=subprocess.PIPE, text=True,
            )
            for node in range(2)
        ]  # fmt: skip
        told = [process.communicate(timeout=120)[1] for process in started]
        assert [process.returncode for process in started] == [0, 0], told
        return told[0]

    assert "kept" not in measure_once()
    first = json.loads(out.read_text())["samples"]
    assert {entry["ranks"] for entry in first} == {2}
    assert not (tmp_path / "another-disk").exists()
    assert "communication: kept" in measure_once()
    assert json.loads(out.read_text())["samples"] == first
