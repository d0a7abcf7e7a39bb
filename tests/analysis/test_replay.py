"""Recorded decisions on another partition: fractions of what may travel there, of which none gets lost in rounding."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from simgnn.analysis.replay.activity import Recording, Replay, replay
from simgnn.analysis.replay.recorded_run import different_experiment
from simgnn.analysis.replay.row_fractions import shared_out, whole
from simgnn.emit.freshness import Thresholds
from simgnn.experiment.load import load_experiment
from simgnn.planner.make_plan import plan
from simgnn.policies.freshness.adaptive_vertex import AdaptiveVertex
from simgnn.program.program import Program
from simgnn.program.sizes import Column, Decision, IntArray
from simgnn.record.activity import accuracy_counts, decisions_in
from simgnn.registry import shipped
from tests.experiment.test_master_mirror import statistics as vertex_cut
from tests.experiment.test_planner import statistics as edge_cut

KINDS = {
    "communication": "block-broadcast", "batching": "seeded", "freshness": "adaptive-vertex", "codec": "linear",
    "schedule": "prefetch",
}  # fmt: skip
POLICIES = {slot: shipped(slot)[kind] for slot, kind in KINDS.items()}

EPOCHS = 12
CACHE = ["freshness.kind=adaptive-vertex", "freshness.epsilon=0.03"]
MIRRORS = ["partition.kind=ebv", "communication.kind=master-mirror", "model.hoist=never"]


@given(
    arrays(np.int64, st.tuples(st.integers(1, 5), st.integers(1, 5)), elements=st.integers(0, 40)),
    arrays(np.float64, st.integers(1, 4), elements=st.floats(0, 1)),
)
def test_rows_are_shared_out_to_the_last_one(limits: IntArray, fractions: np.ndarray) -> None:
    rows = shared_out(limits, fractions)
    exact = limits[..., None] * fractions
    assert np.all(rows >= 0)
    assert np.all(rows <= limits[..., None])
    assert np.all(np.abs(rows - exact) < 1 + 1e-9)
    assert np.all(np.abs(rows.sum(axis=(0, 1)) - exact.sum(axis=(0, 1))) <= 0.5 + 1e-9)


def test_a_tenth_of_few_rows_each_is_a_tenth_of_all() -> None:
    limits = np.full((32, 32), 3)
    np.fill_diagonal(limits, 0)
    rows = shared_out(limits, np.array([0.1, 1.0, 0.0]))
    assert rows.sum(axis=(0, 1)).tolist() == [round(0.1 * limits.sum()), limits.sum(), 0]
    assert np.array_equal(rows[..., 1], limits)


def test_no_pair_gets_more_rows_than_it_has() -> None:
    """A sum of fractions that misses a half by the last bit is followed by a pair of which all rows are sent."""
    almost = np.nextafter(np.nextafter(0.5, 0), 0)
    assert np.floor(almost + 0.5) == 0
    assert np.floor(almost + 3.0 + 0.5) == 4, "the next sum is rounded up"
    assert whole(np.array([[almost], [3.0]]))[1, 0] == 3


def program(cut: str, ranks: int) -> Program:
    if cut == "halo":
        return plan(load_experiment("vanilla", [*CACHE, "communication.rows=transformed"]), edge_cut(ranks)).program
    stats = vertex_cut(ranks)
    stats.tables["shared_masters"] = np.minimum(stats.rows, 20)
    return plan(load_experiment("vanilla", [*CACHE, *MIRRORS]), stats).program


def limits_of(made: Program) -> dict[str, IntArray]:
    """Most rows of each decision, [P, P] or [P]."""
    found = {}
    for buffer in made.buffers.values():
        if isinstance(buffer.rows, Decision) and isinstance(buffer.rows.bound, Column):
            found[buffer.rows.name] = made.sizes.columns[buffer.rows.bound.name]
    for _, op in made.ops:
        if op.transfer is not None and op.transfer.decision is not None:
            found[op.transfer.decision.name] = made.sizes.routes[op.route or ""].matrix(made.ranks)
    return found


def record(made: Program) -> Recording:
    """What a made-up run decided: all rows at first, then fewer and fewer, other ones at each point."""
    draw = np.random.default_rng(0)
    decisions = {}
    for name, limits in limits_of(made).items():
        shares = np.append(1.0, np.sort(draw.random(EPOCHS - 1))[::-1])
        decisions[name] = draw.binomial(limits[..., None], shares)[..., None].astype(np.int64)
    for name in decisions:
        if name.endswith("/arrived"):
            decisions[name] = decisions[name.replace("/arrived", "/rows")].sum(axis=0)
    return Recording(Path("run"), made, frozenset({"there", "its cut"}), decisions)


def carried(
    recording: Recording, here: Program, digest: str, epochs: int, thresholds: Thresholds | None = None
) -> Replay:  # fmt: skip
    return replay(recording, here, decisions_in(here), frozenset({digest, "mine"}), epochs, 0, thresholds)


@pytest.mark.parametrize("cut", ["halo", "mirrors"])
@pytest.mark.parametrize("ranks", [2, 5, 9])
def test_totals_are_the_recorded_fractions_of_what_may_travel(cut: str, ranks: int) -> None:
    recording = record(program(cut, 3))
    here = program(cut, ranks)
    found = carried(recording, here, "elsewhere", EPOCHS)
    assert found.transferred
    assert "recorded on another partition (3 ranks)" in found.notes[0]
    assert set(found.activity) == decisions_in(here)
    there, limits = limits_of(recording.program), limits_of(here)
    for name, values in found.activity.items():
        if name.endswith("/arrived"):
            assert np.array_equal(values, found.activity[name.replace("/arrived", "/rows")].sum(axis=0))
            continue
        told = recording.decisions[name]
        share = told.reshape(-1, EPOCHS).sum(axis=0) / there[name].sum()
        assert np.all(np.abs(values.reshape(-1, EPOCHS).sum(axis=0) - share * limits[name].sum()) <= 0.5 + 1e-9)
        assert np.all(values[..., 0] <= limits[name][..., None])


@pytest.mark.parametrize("cut", ["halo", "mirrors"])
def test_the_same_partition_is_replayed_number_by_number(cut: str) -> None:
    recording = record(program(cut, 3))
    exact = carried(recording, recording.program, "there", EPOCHS)
    assert not exact.transferred
    assert not exact.notes
    longer = carried(recording, recording.program, "there", 2 * EPOCHS, AdaptiveVertex(epsilon=0.03))
    assert not longer.transferred
    assert "the 12 after them follow a curve" in longer.notes[0]
    still = carried(recording, recording.program, "there", 2 * EPOCHS, AdaptiveVertex(epsilon=0, adapt=False))
    assert "the 12 after them follow the mean of its last 10 (a threshold of 0" in still.notes[0]
    for name, values in exact.activity.items():
        assert np.array_equal(values, recording.decisions[name])
        assert np.array_equal(longer.activity[name][..., :EPOCHS, :], values)
        assert longer.activity[name].shape[-2] == 2 * EPOCHS


def test_accuracies_are_read_where_the_program_says_that_they_are_counted() -> None:
    recording = record(program("halo", 3))
    assert recording.accuracies is None
    ((right, all_),) = accuracy_counts(recording.program)
    counts = {right: np.arange(EPOCHS), all_: np.full(EPOCHS, 20)}
    told = {name: np.tile(values[:, None], (3, 1, 1)) for name, values in counts.items()}
    found = replace(recording, decisions={**recording.decisions, **told}).accuracies
    assert found == (np.arange(EPOCHS) / 20).tolist()


def test_of_a_policy_of_another_kind_only_the_kind_is_told() -> None:
    told = [("codec.bits", None, 8), ("codec.kind", "none", "linear"), ("freshness.epsilon", 0.1, 0.2)]
    faults, notes = different_experiment(
        [*told, ("train.clip_norm", 1.0, 0.0), ("train.epochs", 3, 4)], Path("run"), POLICIES
    )
    assert [fault.split(":")[1].strip() for fault in faults] == ["codec.kind", "freshness.epsilon"]
    assert notes == ["activity was recorded with train.clip_norm = 1.0; here it is 0.0"]


def test_where_things_lie_and_when_they_are_there_makes_no_other_experiment() -> None:
    told = [("batching.storage", None, "b"), ("communication.blocks_ahead", 0, 1), ("schedule.window", 4, 8)]
    assert different_experiment(told, Path("run"), POLICIES) == ([], [])
    assert different_experiment([*told, ("batching.batch_size", 30, 20)], Path("run"), POLICIES)[0]
