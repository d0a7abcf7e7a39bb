"""What policies do at run time, on NumPy arrays: the same as on tensors with the executor's kernels."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch

from executor.policies.accelerated import KERNELS, accelerated, accelerated_class, warm_up_policies
from simgnn.emit.builder import ProgramBuilder
from simgnn.emit.caches.cached_rows import CachedRows
from simgnn.emit.caches.cached_stage import CachedStage, emit_state_step
from simgnn.emit.caches.masks import WireMask
from simgnn.emit.caches.replica_cache import REPLICA_ACTIONS, AddParts, FoldOwn
from simgnn.emit.caches.row_cache import (
    DecodeMoved,
    EncodeMoved,
    EndEpoch,
    ListRows,
    MaskRows,
    SelectMoved,
    State,
    moved_rows,
)
from simgnn.emit.guarded_blocks import Agree, FlagChange
from simgnn.emit.sync import Stage, Sync
from simgnn.policies.codec.linear import Linear
from simgnn.policies.codec.none import Plain
from simgnn.policies.codec.stochastic import Stochastic
from simgnn.policies.freshness.adaptive_vertex import AdaptiveVertex
from simgnn.policies.freshness.skip_broadcast import SkipBroadcast
from simgnn.policy import Array, Codec, Metrics, PolicyContext, PolicyError
from simgnn.program.sizes import Column, Route
from tests.policies.acting import HERE, does

ROWS, WIDTH = 40, 9
THERE = replace(HERE, send=(0, ROWS), receive=(0, ROWS))


class NormMoved(CachedRows):
    """A user's freshness: a row travels when its norm changed by more than a share."""

    kind: Literal["norm-moved"] = "norm-moved"
    share: float = 0.1

    def moved(self, context: PolicyContext, rows: Array, cached: Array, state: State) -> Array:
        """Compares norms."""
        now, before = (rows * rows).sum(1) ** 0.5, (cached * cached).sum(1) ** 0.5
        return abs(now - before) > self.share * now


class Shapeless(NormMoved):
    """One that returns something else."""

    def moved(self, context: PolicyContext, rows: Array, cached: Array, state: State) -> Array:
        """A number a row."""
        return rows[:, 0]


def cache_rounds(policy: CachedRows, codec: Codec, like: Any, fast: bool) -> list[np.ndarray]:
    """What five rounds leave: what travels, and both ends' caches."""
    select, encode, decode, listing, masking = (
        does(action, policy, codec, fast) for action in (SelectMoved, EncodeMoved, DecodeMoved, ListRows, MaskRows)
    )
    draw = np.random.default_rng(3)
    rows = draw.normal(size=(ROWS, WIDTH)).astype(np.float32)
    sent, kept = like(np.zeros_like(rows)), like(np.zeros_like(rows))
    state, found = like(np.zeros((1, 3))), []
    here = replace(THERE, memo={})
    for epoch in range(5):
        here = replace(here, epoch=epoch)
        rows = rows + 0.05 * draw.normal(size=rows.shape).astype(np.float32)
        mask, chosen = select(here, like(rows), sent, *([state] if policy.state_width else []))
        packed, sent = encode(here, like(rows), chosen, sent)
        counts, ids = listing(here, mask)
        (same,) = masking(here, ids, counts)
        out, kept = decode(here, packed, same, kept)
        found += [np.asarray(part).copy() for part in (mask, chosen, packed, out, sent, kept)]
    return found


@pytest.mark.parametrize(
    "policy", [AdaptiveVertex(epsilon=0.05, adapt=False), NormMoved(share=0.01)], ids=["ours", "own"]
)
@pytest.mark.parametrize(
    "codec", [Plain(), Linear(bits=4), Linear(bits=8, feedback=False), Stochastic(bits=4)], ids=str
)
def test_a_cache_is_the_same_on_arrays_tensors_and_with_kernels(policy: CachedRows, codec: Codec) -> None:
    arrays = cache_rounds(policy, codec, np.array, fast=False)
    assert 0 < min(len(chosen) for chosen in arrays[1::6]) < ROWS
    for fast in (False, True):
        tensors = cache_rounds(policy, codec, lambda rows: torch.from_numpy(np.array(rows)), fast)
        assert all(np.array_equal(one, other) for one, other in zip(arrays, tensors, strict=True))
    if codec.keeps_exact_rows:
        return
    assert all(np.array_equal(sent, kept) for sent, kept in zip(arrays[4::6], arrays[5::6], strict=True))


def test_a_stateless_policy_needs_one_method_and_reads_no_state() -> None:
    builder = ProgramBuilder("one", (0, 0), "float32")
    route = Route(np.array([0, 1], np.int32), np.array([1, 0], np.int32), np.array([3, 2]))
    builder.route("halo", route)
    builder.column("leaving", np.array([3, 2]))
    builder.column("arriving", np.array([2, 3]))
    stage = Stage("publish", "halo", "rows", "halo/1", Column("leaving"), Column("arriving"), "rows", "store")
    sync = Sync(("steady",), 1, "forward", 4, (stage,))
    CachedStage(builder, sync, stage, Plain(), NormMoved()).emit()
    emit_state_step(builder, NormMoved(), ("steady",))
    ops = {op.name: op for op in builder.templates["steady"]}
    assert [access.buffer for access in ops["forward/1/select"].reads] == ["rows", "sent/1/forward"]
    assert {op.action for op in ops.values() if op.module is not None} == {"SelectMoved", "EncodeMoved", "DecodeMoved"}
    with pytest.raises(PolicyError, match=r"Shapeless\.moved returned float64 \[2\] .*expected bool \[2\]"):
        moved_rows(Shapeless(), HERE, np.ones((2, 3)), np.ones((2, 3)), None)


def test_sums_over_replicas_are_the_same_on_arrays_and_tensors() -> None:
    draw = np.random.default_rng(1)
    codec, policy = Linear(), AdaptiveVertex(epsilon=0.1, adapt=False, fold_on_active=True)
    sums, own, rows = (draw.normal(size=(count, WIDTH)).astype(np.float32) for count in (3, 3, 5))
    parts = Linear().pack(draw.normal(size=(3, WIDTH)).astype(np.float32))
    found = []
    for like, fast in ((np.array, False), (lambda value: torch.from_numpy(np.array(value)), True)):
        leaving = like(np.array([2, 3, 4, 3]))
        here = PolicyContext(
            0, 0, 0, 1, "forward", 0, 3, (0, 3, 1), (0, 3, 1), leaving=leaving, arriving=leaving, memo={}
        )
        mask = WireMask((0, 3, 1), leaving).pack(like(np.array([True, False, True, True])))
        added, woken = does(AddParts, policy, codec, fast)(here, like(parts), mask, like(sums))
        folded = does(FoldOwn, policy, codec, fast)(here, like(rows), like(own), added, like(np.zeros((1, 3))), woken)
        found.append([np.asarray(one) for one in (woken, *folded)])
    assert found[0][0][:, 0].tolist() == [True, True, True]
    assert all(np.array_equal(one, other) for one, other in zip(*found, strict=True))


def test_the_state_starts_ends_an_epoch_and_is_recorded() -> None:
    policy, metrics = AdaptiveVertex(), np.array([[0.5, 30.0, 60.0, 0.0]])
    action, here = EndEpoch(policy, Plain()), replace(HERE, options={"point": "accuracy/update"})
    (state,) = action.run(here, metrics, np.zeros((1, 3)))
    assert state.tolist() == [[0.01, 0.5, 1.0]]
    metrics[0, 1] = 40.0
    (later,) = action.run(here, metrics, state)
    assert later.tolist() == [[*policy.end_epoch(here, Metrics(0, 40.0, 60.0, 0), (0.01, 0.5)), 1.0]]
    assert later[0, 0] > 0.01
    assert action.decided(here, (metrics, state), (later,)) == {
        "accuracy/update/correct": 40, "accuracy/update/count": 60,
    }  # fmt: skip


def test_guards_on_arrays() -> None:
    policy = SkipBroadcast(rule="variation-gap", bound_change=0.1)
    rows = np.ones((4, 3), np.float32)
    flag = FlagChange(policy, Plain())
    assert [one.tolist() for one in flag.run(HERE, rows, None)] == [[[1]], [[0.0, 0.0]]]
    assert flag.run(HERE, rows, rows * 0.99)[0].tolist() == [[0]]
    here = replace(HERE, epoch=3, options={"point": "agreed/1/forward"}, guards=frozenset({"agreed/1/forward/root-1"}))
    read = np.array([[3], [3]]), np.array([[0], [1]], np.uint8), np.array([[0.0, 0.1]])
    agree = Agree(policy, Plain())
    written = agree.run(here, *read)
    assert [one.tolist() for one in written] == [[[3], [3]], [[0], [1]]]
    assert agree.decided(here, read, written) == {"agreed/1/forward/root-1": 1}


class Short(SkipBroadcast):
    """Forgets a rank."""

    def agree(self, context: PolicyContext, versions: Sequence[int], wanted: Sequence[int] | None) -> tuple[bool, ...]:
        """One guard too few."""
        return (True,)


def test_too_few_guards_are_rejected() -> None:
    with pytest.raises(PolicyError, match=r"Short\.agree returned .*expected 2 booleans"):
        Agree(Short(), Plain()).run(HERE, np.zeros((2, 1), np.int64))


class OwnTest(AdaptiveVertex):
    """Overrides what has a kernel."""

    changed: ClassVar[bool] = True

    def moved(self, context: PolicyContext, rows: Array, cached: Array, state: State) -> Array:
        """Nothing moves."""
        return rows[:, 0] != rows[:, 0]


def test_kernels_stand_for_exactly_the_functions_that_they_are_registered_for() -> None:
    policy, own = AdaptiveVertex(epsilon=0.2), OwnTest()
    fast = accelerated(policy)
    assert fast.model_dump() == policy.model_dump()
    assert type(fast).moved is KERNELS[AdaptiveVertex.moved].run
    assert type(fast).end_epoch is AdaptiveVertex.end_epoch
    assert accelerated(own) is own
    assert accelerated_class(FoldOwn) is FoldOwn
    assert accelerated_class(AddParts).label == "AddParts"
    assert {action.label for action in REPLICA_ACTIONS} <= {action.label for action in AdaptiveVertex.actions}
    warm_up_policies([policy, Linear(), Stochastic(), own], torch.float32, torch.device("cpu"))


def test_policies_act_without_torch() -> None:
    """A simulation imports the same files."""
    code = (
        "import sys, numpy as np; from simgnn.policies.freshness.adaptive_vertex import AdaptiveVertex as A; "
        "from simgnn.policies.codec.linear import Linear; from simgnn.policy import PolicyContext; "
        "here = PolicyContext(0, 0, 0, 1, 'forward', 0, 1); rows = np.ones((2, 3), np.float32); "
        "A().moved(here, rows, rows, (0.1, 0.0)); Linear().decode(here, Linear().pack(rows), 3, 'float32'); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
