"""Policies of a user's own that are wrong: one message with file, class and method, and nothing half-written."""

import json
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from simgnn.cli.main import invoke

EXPERIMENT = """\
extends = "vanilla"
name = "own"
[graph]
vertices = 400
edges = 2500
classes = 4
feature_width = 16
[model]
hidden = 8
[train]
epochs = 3
"""
ROWS = ["--set", "communication.rows=transformed"]
HEAD = """\
from simgnn.emit import CachedRows, Freshness, GuardsBlocks, RowStore
from simgnn.policy import Assignment, Codec, Partitioner, Refusal
"""
OFF = """
class Off(Codec):
    def row_bytes(self, width, dtype):
        return {row_bytes}
    def encode(self, context, rows, names):
        return {encode}
    def decode(self, context, packed, width, dtype):
        return None
"""


def told(folder: Path, capsys: pytest.CaptureFixture[str], text: str, command: str, *arguments: str) -> tuple[int, str]:
    """Exit status and error message of a command, of an experiment beside a file ``NAME.py`` with ``text``."""
    (folder / f"{folder.name}.py").write_text(HEAD + text)
    path = folder / "own.toml"
    path.write_text(EXPERIMENT)
    given = [argument.replace("MODULE", folder.name) for argument in arguments]
    status = invoke([command, str(path), "--ranks", "2", "--out", str(folder / "out"), *given])
    return status, capsys.readouterr().err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose name no other module has."""
    made = tmp_path / f"own_{abs(hash(tmp_path))}"
    made.mkdir()
    return made


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("codec.kind=nowhere_at_all.codecs:Off", ["codec.kind", "no module"]),
        ("codec.kind=MODULE:Missing", ["codec.kind", "no class 'Missing'", ".py"]),
        ("codec.kind=MODULE:Still", ["codec.kind", "slot freshness", "slot codec"]),
        ("codec.kind=MODULE:number", ["codec.kind", "no class"]),
        ("codec.kind=MODULE:Unfinished", ["codec.kind", "decode"]),
    ],
)
def test_a_kind_that_names_no_policy_of_the_slot(
    folder: Path, capsys: pytest.CaptureFixture[str], kind: str, expected: Sequence[str]
) -> None:
    text = (
        "number = 1\n"
        "class Still(CachedRows):\n    def moved(self, context, rows, cached, state):\n        return rows[:, 0] == 0\n"
        "class Unfinished(Codec):\n    def row_bytes(self, width, dtype):\n        return 1\n"
    )
    status, message = told(folder, capsys, text, "simulate", "--set", kind)
    assert status == 2
    assert all(word in message for word in expected), message
    assert not (folder / "out").exists()


RAISING = {
    "partition": ("class Off(Partitioner):\n    def divide(self, graph, hosts, seed, spill):", "Off.divide"),
    "codec": ("class Off(Codec):\n    encode = decode = None\n    def row_bytes(self, width, dtype):", "Off.row_bytes"),
    "freshness": (
        "class Off(CachedRows):\n    moved = None\n    def expand(self, builder, sync, codec):", "Off.expand"
    ),
    "placement": (
        "class Off(RowStore):\n    serves = ('rows',)\n    def refuses(self, choices):", "Off.refuses"
    ),
}  # fmt: skip


@pytest.mark.parametrize("slot", RAISING)
def test_a_policy_that_raises_before_the_run(folder: Path, capsys: pytest.CaptureFixture[str], slot: str) -> None:
    text, method = RAISING[slot]
    text += "\n        return 1 / 0\n"
    status, message = told(folder, capsys, text, "simulate", "--set", f"{slot}.kind=MODULE:Off", *ROWS)
    assert status == 2
    assert all(word in message for word in (f"{slot}.kind", method, "ZeroDivisionError", f"{folder.name}.py:")), message
    assert not (folder / "out").exists()


def test_a_partitioner_whose_ranks_are_of_the_wrong_shape(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "import numpy\nclass Off(Partitioner):\n    def divide(self, graph, hosts, seed, spill):\n"
    text += "        return Assignment(numpy.zeros(3, int))\n"
    status, message = told(folder, capsys, text, "simulate", "--set", "partition.kind=MODULE:Off")
    assert status == 2
    assert "partition.kind" in message
    assert "Off.divide returned" in message
    assert not (folder / "out").exists()


IN_RUNS = {
    "raises": (OFF.format(row_bytes="4", encode="1 / 0"), ["codec.kind=MODULE:Off"], "Off.encode"),
    "wrong shape": (
        OFF.format(row_bytes="4", encode="rows.new_zeros((len(rows), 3), dtype=__import__('torch').uint8)"),
        ["codec.kind=MODULE:Off"], "Off.encode returned",
    ),
    "other guards": (
        "class Off(GuardsBlocks):\n    def agree(self, context, versions, wanted):\n"
        "        return [context.epoch == 0 or context.rank == 0] * context.ranks\n",
        ["freshness.kind=MODULE:Off", "partition.kind=block-row", "communication.kind=block-broadcast"], ".Off decided",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "fault", ["raises", *(pytest.param(fault, marks=pytest.mark.slow) for fault in IN_RUNS if fault != "raises")]
)
def test_a_policy_that_is_wrong_in_the_run(folder: Path, capfd: pytest.CaptureFixture[str], fault: str) -> None:
    text, settings, expected = IN_RUNS[fault]
    options = [word for setting in settings for word in ("--set", setting)]
    status, message = told(folder, capfd, text, "run", *options, *(ROWS if fault != "other guards" else []))
    assert status == 1
    assert expected in message, message
    assert f"{folder.name}.py" in message
    assert "Traceback" not in message
    assert json.loads((folder / "out" / "result.json").read_text())["status"] == "failed"
    ranks = [one for one in psutil.Process().children(recursive=True) if str(folder) in " ".join(one.cmdline())]
    assert not ranks, "every rank has ended"
