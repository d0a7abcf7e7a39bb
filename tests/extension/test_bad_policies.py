"""Policies of a user's own that are wrong: one message with file, class and method, and nothing half-written."""

import json
from pathlib import Path

import psutil
import pytest

from simgnn.cli.main import invoke
from simgnn.registry import add_to_path, policy_class, source_digest
from tests.extension.worlds import policies

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
import sys
import numpy as np
from pydantic import model_validator
from simgnn.emit import CachedRows, Communication, Freshness, GuardsBlocks, Placement, RowStore, from_bytes, to_bytes
from simgnn.policy import (
    Assignment, Codec, CommunicationTraits, FreshnessTraits, Idle, MiniBatchSchedule, Partitioner, PlacementTraits,
    PolicyError, Schedule,
)
from simgnn.program.ops import Dependency, Stream
class Plain(Codec):
    def row_bytes(self, width, dtype): return 4 * width
    def encode(self, context, rows, names): return to_bytes(rows)
    def decode(self, context, packed, width, dtype): return from_bytes(packed, dtype)
"""
BATCHES = """
extends = "distdgl"
[graph]
vertices = 400
edges = 2500
classes = 4
feature_width = 16
[model]
hidden = 8
layers = 2
[batching]
batch_size = 20
fanouts = [4, 4]
structure = "replicated"
[train]
epochs = 2
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
    assert "Off.agree decided differently" in message
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
        "Odd.row_bytes returned 2.5, expected a whole number",
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


PROFILE = Path(__file__).parents[2] / "simgnn" / "study" / "truth" / "testbed-xeon" / "profile.toml"
PLAIN, SCHEDULE = "codec.kind=MODULE:X", "schedule.kind=MODULE:X"
PLACED, FRESH, DIVIDED = "placement.kind=MODULE:X", "freshness.kind=MODULE:X", "partition.kind=MODULE:X"
COMMUNICATION = "communication.kind=MODULE:X"
SENT = "communication.kind=MODULE:TwoRounds"
LOADED = {
    "exits": (PLAIN, "class X(Plain):\n def refuses(self, choices): sys.exit(0)", "X.refuses raised SystemExit: 0"),
    "checks its options": (
        PLAIN,
        "class X(Plain):\n @model_validator(mode='after')\n def check(self): return 1 / 0",
        "X.check raised ZeroDivisionError",
    ),
    "is made and raises": (PLAIN, "class X(Plain):\n def model_post_init(self, _): 1 / 0", "X.model_post_init raised"),
    "has a label": (PLAIN, "class X(Plain):\n @property\n def label(self): 1 / 0", "a label of its own"),
    "refuses junk": (PLAIN, "class X(Plain):\n def refuses(self, choices): yield 3", "TypeError"),
    "has no such option": (
        PLAIN,
        "class X(Plain):\n def idle(self, choices): yield Idle('z', 'a', 'b')",
        "KeyError: 'z'",
    ),
    "serves nothing": (PLAIN, "class X(Plain): serves = None", "serves None, expected a tuple"),
    "serves a word": (PLAIN, "class X(Plain): serves = 'rows'", "serves 'rows', expected a tuple"),
    "encodes batches": (PLAIN, "class X(Plain): serves = ('rows', 'blocks', 'batches')", "needs encodes = False"),
    "stale batches": (
        FRESH,
        "class X(CachedRows):\n serves = ('batches',)\n def moved(self, *_): ...",
        "needs exact = True",
    ),
    "only traits of a freshness": (FRESH, "class X(FreshnessTraits): ...", "derive from MovesRows"),
    "a freshness of nothing": (FRESH, "class X(Freshness): ...", "derive from MovesRows"),
    "rows that claim blocks": (
        FRESH,
        "class X(CachedRows):\n serves = ('rows', 'blocks')\n def moved(self, *_): ...",
        "derive from MovesBlocks",
    ),
    "only traits of a placement": (PLACED, "class X(PlacementTraits): ...", "derive from Placement"),
    "a placement of batches": (PLACED, "class X(Placement): serves = ('batches',)", "derive from RowStore"),
    "a schedule of batches": (
        SCHEDULE,
        "class X(Schedule): serves = ('rows', 'blocks', 'batches')",
        "derive from MiniBatchSchedule",
    ),
    "only traits of a communication": (
        COMMUNICATION,
        "class X(CommunicationTraits): cut = 'edge-cut'",
        "derive from Communication",
    ),
    "a communication of batches": (
        COMMUNICATION,
        "class X(Communication):\n cut, moves = 'edge-cut', 'batches'\n def sizes(self, *_): ...",
        "derive from BatchCommunication",
    ),
    "a communication of no cut": (
        COMMUNICATION,
        "class X(Communication):\n def sizes(self, *_): ...",
        "whose cut is none of",
    ),
    "another cut": (
        DIVIDED,
        "class X(Partitioner):\n cut = 'banana'\n def divide(self, *_): ...",
        "whose cut is none of",
    ),
    "a module that raises": (PLAIN, "\nX = 1 / 0", "raised ZeroDivisionError: division by zero ("),
    "a module that ends": (PLAIN, "\nsys.exit(0)", "raised SystemExit: 0 ("),
    "a module that cannot be read": (PLAIN, "\ndef (:", "raised SyntaxError"),
}
PLANNED = {
    "exits": (PLAIN, "class X(Plain):\n def row_bytes(self, *_): sys.exit(0)", "X.row_bytes raised SystemExit: 0"),
    "says why": (PLAIN, "class X(Plain):\n def row_bytes(self, *_): raise PolicyError('my reason')", "X.row_bytes, "),
    **{
        f"{nbytes} bytes": (
            PLAIN, f"class X(Plain):\n def row_bytes(self, *_): return {nbytes}", "X.row_bytes returned "
        )
        for nbytes in ("-4", "2**70", "2.5", "True", "None")
    },
    "divides and ends": (
        DIVIDED, "class X(Partitioner):\n def divide(self, *_): sys.exit('done')", "X.divide raised SystemExit: done"
    ),
    "divides badly": (
        DIVIDED,
        "class X(Partitioner):\n def divide(self, graph, *_): return Assignment(np.zeros(3, int))",
        "X.divide returned owner: got int64 [3]",
    ),
    "divides edges too": (
        DIVIDED,
        "class X(Partitioner):\n def divide(self, graph, *_): return Assignment(np.arange(400) % 2, np.zeros(4, int))",
        "edge_part: got int64 [4], expected none: cut is 'edge-cut'",
    ),
    "no group": (SCHEDULE, "class X(Schedule):\n def stream(self, *_): return Stream('z')", " more)"),
    "no such op": (SCHEDULE, "class X(Schedule):\n def after(self, *_): return [Dependency('z')]", " more)"),
    "picks nothing": (SCHEDULE, "class X(Schedule):\n def pick(self, *_): return 99, 0", "X.pick returned (99, 0)"),
    "picks and raises": (SCHEDULE, "class X(Schedule):\n def pick(self, *_): return 1 / 0", "X.pick raised"),
    "picks and ends": (SCHEDULE, "class X(Schedule):\n def pick(self, *_): sys.exit(0)", "X.pick raised SystemExit: 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", [*LOADED.values(), *PLANNED.values()], ids=[*LOADED, *PLANNED])
def test_one_sentence_names_the_file(
    folder: Path, capsys: pytest.CaptureFixture[str], case: tuple[str, str, str]
) -> None:
    setting, text, expected = case
    status, said = told(folder, capsys, text, "simulate", *ROWS, "--set", setting)
    sentence = [line for line in said.splitlines() if not line.startswith("simgnn: graph")][-1]
    assert status == 2, said
    assert expected in sentence, said
    assert f"{folder.name}.py" in sentence, said
    assert "problems:" not in said
    assert not (folder / "out").exists()


DRAWN = "class X(MiniBatchSchedule):\n @property\n def drawn_batches(self): return {}\n"
SAMPLED = {
    "draws too early": (DRAWN.format(2) + " def before_draw(self, ends): return ()", " more) (X in "),
    "holds no batch": (DRAWN.format(0), "X.drawn_batches returned 0, expected a whole number from 1"),
    "holds half a batch": (DRAWN.format(2.5), "X.drawn_batches returned 2.5, expected a whole number from 1"),
}


@pytest.mark.parametrize("case", SAMPLED)
def test_one_sentence_for_batches(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setitem(globals(), "EXPERIMENT", BATCHES)
    text, expected = SAMPLED[case]
    status, said = told(folder, capsys, text, "simulate", "--set", SCHEDULE, "--hardware", str(PROFILE))
    assert status == 2, said
    assert expected in said.splitlines()[-1], said


def test_numbers_of_numpy_are_bytes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "class X(Plain):\n def row_bytes(self, width, dtype): return np.int64(4 * width)"
    status, said = told(folder, capsys, text, "simulate", *ROWS, "--set", PLAIN)
    assert status == 0, said


def test_an_action_that_no_policy_lists(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = "    actions: ClassVar[tuple[type[Action[Any]], ...]] = (JoinRounds, PartRounds)\n"
    text = policies()["two_rounds"]
    assert listed in text
    status, said = told(folder, capsys, text.replace(listed, ""), "simulate", "--set", SENT)
    assert status == 2, said
    assert all(word in said for word in ("needs the action 'JoinRounds'", f"{folder.name}.py", "TwoRounds")), said
    assert not (folder / "out").exists()


def test_a_changed_helper_makes_a_partition_anew(folder: Path) -> None:
    helper, name = folder / f"{folder.name}_helper.py", folder.name
    helper.write_text("HEIGHT = 1\n")
    text = f"import {name}_helper\n{HEAD}" + OFF.format(base="Codec", method="row_bytes")
    (folder / f"{name}.py").write_text(text)
    add_to_path(str(folder))
    kind = policy_class("codec", f"{name}:Off")
    before = source_digest(kind())
    assert before == source_digest(kind()) != ""
    helper.write_text("HEIGHT = 2\n")
    assert source_digest(kind()) != before
