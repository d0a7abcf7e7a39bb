"""The adaptive cache's test of rows and the controller of its threshold, as pure functions."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgnn.emit.caches.replica_cache import Settle
from simgnn.emit.caches.row_cache import moved_rows
from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.policies.freshness.adaptive_vertex import AdaptiveVertex, Threshold
from tests.policies.acting import HERE, does

ACCURACIES = st.lists(st.floats(0, 1), min_size=1, max_size=60)


def thresholds(policy: AdaptiveVertex, accuracies: list[float]) -> list[float]:
    state, found = policy.start(), []
    for accuracy in accuracies:
        state = policy.adjusted(state, accuracy)
        found.append(state.epsilon)
    return found


@given(ACCURACIES, st.sampled_from(["prose", "printed"]))
def test_the_threshold_stays_between_its_limits(accuracies: list[float], direction: str) -> None:
    policy = AdaptiveVertex.model_validate({"direction": direction})
    found = thresholds(policy, accuracies)
    assert all(policy.smallest_epsilon <= epsilon <= policy.largest_epsilon for epsilon in found)
    # nothing but the accuracies decides: the same ones give the same float64
    assert found == thresholds(policy, accuracies)


@given(ACCURACIES)
def test_one_epoch_changes_it_by_little(accuracies: list[float]) -> None:
    policy = AdaptiveVertex()
    path = [policy.epsilon, *thresholds(policy, accuracies)]
    for before, after in pairwise(path):
        assert abs(after - before) <= policy.largest_change + 1e-15
        assert policy.fall_factor * before - 1e-15 <= after <= policy.rise_factor * before + 1e-15


def test_it_rises_with_the_accuracy_and_falls_with_it() -> None:
    policy = AdaptiveVertex()
    start = policy.adjusted(policy.start(), 0.5)
    assert start == Threshold(0.01, 0.5)  # the first accuracy is its own mean: no change
    up = policy.adjusted(start, 0.53)
    assert up.epsilon == pytest.approx(0.0105)
    assert up.mean_accuracy == pytest.approx(0.8 * 0.5 + 0.2 * 0.53)
    assert policy.adjusted(start, 0.52 - 1e-9).epsilon == 0.01  # within the margin
    assert policy.adjusted(start, 0.498).epsilon == pytest.approx(0.009)
    assert policy.adjusted(start, 0.4995).epsilon == 0.01
    # steps are absolute where factors would be larger
    assert policy.adjusted(Threshold(0.25, 0.5), 0.6).epsilon == pytest.approx(0.26)
    assert policy.adjusted(Threshold(0.295, 0.5), 0.6).epsilon == 0.3
    assert policy.adjusted(Threshold(0.0010001, 0.5), 0.1).epsilon == 0.001


def test_the_printed_direction_is_the_opposite() -> None:
    policy = AdaptiveVertex(direction="printed")
    assert policy.adjusted(Threshold(0.01, 0.5), 0.6).epsilon < 0.01
    assert policy.adjusted(Threshold(0.01, 0.5), 0.4).epsilon > 0.01


def test_a_fixed_threshold_and_an_empty_training_set_change_nothing() -> None:
    fixed = AdaptiveVertex(epsilon=0.0, adapt=False)
    assert fixed.adjusted(fixed.start(), 0.9) == fixed.start()
    policy = AdaptiveVertex()
    assert policy.adjusted(Threshold(0.01, 0.4), None) == Threshold(0.01, 0.4)


def test_what_moved_in_closed_form() -> None:
    policy = AdaptiveVertex()
    rows = np.array([[1.0, 2.0], [1.0, 2.0], [0.0, 0.0], [0.0, 1e-30], [np.nan, 1.0], [np.inf, 1.0], [2.0, 0.0]])
    cached = np.array([[1.0, 1.81], [1.0, 1.79], [0.0, 0.0], [0.0, 0.0], [0.0, 1.0], [np.inf, 1.0], [1.0, 0.0]])
    with np.errstate(invalid="ignore"):  # infinity minus infinity
        moved = policy.moved(HERE, rows, cached, (0.1, 0.0))
    assert moved.tolist() == [False, True, False, True, True, True, True]
    # against the cached row, a doubled value has moved by all of it
    assert not AdaptiveVertex(reference="current").moved(HERE, rows[6:], cached[6:], (0.6, 0.0))[0]
    assert AdaptiveVertex(reference="cached").moved(HERE, rows[6:], cached[6:], (0.6, 0.0))[0]


def test_a_zero_threshold_sends_whatever_differs() -> None:
    rows = np.arange(12.0).reshape(4, 3)
    cached = rows.copy()
    cached[2, 1] = np.nextafter(cached[2, 1], 9)
    assert AdaptiveVertex().moved(HERE, rows, cached, (0.0, 0.0)).tolist() == [False, False, True, False]


def test_a_start_outside_the_limits_is_refused_with_the_key() -> None:
    with pytest.raises(ConfigError, match=r"freshness\.epsilon: got 0\.5, expected.*adapt = false"):
        load_experiment("vanilla", ["freshness.kind=adaptive-vertex", "freshness.epsilon=0.5"])
    load_experiment("vanilla", ["freshness.kind=adaptive-vertex", "freshness.epsilon=0.5", "freshness.adapt=false"])


def test_sums_of_weights_are_tested_by_themselves() -> None:
    """Two heads: what divides the second moved by half, which is nothing beside the first."""
    policy = AdaptiveVertex(epsilon=0.1, adapt=False)
    old = np.array([[100.0, 1.0, 300.0, 1.0], [100.0, 1.0, 300.0, 1.0], [100.0, 1.0, 300.0, 0.0]])
    new = np.array([[101.0, 1.0, 301.0, 1.5], [101.0, 1.0, 301.0, 1.05], [101.0, 1.0, 301.0, 0.0]])
    assert policy.moved(HERE, new, old, (0.1, 0.0)).tolist() == [False, False, False]
    here = replace(HERE, options={"divisors": 2})
    state = np.array([[0.0, 0.0, 0.0]])
    assert moved_rows(policy, here, new, old, state).tolist() == [True, False, False]
    new[1, 2] = np.nan
    assert moved_rows(policy, here, new, old, state).tolist() == [True, True, False]


def test_a_reference_is_kept_until_it_is_far_off() -> None:
    kept = np.array([[0.0, 1.0], [0.0, 1.0], [2.0, -2.0], [0.0, 0.0]])
    today = np.array([[5.0, -4.0], [5.1, 1.0], [-4.0, -2.0], [np.nan, 0.0]])
    settled, stored, renewed = does(Settle, AdaptiveVertex(), fast=False)(HERE, today, kept)
    assert np.array_equal(settled, stored, equal_nan=True)
    # each head by itself; a row whose reference is no number is renewed, and seen
    np.testing.assert_array_equal(settled, [[0.0, 1.0], [5.1, 1.0], [-4.0, -2.0], [np.nan, 0.0]])
    assert renewed.tolist() == [[False], [True], [True], [True]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["codec.kind=linear", "codec.bits=3"], r"codec\.bits: got 3, expected one of 1, 2, 4, 8, 16:"),
        (["codec.kind=stochastic", "codec.bits=16"], r"codec\.bits: got 16"),
        (["codec.kind=linear", "codec.feedback=false"], r"codec\.feedback: got false with freshness\.kind = 'always'"),
        (
            ["freshness.kind=adaptive-vertex", "freshness.fold_on_active=true"],
            r"freshness\.fold_on_active: got true with communication\.kind = 'halo'",
        ),
        (
            [
                "freshness.kind=adaptive-vertex",
                "freshness.adapt=false",
                "freshness.rise_factor=1.2",
                "freshness.direction=printed",
            ],
            r"freshness\.adapt: got false with rise_factor, direction, expected true: .*remove rise_factor, direction$",
        ),
        (["train.clip_scale=sqrt"], r"train\.clip_scale: got 'sqrt' with train\.clip_norm = 0, expected none"),
        (["freshness.kind=adaptive-vertex", "freshness.index=lists"], r"freshness\.index: got 'lists'"),
        (["freshness.kind=adaptive-vertex", "freshness.eps0=0.1"], r"freshness\.eps0: unknown key"),
        (["freshness.kind=adaptive-vertex", "communication.resend_inputs=true"], r"communication\.resend_inputs"),
        (["codec.kind=linear", "communication.resend_inputs=true"], r"communication\.resend_inputs"),
        (
            [
                "codec.kind=linear",
                "partition.kind=ebv",
                "communication.kind=master-mirror",
                "communication.exchange=host-aggregated",
            ],
            r"communication\.exchange: got 'host-aggregated' with codec\.kind = 'linear'",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_experiment("vanilla", settings)
