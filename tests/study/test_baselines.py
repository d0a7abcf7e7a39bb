"""Baselines against hand-made cases: a regression that is left out of its own group, flops and bytes by hand."""

import numpy as np
import pytest
from programs.notation import op, program
from sim.worlds import machine

from simgnn.program.calendar import Calendar
from simgnn.program.ops import Guard, Stream, Transfer
from simgnn.study.validate.baselines import Demand, demand, held_out_regression


def test_the_regression_finds_costs_of_groups_that_it_did_not_see() -> None:
    rng = np.random.default_rng(0)
    rows = np.c_[np.ones(12), rng.uniform(1e6, 1e9, (12, 2))]
    measured = rows @ np.array([0.01, 2e-9, 5e-10])
    groups = ["a"] * 4 + ["b"] * 4 + ["c"] * 4
    assert held_out_regression(rows, measured, groups) == pytest.approx(measured, rel=1e-6)


def test_a_group_is_not_in_its_own_fit() -> None:
    rows = np.c_[np.ones(6), np.arange(1.0, 7.0)]
    measured = rows @ np.array([1.0, 2.0])
    measured[4:] *= 10  # a group that is ten times as slow as the others tell
    predicted = held_out_regression(rows, measured, ["a", "a", "b", "b", "odd", "odd"])
    assert predicted[4:] == pytest.approx(measured[4:] / 10)
    assert np.isnan(held_out_regression(rows, measured, ["all"] * 6)).all()


def test_costs_are_never_negative() -> None:
    rows = np.c_[np.ones(4), [1.0, 2.0, 3.0, 4.0]]
    assert (held_out_regression(rows, np.array([4.0, 3.0, 2.0, 1.0]), ["a", "a", "b", "b"]) > 0).all()


def test_the_slowest_rank_and_the_busiest_link_count() -> None:
    two = np.array([2.0, 1.0])
    found = Demand(two, two * 10, two, two * 100, np.array([6.0, 6.0]), 0.0)
    assert found.features([1.0, 0.25], None, [0, 0]) == [1.0, 4.0, 40.0, 200.0, 0.0]
    assert found.features([1.0, 1.0], 2.0, [0, 1]) == [1.0, 2.0, 20.0, 200.0, 3.0]
    assert found.features([1.0, 1.0], 2.0, [0, 0])[4] == 6.0


@pytest.mark.parametrize(
    ("kind", "inside", "across", "seconds"),
    [
        # 4 ranks on 2 hosts, 1 GB/s between them: rounds of 1 MB one after another, each over the slowest hop
        ("broadcast", [1e6, 0.0, 1e6, 0.0], [0.0, 1e6, 0.0, 0.0], 2 * 1e-3),
        ("allgather", [3e6, 0.0, 3e6, 0.0], [0.0, 3e6, 0.0, 3e6], 3 * 1e-3),
    ],
)
def test_whole_blocks_that_go_round_count_in_both_baselines(
    kind: str, inside: list[float], across: list[float], seconds: float
) -> None:
    hosts = (0, 0, 1, 1)
    moves = op("block", kind, "comm", transfer=Transfer(1, 10**6), root=0 if kind == "broadcast" else None)
    planned = program("p", {"epoch": [moves]}, Calendar("epoch"), [], [Stream("comm", group="world")], hosts)
    found = demand(planned, machine(hosts), {})
    assert found.inside_bytes == pytest.approx(np.array(inside))
    assert found.across_bytes == pytest.approx(np.array(across))
    assert found.alpha_beta_s == pytest.approx(seconds, rel=1e-3)


@pytest.mark.parametrize("coded", [False, True])
def test_a_block_that_is_skipped_in_some_epochs_counts_by_the_share_of_those_in_which_it_is_sent(coded: bool) -> None:
    hosts = (0, 0, 1, 1)
    guard = Guard("agreed/1/forward/root-0", agreed=True)
    block = op("block", "broadcast", "comm", transfer=Transfer(1, 10**6), root=0, guard=guard)
    ops = [op("code", "encode", "comm", guard=guard), block] if coded else [block]
    planned = program("p", {"epoch": ops}, Calendar("epoch"), [], [Stream("comm", group="world")], hosts)

    def sent(*epochs: int) -> Demand:
        return demand(planned, machine(hosts), {guard.decision: np.tile(np.array(epochs)[None, :, None], (4, 1, 1))})

    always, rarely, never = sent(1, 1, 1, 1, 1), sent(1, 0, 0, 1, 0), sent(1, 0)
    assert always.alpha_beta_s == pytest.approx(2 * 1e-3, rel=1e-3)
    assert never.alpha_beta_s == never.memory_bytes.sum() == never.roofline_s.sum() == never.across_bytes.sum() == 0
    assert sent(1).alpha_beta_s == always.alpha_beta_s, "no epoch but the first"
    for field in ("flops", "memory_bytes", "roofline_s", "inside_bytes", "across_bytes", "alpha_beta_s"):
        assert getattr(rarely, field) == pytest.approx(getattr(always, field) / 4), field
    assert bool(always.roofline_s.sum()) == coded
