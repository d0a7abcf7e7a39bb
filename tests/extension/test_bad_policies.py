"""Policies of a user's own that are wrong: one message with file, class and method, and nothing half-written."""

import json
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
from simgnn.emit import CachedRows, GuardsBlocks, RowStore
from simgnn.policy import Codec
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


OFF = """
class Off({base}):
    def encode(self, *given): ...
    decode = moved = encode
    def {method}(self, *given):
        return 1 / 0
"""
RAISING = {
    "codec": ("Codec", "row_bytes"), "freshness": ("CachedRows", "expand"), "placement": ("RowStore", "refuses"),
}  # fmt: skip


@pytest.mark.parametrize("slot", RAISING)
def test_a_policy_that_raises_before_the_run(folder: Path, capsys: pytest.CaptureFixture[str], slot: str) -> None:
    base, method = RAISING[slot]
    text = OFF.format(base=base, method=method)
    status, message = told(folder, capsys, text, "simulate", "--set", f"{slot}.kind=MODULE:Off", *ROWS)
    assert status == 2
    assert all(
        word in message for word in (f"{slot}.kind", f"Off.{method}", "ZeroDivisionError", f"{folder.name}.py:")
    ), message
    assert not (folder / "out").exists()


GUARDS = """
class Off(GuardsBlocks):
    def agree(self, context, versions, wanted):
        return [context.epoch == 0 or context.rank == 0] * context.ranks
"""


@pytest.mark.usefixtures("forked_ranks")
def test_ranks_that_decide_differently(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kinds = ["freshness.kind=MODULE:Off", "partition.kind=block-row", "communication.kind=block-broadcast"]
    options = [word for kind in kinds for word in ("--set", kind)]
    before = {one.pid for one in psutil.Process().children(recursive=True)}
    status, message = told(folder, capfd, GUARDS, "run", *options)
    assert status == 1
    assert "Off decided differently" in message
    assert f"{folder.name}.py" in message
    assert "Traceback" not in message
    assert json.loads((folder / "out" / "result.json").read_text())["status"] == "failed"
    # the process that ranks are forked from is our own child and stays; ranks are its children
    ranks = [
        one for child in psutil.Process().children() for one in child.children(recursive=True) if one.pid not in before
    ]
    assert not ranks, "every rank has ended"


WRONG = {
    "fractional bytes of a row": (
        "class Odd(Codec):\n    def encode(self, *given):\n        return 2.5\n    row_bytes = moved = decode = encode",
        "codec.kind=MODULE:Odd",
        "bytes of a row: got 2.5, expected a whole number",
    ),
    "a constructor": (
        "class Odd(Codec):\n    def __init__(self): ...\n    encode = decode = moved = row_bytes = __init__\n",
        "codec.kind=MODULE:Odd",
        "a class with an __init__; declare its options as fields",
    ),
    "no class": ("", "codec.kind=sys:path", "got 'sys:path', but sys holds no class under the name 'path'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_class_that_cannot_be_a_policy(folder: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    text, setting, expected = WRONG[what]
    status, said = told(folder, capsys, text, "simulate", *ROWS, "--set", setting)
    assert (status, expected in " ".join(said.split())) == (2, True), said
    assert not (folder / "out").exists()
