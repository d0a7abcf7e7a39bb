"""What skip-broadcast decides: pure, the same for everybody, and never an older copy than its bound allows."""

import json
import tomllib
import tracemalloc

import numpy as np
import pytest
import tomli_w
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from simgnn.emit.guarded_blocks import NEVER
from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.experiment.schema import Experiment
from simgnn.policies.freshness.skip_broadcast import SkipBroadcast

EPOCHS = 24
VALUES = ["freshness.rule=variation-gap"]


def policy(**fields: object) -> SkipBroadcast:
    return SkipBroadcast(**fields)  # type: ignore[arg-type]


def ages(sends: np.ndarray) -> np.ndarray:
    """Age of the copy in use of each root in each epoch, [epochs, P]."""
    last = np.full(sends.shape[1], NEVER)
    found = np.empty(sends.shape, dtype=np.int64)
    for epoch, active in enumerate(sends):
        last = np.where(active, epoch, last)
        found[epoch] = epoch - last
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("bound", [0, 1, 2, 3])
def test_roots_send_as_the_table_says(ranks: int, bound: int) -> None:
    epoch, root = np.arange(EPOCHS)[:, None], np.arange(ranks)
    together = np.broadcast_to(epoch % (bound + 1) == 0, (EPOCHS, ranks))
    apart = (epoch + root % (bound + 1)) % (bound + 1) == 0
    fixed = policy(rule="epoch-fixed", bound_epochs=bound).sends(EPOCHS, ranks)
    adaptive = policy(rule="epoch-adaptive", bound_epochs=bound).sends(EPOCHS, ranks)
    plain = policy(rule="epoch-adaptive", bound_epochs=bound, stagger=False).sends(EPOCHS, ranks)
    assert np.array_equal(fixed, together)
    assert np.array_equal(plain, fixed)
    assert adaptive[0].all()
    assert np.array_equal(adaptive[1:], apart[1:])
    for sends in (fixed, adaptive):
        period = 1 + 2 * (bound + 1)
        assert sends[1:period].mean() == pytest.approx(1 / (bound + 1), abs=0)


@settings(max_examples=200, deadline=None)
@given(
    rule=st.sampled_from(["epoch-fixed", "epoch-adaptive"]),
    bound=st.integers(0, 6),
    check=st.sampled_from(["start", "end"]),
    stagger=st.booleans(),
    warmup=st.integers(0, 5),
    ranks=st.integers(1, 9),
)
def test_no_copy_in_use_is_older_than_the_bound(rule, bound, check, stagger, warmup, ranks) -> None:
    apart = {"stagger": stagger} if rule == "epoch-adaptive" else {}
    made = policy(rule=rule, bound_epochs=bound, check=check, warmup_epochs=warmup, **apart)
    sends = made.sends(EPOCHS, ranks)
    assert sends[: max(1, warmup)].all()
    found = ages(sends)
    assert found.max() <= made.oldest_epochs == bound + (check == "end")
    if warmup + bound + 2 < EPOCHS:
        assert found.max() == min(made.oldest_epochs, EPOCHS - 1), "the bound is used up"


def test_ages_at_the_end_give_the_example_of_the_paper() -> None:
    """A period of bound + 2: docs/systems/sancus.md."""
    sends = policy(rule="epoch-fixed", bound_epochs=1, check="end").sends(7, 2)
    assert sends[:, 0].tolist() == [True, False, False, True, False, False, True]


def test_each_root_is_decided_by_itself() -> None:
    made = policy(rule="epoch-adaptive", bound_epochs=2)
    assert made.active(9, [9, 8, 7, 6, NEVER]) == (False, False, False, True, True)


@pytest.mark.parametrize("namespace", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize(
    ("norm", "bound", "limit", "gap"),
    [
        ("relative", 0.5, 2.5, 2.0),
        ("frobenius", 0.5, 0.5, 2.0),
        ("root-mean-square", 0.5, 0.5, 1.0),
        ("largest", 0.5, 0.5, 2.0),
    ],
)
def test_change_by_each_norm(namespace, norm: str, bound: float, limit: float, gap: float) -> None:
    rows, sent = namespace([[3.0, 4.0], [0.0, 0.0]]), namespace([[3.0, 2.0], [0.0, 0.0]])
    found = policy(rule="variation-gap", norm=norm, bound_change=bound).change(rows, sent)
    assert found == pytest.approx((gap, limit))
    assert found.small == (gap <= limit)


@pytest.mark.parametrize("norm", ["relative", "frobenius", "root-mean-square", "largest"])
def test_a_change_is_that_of_all_rows_and_takes_little_memory(norm: str) -> None:
    rows = np.random.default_rng(3).normal(size=(40_000, 16)).astype(np.float32)
    sent = rows + np.linspace(0, 1, len(rows), dtype=np.float32)[:, None]
    made = policy(rule="variation-gap", norm=norm, bound_change=0.5)
    tracemalloc.start()
    found = made.change(rows, sent)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < rows.nbytes
    moved = (rows.astype(np.float64) - sent).ravel()
    gap = {"largest": np.abs(moved).max(), "root-mean-square": np.sqrt(np.mean(moved**2))}
    limit = np.linalg.norm(rows.astype(np.float64)) if norm == "relative" else 1.0
    assert found == pytest.approx((gap.get(norm, np.linalg.norm(moved)), 0.5 * limit))


def test_zero_equal_and_broken_blocks() -> None:
    made = policy(rule="variation-gap", bound_change=0.01)
    zero, one = np.zeros((3, 2)), np.ones((3, 2))
    assert made.change(zero, zero).small
    assert not made.change(zero, one).small, "nothing is small against nothing"
    assert policy(rule="variation-gap", bound_change=0.0).change(one, one).small
    assert not policy(rule="variation-gap", bound_change=0.0).change(one, np.nextafter(one, 2)).small
    for broken in (np.nan, np.inf, -np.inf):
        rows = one.copy()
        rows[1, 1] = broken
        assert not made.change(rows, one).small
        assert not made.change(one, rows).small
    assert policy(rule="variation-gap", norm="largest").change(zero[:0], zero[:0]).small


@pytest.mark.parametrize("norm", ["relative", "frobenius", "root-mean-square", "largest"])
def test_an_infinite_bound_sends_only_what_is_no_number(norm: str) -> None:
    """docs/systems/sancus.md: with it only the first epoch sends, but a block with NaN does."""
    experiment = load_experiment("sancus", [*VALUES, f"freshness.norm={norm}", "freshness.bound_change=inf"])
    again = Experiment.from_table(tomllib.loads(tomli_w.dumps(experiment.to_table())))
    made = again.freshness
    assert isinstance(made, SkipBroadcast)
    assert made == experiment.freshness
    kept = json.loads(json.dumps(made.model_dump(mode="json")))  # as a run directory hands it to the executor
    assert SkipBroadcast.model_validate(kept) == made
    zero, one = np.zeros((3, 2)), np.ones((3, 2))
    for rows, sent in ((one, 1e30 * one), (zero, one), (one, zero), (zero, zero)):
        assert made.change(rows, sent).small
    for broken in (np.nan, np.inf):
        assert not made.change(np.full((3, 2), broken), one).small


def test_a_bound_that_is_no_number_is_refused() -> None:
    for bound in ("nan", "-inf", "-1.0"):
        with pytest.raises(ConfigError, match=rf"freshness\.bound_change: got {bound}, expected a number >= 0"):
            load_experiment("sancus", [*VALUES, f"freshness.bound_change={bound}"])


def test_norms_are_summed_in_float64() -> None:
    """float32 loses the last of 2**25 equal summands; a block of that many rows is not."""
    made = policy(rule="variation-gap", norm="frobenius", bound_change=1.0)
    rows = np.full((2**12, 3), 1e-4, dtype=np.float32)
    assert made.change(rows, np.zeros_like(rows)).gap == pytest.approx(
        float(np.float32(1e-4)) * (3 * 2**12) ** 0.5, rel=1e-12
    )


def test_flags_decide_and_the_first_epoch_sends_all() -> None:
    made = policy(rule="variation-gap", warmup_epochs=2)
    assert made.active(0, [NEVER] * 3, [0, 0, 0]) == (True,) * 3
    assert made.active(1, [0, 0, 0], [0, 0, 0]) == (True,) * 3, "warm-up"
    assert made.active(2, [1, 1, 1], [0, 1, 0]) == (False, True, False)
    assert made.active(2, [1, NEVER, 1], [0, 0, 0]) == (False, True, False)
    assert made.oldest_epochs is None


def test_what_a_rule_does_not_read_is_refused() -> None:
    with pytest.raises(ValidationError, match="rule: got 'epoch-fixed' with bound_change, expected only options"):
        policy(rule="epoch-fixed", bound_change=0.5)
    with pytest.raises(ValidationError, match="rule: got 'variation-gap' with bound_epochs, check"):
        policy(rule="variation-gap", bound_epochs=3, check="end")
    for rule in ("epoch-fixed", "variation-gap"):
        with pytest.raises(ValidationError, match=f"rule: got '{rule}' with stagger"):
            policy(rule=rule, stagger=False)
    with pytest.raises(ConfigError, match=r"freshness\.rule: got .epoch-adaptive. with bound_change, expected only"):
        load_experiment("sancus", ["freshness.bound_change=0.5"])
    # an experiment that is read back states every field, so a default is not taken for a choice
    assert policy(**policy(rule="epoch-fixed").model_dump()).rule == "epoch-fixed"
