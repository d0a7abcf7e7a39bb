"""The solver finds known coefficients in noisy times, keeps to its outlier rule and says why it refuses."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgnn.analysis.fit.solver import solve
from simgnn.errors import HardwareError


def synthetic(seed: int, noise: float, samples: int = 80) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features [n, 3], true coefficients [3] and noisy times [n]: a floor, flops and bytes."""
    generator = np.random.default_rng(seed)
    flops, moved = 10 ** generator.uniform(3, 10, samples), 10 ** generator.uniform(3, 8, samples)
    features = np.column_stack([np.ones(samples), flops, moved])
    truth = np.array([2e-5, 2e-11, 1e-10])
    return features, truth, features @ truth * np.exp(generator.normal(0, noise, samples))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), noise=st.floats(0.0, 0.08))
def test_known_coefficients_come_back(seed: int, noise: float) -> None:
    features, truth, seconds = synthetic(seed, noise)
    fit = solve(features, seconds, "matmul")
    np.testing.assert_allclose(fit.coefficients, truth, rtol=max(4 * noise, 1e-3))
    assert fit.spread <= 2 * noise + 1e-6


def test_a_term_that_costs_nothing_stays_at_zero() -> None:
    features, truth, _ = synthetic(3, 0.0)
    truth[2] = 0.0
    fit = solve(features, features @ truth, "matmul")
    assert fit.coefficients[2] * features[:, 2].max() < 1e-3 * (features @ truth).max()


def test_outliers_are_left_out_and_counted() -> None:
    features, truth, seconds = synthetic(7, 0.02)
    seconds[[4, 30]] *= (3.0, 0.2)
    fit = solve(features, seconds, "spmm")
    assert fit.left_out == 2
    assert fit.used == 78
    np.testing.assert_allclose(fit.coefficients, truth, rtol=0.1)


@settings(max_examples=20, deadline=None)
@given(factor=st.floats(1e-3, 1e3), seed=st.integers(0, 1000))
def test_scaling_all_times_scales_all_coefficients(factor: float, seed: int) -> None:
    features, _, seconds = synthetic(seed, 0.05)
    once, scaled = solve(features, seconds, "copy"), solve(features, seconds * factor, "copy")
    np.testing.assert_allclose(scaled.coefficients, once.coefficients * factor, rtol=1e-4)


def test_coefficients_are_never_negative() -> None:
    generator = np.random.default_rng(1)
    sizes = 10 ** generator.uniform(2, 8, 40)
    fit = solve(np.column_stack([np.ones(40), sizes, sizes**2]), np.sqrt(sizes) * 1e-6, "gather")
    assert np.all(fit.coefficients >= 0)


@pytest.mark.parametrize(
    ("features", "seconds", "reason"),
    [
        (np.ones((2, 3)), np.ones(2), "2 samples cannot fit"),
        (np.ones((5, 2)), np.ones(5), "the same size"),
        (np.column_stack([np.ones(4), np.arange(4.0)]), np.array([1.0, 2.0, 0.0, 1.0]), "times that are not positive"),
        (np.column_stack([np.ones(4), np.arange(4.0)]), np.array([1.0, np.nan, 2.0, 1.0]), "not finite"),
    ],
)
def test_degenerate_samples_are_refused_with_a_reason(features: np.ndarray, seconds: np.ndarray, reason: str) -> None:
    with pytest.raises(HardwareError, match=reason) as caught:
        solve(features, seconds, "matmul on 2 ranks")
    assert "matmul on 2 ranks" in str(caught.value)
    assert "measure" in str(caught.value)
