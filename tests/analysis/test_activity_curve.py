"""Fractions past the end of a record: the curve that made them is found again, with the threshold that holds then."""

import numpy as np
import pytest

from simgnn.analysis.activity_curve import LAST, Curve, continue_fractions, epsilons
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
    np.testing.assert_allclose(found[epochs:], recorded[-LAST:].mean())
