"""Faults are drawn evenly, what a disturbed run leaves behind is judged, and a dozen faults pass."""

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tools import inject_faults
from tools.faults.draw import KINDS, MOMENTS, Fault, Kind, Setup, draw_faults
from tools.faults.judge import damaged, other_outcome, screen_faults, unfinished
from tools.inject_faults import Verdict, table
from tools.list_predictions import systems


def fault(kind: Kind = "rank-killed") -> Fault:
    return Fault(Setup("vanilla", 1, 2), kind, "middle", rank=1, share=0.5, delay_s=0.0)


def test_faults_are_ten_of_each_system_and_every_kind_at_every_moment() -> None:
    count = 10 * len(systems())
    drawn = draw_faults(7, count)
    assert drawn == draw_faults(7, count)
    assert drawn != draw_faults(8, count)
    assert set(Counter(each.setup.system for each in drawn).values()) == {10}
    assert {(each.kind, each.moment) for each in drawn} == {(kind, moment) for kind in KINDS for moment in MOMENTS}
    assert {each.setup.system for each in drawn if each.setup.hosts == 2} == {"distdgl", "rapidgnn"}
    assert {each.setup.ranks for each in drawn} == {2, 3}
    assert all(each.rank < each.setup.ranks for each in drawn)


def test_a_file_that_is_cut_off_is_found(tmp_path: Path) -> None:
    (tmp_path / "losses.csv").write_text("epoch,loss\n1,2.5\n")
    (tmp_path / "result.json").write_text(json.dumps({"loss": [2.5]}))
    pq.write_table(pa.table({"rank": list(range(1000))}), tmp_path / "trace.parquet")
    (tmp_path / "rank-0.arrow").write_bytes(b"half")
    assert damaged(tmp_path) == []
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    found = damaged(tmp_path)
    assert [said.split()[0] for said in found] == ["losses.csv", "result.json", "trace.parquet"]
    (tmp_path / ".rank-0.pt.tmp").touch()
    assert damaged(tmp_path) == found
    assert unfinished(tmp_path) == [".rank-0.pt.tmp was left behind"]


@pytest.mark.parametrize(
    ("kind", "said", "status", "fine"),
    [
        ("rank-killed", "simgnn: training: x\nsimgnn: run: rank 1 was killed by SIGKILL; ended", 1, True),
        ("rank-killed", "simgnn: run: rank 0 was killed by SIGKILL; ended", 1, False),
        ("rank-killed", "simgnn: run: rank 1 was killed by SIGKILL; ended", 0, False),
        ("rank-killed", "Traceback\nsimgnn: run: rank 1 was killed by SIGKILL; ended", 1, False),
        ("rank-stopped", "simgnn: run: rank 0: lost contact; rank 1 did not answer", 1, True),
        ("disk-full", "simgnn: [Errno 28] No space left on device", 1, False),
        ("launcher-killed", "simgnn: training: x", -9, True),
        ("launcher-interrupted", "simgnn: interrupted", 1, True),
        ("launcher-interrupted", "simgnn: interrupted\nsimgnn: interrupted", 1, False),
    ],
)
def test_the_screen_is_judged(kind: Kind, said: str, status: int, fine: bool) -> None:
    assert (screen_faults(fault(kind), said, status) == []) is fine


def test_another_end_is_found() -> None:
    expected = {"loss": [2.5, 1.5], "weights": {"last": "a"}}
    assert other_outcome({"loss": [2.5, 1.5], "weights": {"last": "a"}}, expected) == []
    (said,) = other_outcome({"loss": [2.5, 1.25], "weights": {"last": "a"}}, expected)
    assert "entry 2: 1.25 instead of 1.5" in said
    assert len(other_outcome({"loss": [2.5], "weights": {}}, expected)) == 2


def test_the_table_counts_by_kind() -> None:
    found = [
        Verdict(fault(), 2.0, "resumed after epoch 10", ()),
        Verdict(fault(), 3.0, "began anew", ("loss differs",)),
        Verdict(fault("disk-full"), 4.0, "had finished", ()),
    ]
    lines = table(found).splitlines()
    assert lines[2:] == [
        "| rank-killed | 2 | 1 | 0 | 0 | 1 | 3.0 s |",
        "| disk-full | 1 | 0 | 0 | 1 | 0 | 4.0 s |",
        "| all | 3 | 1 | 0 | 1 | 1 | 4.0 s |",
    ]


@pytest.mark.parametrize("words", [["--count", "0"], ["--only", "13", "--count", "12"], ["--out", "/tmp"]])
def test_bad_input_is_refused(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert inject_faults.main(["--out", str(tmp_path / "new"), *words]) == 2
    option = "--out" if "--out" in words else words[0]
    assert option in capsys.readouterr().err


@pytest.mark.slow
def test_a_dozen_faults_end_in_time_and_go_on_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = inject_faults.main(["--seed", "12", "--count", "12", "--out", str(tmp_path / "faults")])
    said = capsys.readouterr().out
    print(said)
    assert status == 0, said
