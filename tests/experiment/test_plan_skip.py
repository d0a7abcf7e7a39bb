"""Programs of skip-broadcast: guards, the memory of the copies, and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgnn.errors import BackendError, ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.hardware.price.machine import Machine
from simgnn.planner.make_plan import plan
from simgnn.policies.freshness.skip_broadcast import SkipBroadcast
from simgnn.program.calendar import EVALUATE
from simgnn.program.kinds import OpKind
from simgnn.program.ops import ITEM_BYTES
from simgnn.program.program import Program
from simgnn.program.validate import validate
from simgnn.sim.simulate import simulate
from tests.experiment.test_plan_blocks import blocks
from tests.sim.planned import shipped

GAP, ALWAYS = "freshness.rule=variation-gap", "freshness.inputs=always"


def program(ranks: int, *overrides: str, rows: list[int] | None = None) -> Program:
    return plan(load_experiment("sancus", list(overrides)), blocks(ranks, rows)).program


def held(made: Program, prefix: str) -> np.ndarray:
    """Bytes of all buffers of a kind on every rank."""
    found = [buffer for name, buffer in made.buffers.items() if name.startswith(prefix)]
    rows = [made.sizes.per_rank(b.rows, 0, 0) * b.width * ITEM_BYTES[b.dtype] for b in found]
    return np.sum([np.zeros(made.ranks, dtype=np.int64), *rows], axis=0)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["gcn", "sage", "gin", "gat"]),
    rows=st.lists(st.integers(0, 7), min_size=1, max_size=4).filter(any),
    rule=st.sampled_from(["epoch-fixed", "epoch-adaptive", "variation-gap"]),
    skip=st.sampled_from(["embeddings", "gradients"]),
    own=st.sampled_from(["fresh", "cached"]),
    inputs=st.sampled_from(["policy", "always"]),
    resend=st.booleans(),
    ahead=st.integers(0, 1),
    codec=st.sampled_from(["none", "linear", "bfloat16"]),
)
def test_every_plan_is_valid(kind, rows, rule, skip, own, inputs, resend, ahead, codec) -> None:
    values = {"model.kind": kind, "freshness.rule": rule, "freshness.skip": skip, "freshness.own_block": own,
              "freshness.inputs": inputs, "communication.resend_inputs": str(resend).lower(),
              "communication.blocks_ahead": ahead, "codec.kind": codec}  # fmt: skip
    if kind == "gat":  # it transforms first, and one range a row is refused
        codec = "none" if codec == "linear" else codec
        values |= {"model.order": "auto", "codec.kind": codec, "communication.resend_inputs": "false"}
    if kind == "gat" or skip == "gradients" or not resend:  # it would decide nothing, and is refused
        values["freshness.inputs"] = "policy"
    made = program(len(rows), *(f"{key}={value}" for key, value in values.items()), rows=rows)
    validate(made)
    guarded = [(template, op) for template, op in made.ops if op.guard is not None]
    assert {op.kind for _, op in guarded} <= {OpKind.BROADCAST, OpKind.ENCODE, OpKind.DECODE}
    assert codec != "none" or all(op.kind is OpKind.BROADCAST for _, op in guarded)
    assert all(template != EVALUATE for template, _ in guarded), "evaluation is exact"
    phase = "backward" if skip == "gradients" else "forward"
    assert {op.phase for _, op in guarded} <= {phase}
    assert not any(op.kind is OpKind.ALLGATHER and rule != "variation-gap" for _, op in made.ops)


def test_the_copies_take_the_memory_of_the_text() -> None:
    """docs/systems/sancus.md: 4 (V - n_i) (F_0 + .. + F_{L-1}), and under the gap rule 4 n_i times that too."""
    rows = np.array([7, 2, 4])
    widths = 30 + 64
    for overrides, own in (([], 0), ([GAP], 1), (["freshness.own_block=cached"], 1)):
        made = program(3, *overrides, rows=rows.tolist())
        assert held(made, "cache/").tolist() == (4 * (rows.sum() - rows) * widths).tolist()
        assert held(made, "sent/").tolist() == (own * 4 * rows * widths).tolist()
    made = program(3, ALWAYS, rows=rows.tolist())
    assert held(made, "cache/").tolist() == (4 * (rows.sum() - rows) * 64).tolist()
    made = program(3, "freshness.skip=gradients", rows=rows.tolist())
    assert held(made, "cache/").tolist() == (4 * (rows.sum() - rows) * (64 + 4)).tolist()


def test_the_gap_rule_tells_one_byte_a_rank_and_layer() -> None:
    made = program(3, GAP)
    flags = [op for op in made.templates["steady"].ops if op.kind is OpKind.ALLGATHER]
    assert [op.layer for op in flags] == [1, 2]
    assert all(op.transfer is not None and op.transfer.control and op.transfer.row_bytes == 1 for op in flags)


def test_schedules_are_simulated_without_a_record_and_values_are_not() -> None:
    machine: Machine = shipped("a100-nvlink-4", [0, 0, 0])
    made = program(3)
    policy = SkipBroadcast()
    simulation = simulate(made, machine, epochs=6, activity=policy.scheduled(made, 6))
    sends = policy.sends(6, 3)
    chosen = np.array([op.kind is OpKind.BROADCAST and op.phase == "forward" for _, op in made.ops])
    mask = chosen[simulation.columns["op_id"]] & (simulation.columns["rank"] == 0)
    assert np.bincount(simulation.columns["epoch"][mask]).tolist() == (2 * sends.sum(axis=1)).tolist()
    with pytest.raises(BackendError, match=r"'agreed/1/forward/root-0' .*depends on values that only training"):
        simulate(program(3, GAP), machine, epochs=2)


def test_what_has_no_meaning_is_refused() -> None:
    for overrides, reason in (
        (["communication.kind=halo"], r"freshness\.kind: got 'skip-broadcast' .* does not serve listed rows"),
        (["freshness.kind=adaptive-vertex"], r"freshness\.kind: got 'adaptive-vertex' .* does not serve whole blocks"),
        (["freshness.bound_change=0.5"], r"freshness\.rule: got 'epoch-adaptive' with bound_change"),
        (
            [ALWAYS, "communication.resend_inputs=false"],
            r"freshness\.inputs: got 'always' with .*which sends input features once",
        ),
        ([ALWAYS, "freshness.skip=gradients"], r"freshness\.inputs: got 'always' with freshness\.skip = 'gradients'"),
        ([ALWAYS, "model.kind=gat", "model.order=auto"], r"freshness\.inputs: got 'always' with model\.kind = 'gat'"),
        ([ALWAYS, "model.order=transform-first"], r"freshness\.inputs: got 'always' with model\.order = 'transform-"),
        ([ALWAYS, "model.order=auto", "model.hidden=8"], r"^freshness\.inputs: got 'always', .*transforms its rows"),
    ):
        with pytest.raises(ConfigError, match=reason):
            program(2, *overrides)
