"""Policies of a user's own that are wrong in mid-run: the rank at fault says class, method, file and place."""

import gc
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from executor.handlers.decisions import check_agreement
from executor.rank.session import run_rank
from executor.recording.failure import Note, read_failures
from executor.state.context import GroupHandle
from executor.world.environment import LAUNCHER, RENDEZVOUS
from simgnn.emit.caches.row_cache import EndEpoch, moved_rows
from simgnn.emit.guarded_blocks import Agree, FlagChange
from simgnn.policies.codec.none import Plain
from simgnn.policy import Epochs, PolicyContext, PolicyError, decoded, encoded
from simgnn.registry import add_to_path
from tests.executor.harness import run_ranks
from tests.executor.runs import prepared_run, small_graph
from tests.extension.worlds import policies

TEXT = """
import sys

from simgnn.emit import CachedRows, GuardsBlocks, from_bytes, to_bytes
from simgnn.policy import Codec, PolicyError, Schedule

class OneRank(GuardsBlocks):
    def agree(self, context, versions, wanted):
        if context.rank == 1 and context.epoch == 1:
            raise ValueError("a fault of mine")
        return [True] * context.ranks

class Never(GuardsBlocks):
    def agree(self, context, versions, wanted):
        return [False] * context.ranks

class Exits(Codec):
    def row_bytes(self, width, dtype):
        return 8 * width
    def encode(self, context, rows, names):
        if context.epoch == 2:
            sys.exit(0)
        return to_bytes(rows)
    def decode(self, context, packed, width, dtype):
        return from_bytes(packed, dtype)

class Array(Exits):
    def encode(self, context, rows, names):
        return to_bytes(rows).numpy()

class Reason(Exits):
    def encode(self, context, rows, names):
        raise PolicyError("my reason")

class State(CachedRows):
    state_width = 1
    def init(self, context):
        return (0.0,)
    def moved(self, context, rows, cached, state):
        return rows[:, 0] >= -state[0]
    def end_epoch(self, context, metrics, state):
        return (1.0 + 10 * context.rank,)

class Raises(Schedule):
    def init_pick(self):
        return 0
    def pick(self, ready, observed, state):
        return 0 if state > 40 and 1 / 0 else 0, state + 1

class Far(Schedule):
    def pick(self, ready, observed, state):
        return 99, state

class Float(Schedule):
    def pick(self, ready, observed, state):
        return (0.0 if ready[0].epoch else 0), state

class Mute(GuardsBlocks):
    @property
    def by_values(self):
        return True
    def agree(self, context, versions, wanted):
        return [True] * context.ranks

class Begins(Schedule):
    def init_pick(self):
        raise KeyError("mine")
    pick = Far.pick
"""
BLOCKS = ("partition.kind=block-row", "communication.kind=block-broadcast")
ROWS = ("communication.rows=transformed",)
CASES: dict[str, tuple[str, tuple[str, ...], tuple[int, ...], tuple[str, ...]]] = {
    "OneRank": (
        "freshness",
        BLOCKS,
        (1,),
        ("rank 1, epoch 2, op '", "/agree': ValueError: a fault of mine (in OneRank.agree"),
    ),
    "Never": (
        "freshness",
        BLOCKS,
        (0, 1),
        ("Never.agree returned [False, False], expected True for rank", "never sent"),
    ),
    "Exits": ("codec", ROWS, (0, 1), (", epoch 3, op '", "SystemExit: 0 (in Exits.encode")),
    "Array": (
        "codec",
        ROWS,
        (0, 1),
        (", epoch 1, op '", "Array.encode returned uint8 [", "(ndarray, cpu), expected uint8"),
    ),
    "Reason": ("codec", ROWS, (0, 1), (", epoch 1, op '", "my reason (in Reason.encode")),
    "State": (
        "freshness",
        ROWS,
        (0, 1),
        (", epoch 1, op '", "State.end_epoch decided differently: state 1 is 1 on rank 0 and 11 on rank 1"),
    ),
    "Raises": ("schedule", ROWS, (0, 1), (", stream '", "ZeroDivisionError: division by zero (in Raises.pick")),
    "Far": ("schedule", ROWS, (0, 1), (", epoch 1, stream '", "Far.pick returned (99, None), expected a position")),
    "Float": ("schedule", ROWS, (0, 1), (", stream '", "Float.pick returned (0.0, None), expected a position")),
    "Mute": ("freshness", BLOCKS, (0, 1), (", epoch 2, op '", "has no attribute 'change'")),
    "Begins": ("schedule", ROWS, (0, 1), ("KeyError: 'mine' (in Begins.init_pick",)),
}
"""Class -> its slot, other settings, the ranks that may have the cause, and what a rank says."""
JOINED = "array_namespace(up).concat((up, down))"
ACTIONS = {
    f"({JOINED}[1:],)": "expected float64 [",
    f"({JOINED}[:, :3],)": "expected float64 [",
    f"(array_namespace(up).astype({JOINED}, array_namespace(up).float32),)": "returned float32 [",
    f"({JOINED}.numpy(),)": "(ndarray, cpu), expected float64",
    JOINED: "(Tensor, cpu), expected a tuple of 1 arrays",
    "(up, down)": "expected a tuple of 1 arrays",
}
"""What the action of the page returns -> what a rank says."""


def carried_out(rank: int, ranks: int, folders: Sequence[str], path: str) -> list[int]:
    """Exit statuses of a rank's runs, one after another in one process."""
    add_to_path(path)
    here = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({key: str(value) for key, value in here.items()})
    statuses = []
    for folder in folders:
        os.environ[RENDEZVOUS], os.environ[LAUNCHER] = str(Path(folder) / "rendezvous"), "1"
        statuses.append(run_rank(Path(folder), "cpu"))
        dist.destroy_process_group()
        gc.collect()  # the sockets of a group close with its last reference, so that its peer loses contact
    return statuses


@pytest.fixture(scope="module")
def noted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Note]]:
    """What ranks note of every case."""
    root = tmp_path_factory.mktemp("returns")
    rounds = policies()["two_rounds"]
    (root / "bad_returns.py").write_text(TEXT)
    for number, returned in enumerate(ACTIONS):
        assert f"return ({JOINED},)" in rounds
        (root / f"bad_rounds_{number}.py").write_text(rounds.replace(f"return ({JOINED},)", f"return {returned}"))
    add_to_path(str(root))
    graph = small_graph()
    runs = {
        name: prepared_run(graph, root / name, 2, f"{slot}.kind=bad_returns:{name}", "train.timeout=20", *more)
        for name, (slot, more, *_) in CASES.items()
    } | {
        returned: prepared_run(
            graph, root / str(number), 2, f"communication.kind=bad_rounds_{number}:TwoRounds", "train.timeout=20"
        )
        for number, returned in enumerate(ACTIONS)
    }
    statuses = run_ranks(2, carried_out, root / "ranks", [str(run) for run in runs.values()], str(root), joined=False)
    assert statuses == [[1] * len(runs)] * 2
    return {name: read_failures(run / "trace") for name, run in runs.items()}


@pytest.mark.parametrize("name", CASES)
def test_the_rank_at_fault_says_where(noted: dict[str, list[Note]], name: str) -> None:
    *_, ranks, words = CASES[name]
    causes = [note for note in noted[name] if note.kind == "cause"]
    assert {note.rank for note in causes} <= set(ranks)
    assert causes[0] == noted[name][0], "the launcher reports it"
    for word in (*words, "bad_returns.py"):
        assert word in causes[0].message, causes[0].message


@pytest.mark.parametrize("returned", ACTIONS)
def test_an_action_returns_the_arrays_that_its_op_writes(noted: dict[str, list[Note]], returned: str) -> None:
    message = noted[returned][0].message
    for word in ("epoch 1, op 'forward/1/rounds'", ".JoinRounds.run returned ", ACTIONS[returned], "bad_rounds_"):
        assert word in message, message


HERE = PolicyContext(7, 0, 0, 1, "forward", 0, 2, options={"point": "p", "divisors": 1}, guards=frozenset({"p/root-0"}))
ONE = torch.ones(2, 3)


def owner(**found: Any) -> Any:
    """A stand-in for a policy whose methods return what is given, whatever they are asked."""
    methods = {
        name: lambda self, *given, value=value: value(*given) if callable(value) else value
        for name, value in found.items()
    }
    usual = {"state_width": 1, "encodes": True, "epochs": Epochs(), "in_epochs": lambda self, names: self}
    return type("Mine", (), {**usual, **methods})()


def first_moved(context: PolicyContext, rows: Any, *_: Any) -> Any:
    """Right for whole rows, one dimension too many for single columns."""
    return rows[:, 0] > 0 if rows.shape[1] > 1 else rows > 0


def numbers_of(policy: Any) -> Any:
    return EndEpoch(policy, Plain()).run(HERE, torch.zeros(1, 4), torch.zeros(1, 2))


def agreed(found: Any) -> Any:
    return Agree(owner(agree=found), Plain()).run(HERE, torch.ones(2, 1, dtype=torch.int64))


RETURNS = {
    "agree None": (lambda: agreed(None), r"Mine\.agree returned None, expected 2 booleans"),
    "agree 2-D": (lambda: agreed([[True], [True]]), r"Mine\.agree returned \[\[True\], \[True\]\]"),
    "agree short": (lambda: agreed([True]), r"Mine\.agree returned \[True\], expected 2 booleans"),
    "change": (lambda: FlagChange(owner(change=None), Plain()).run(HERE, ONE, ONE), r"Mine\.change returned None"),
    "end_epoch": (lambda: numbers_of(owner(init=[0.0], end_epoch=None)), r"Mine\.end_epoch returned None"),
    "state": (lambda: numbers_of(owner(init=[0.0], end_epoch=(1, 2, 3))), r"Mine\.end_epoch returned \(1, 2, 3\)"),
    "init": (lambda: numbers_of(owner(init=(), end_epoch=(1,))), r"Mine\.init returned \(\), expected 1 numbers"),
    "moved": (
        lambda: moved_rows(owner(moved=first_moved), HERE, ONE, ONE, None),
        r"Mine\.moved returned bool \[2, 1\]",
    ),
    "encode": (
        lambda: encoded(owner(row_bytes=3, encode=np.zeros((2, 3), np.uint8)), HERE, ONE, None),
        r"Mine\.encode returned uint8 \[2, 3\] \(ndarray, cpu\), expected uint8 \[2, 3\] \(Tensor, cpu\)",
    ),
    "decode": (lambda: decoded(owner(decode=ONE.to("meta")), HERE, ONE, 3, "float32"), r"\(Tensor, meta\), expected"),
}  # fmt: skip


@pytest.mark.parametrize("what", RETURNS)
def test_what_a_method_returns_is_checked(what: str) -> None:
    call, message = RETURNS[what]
    with pytest.raises(PolicyError, match=message + r".*test_bad_returns\.py"):
        call()


def test_a_plain_pair_is_a_change() -> None:
    flag, change = FlagChange(owner(change=(0.5, 1.0)), Plain()).run(HERE, ONE, ONE)
    assert (flag.tolist(), change.tolist()) == ([[0]], [[0.5, 1.0]])


def test_states_that_are_no_number_agree() -> None:
    alone = GroupHandle(SimpleNamespace(), (0,), torch.device("cpu"))
    action = EndEpoch(owner(), Plain())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_gather_object", lambda found, mine, group: found.__setitem__(0, mine))
        check_agreement(alone, action, {"state": float("nan")})
