"""Fractions past the end of a record: the curve that made them is found again, with the threshold that holds then."""

import numpy as np
import pytest

from simgnn.analysis.replay.extrapolation import FEWEST, LAST, Curve, continue_fractions, epsilons, way_on
from simgnn.policies.freshness.adaptive_vertex import AdaptiveVertex

FIXED = AdaptiveVertex(epsilon=0.01, adapt=False)


@pytest.mark.parametrize("kappa", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_what_a_curve_made_goes_on_along_it(kappa: float, noise: float) -> None:
    """Early epochs send everything, which says only that rows moved by more than the threshold."""
    law = Curve(excess=0.15, settled=0.002, decay_epochs=15.0, kappa=kappa)
    whole = law.at(np.arange(200, dtype=np.float64), np.full(200, 0.01))
    assert whole[0] == 1
    drawn = np.random.default_rng(3).standard_normal(100)
    recorded = np.minimum(1, whole[:100] * np.exp(noise * drawn))
    found = continue_fractions(recorded, FIXED, None, 200, seed=0)
    np.testing.assert_array_equal(found[:100], recorded)
    assert found[100:].sum() == pytest.approx(whole[100:].sum(), rel=0.02 if noise == 0 else 0.15)


def test_a_higher_threshold_later_sends_less() -> None:
    """The curve is of movement; what is sent depends on the threshold, which follows the accuracy."""
    policy, law = AdaptiveVertex(epsilon=0.01), Curve(0.1, 0.004, 10.0, 1.0)
    accuracies = [0.1 * 1.05**epoch for epoch in range(40)]
    known = epsilons(policy, accuracies, 40, seed=0)
    state, expected = policy.start(), []
    for accuracy in accuracies:
        expected.append(state.epsilon)
        state = policy.adjusted(state, accuracy)
    assert known.tolist() == expected
    assert known[-1] > known[0]
    recorded = law.at(np.arange(40, dtype=np.float64), known)
    later = epsilons(policy, accuracies, 60, seed=0)
    found = continue_fractions(recorded, policy, accuracies, 60, seed=0)
    truth = law.at(np.arange(60, dtype=np.float64), later)
    np.testing.assert_allclose(found[40:], truth[40:], rtol=0.05)


@pytest.mark.parametrize(("epochs", "policy"), [(5, FIXED), (30, AdaptiveVertex(epsilon=0, adapt=False)), (30, None)])
def test_without_a_curve_the_last_epochs_go_on(epochs: int, policy: AdaptiveVertex | None) -> None:
    recorded = np.linspace(0.9, 0.1, epochs)
    found = continue_fractions(recorded, policy, None, epochs + 7, seed=0)
    np.testing.assert_allclose(found[epochs:], recorded[1:][-LAST:].mean())


@pytest.mark.parametrize("recorded", [4, 12, 40])
def test_the_first_epoch_says_nothing_of_later_ones(recorded: int) -> None:
    """It sends everything, since nothing was sent before, however little rows move."""
    law = Curve(excess=0.004, settled=0.002, decay_epochs=30.0, kappa=1.0)
    whole = law.at(np.arange(100, dtype=np.float64), np.full(100, 0.01))
    assert whole[1] < 0.6
    whole[0] = 1.0
    found = continue_fractions(whole[:recorded], FIXED, None, 100, seed=0)
    expected = whole[recorded:] if recorded > FEWEST else np.full(100 - recorded, whole[1:recorded].mean())
    # a short record hardly tells how far a slow decay goes on
    assert found[recorded:].sum() == pytest.approx(expected.sum(), rel=0.25 if recorded == 12 else 0.02)


def test_rows_that_are_zero_are_never_sent() -> None:
    """Gradients reach a share of the rows only: while all of these are sent, rows still move by more than epsilon."""
    law = Curve(excess=0.3, settled=0.001, decay_epochs=12.0, kappa=1.0)
    whole = 0.18 * law.at(np.arange(150, dtype=np.float64), np.full(150, 0.01))
    assert whole[20] == 0.18
    found = continue_fractions(whole[:70], FIXED, None, 150, seed=0)
    np.testing.assert_allclose(found[70:], whole[70:], rtol=0.02)
    # a record that ends before rows come to rest goes on sending them all, and no more
    assert continue_fractions(whole[:20], FIXED, None, 150, seed=0).max() <= 0.18


def test_where_nothing_was_sent_again_nothing_will_be() -> None:
    once = np.array([1.0, *[0.0] * 20])
    assert not continue_fractions(once, FIXED, None, 50, seed=0)[1:].any()
    assert not continue_fractions(np.zeros(20), FIXED, None, 50, seed=0).any()


def test_what_follows_a_record_is_told_as_it_is() -> None:
    moves, none = np.full(60, 0.01), np.zeros(60)
    assert way_on(FEWEST + 1, moves) == "a curve fitted to it"
    assert way_on(FEWEST, moves) == "the mean of its last 7 (fewer than 8 epochs after the first determine no curve)"
    assert way_on(30, none) == "the mean of its last 10 (a threshold of 0 has no curve)"
    assert way_on(1, moves).startswith("the mean of its last 1 (")
