"""The expected greatest of independent normals: closed forms, numerical integration, properties."""

from math import pi, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate
from scipy.special import ndtr

from simgnn.sim.spread.delays import greatest

MEANS = st.floats(-10.0, 10.0)
SIGMAS = st.floats(0.0, 5.0)
MEMBERS = st.lists(st.tuples(MEANS, SIGMAS), min_size=1, max_size=6)


def expected(members) -> float:
    mean, sigma = np.array(members).T
    return float(greatest(mean, sigma**2)[0])


def integrated(mean, sigma) -> float:
    """E[max] = high - integral of the product of the distribution functions up to ``high``."""
    low, high = float(np.max(mean - 9 * sigma)), float(np.max(mean + 9 * sigma))
    below, _ = integrate.quad(lambda x: float(np.prod(ndtr((x - mean) / sigma))), low, high, limit=400)
    return high - below


def test_two_identical_normals_are_later_by_sigma_over_root_pi() -> None:
    mean, variance = greatest(np.array([3.0, 3.0]), np.array([0.25, 0.25]))
    assert mean == pytest.approx(3.0 + 0.5 / sqrt(pi))
    assert variance == pytest.approx(0.25 * (1 - 1 / pi))


@pytest.mark.parametrize("count", [3, 4, 8, 32, 256, 1024])
def test_many_identical_normals_are_within_two_hundredths_of_a_deviation(count) -> None:
    mean = greatest(np.zeros(count), np.ones(count))[0]
    assert mean == pytest.approx(integrated(np.zeros(count), np.ones(count)), abs=0.022)


@pytest.mark.parametrize("seed", range(5))
def test_unequal_normals_agree_with_integration(seed) -> None:
    random = np.random.default_rng(seed)
    mean, sigma = random.normal(0, 1, 6), random.uniform(0.1, 2.0, 6)
    assert greatest(mean, sigma**2)[0] == pytest.approx(integrated(mean, sigma), abs=0.03 * sigma.max())


def test_without_spread_the_latest_decides() -> None:
    mean, variance = greatest(np.array([1.0, 4.0, 2.0]), np.zeros(3))
    assert (mean, variance) == (4.0, 0.0)


def test_only_those_that_take_part_count() -> None:
    mean = np.array([[1.0, 9.0, 2.0], [1.0, 9.0, 2.0]])
    present = np.array([[True, False, True], [True, True, False]])
    found, _ = greatest(mean, np.zeros((2, 3)), present)
    assert found.tolist() == [2.0, 9.0]


@settings(deadline=None)  # the first call compiles
@given(MEMBERS, st.tuples(MEANS, SIGMAS))
def test_one_more_never_makes_it_earlier(members, other) -> None:
    assert expected([*members, other]) >= expected(members) - 0.02 * (1 + max(s for _, s in [*members, other]))
    assert expected([*members, other]) >= max(mean for mean, _ in [*members, other]) - 1e-9


@settings(deadline=None)  # the first call compiles
@given(MEMBERS, st.floats(1.0, 3.0))
def test_more_jitter_never_makes_it_earlier(members, factor) -> None:
    wider = [(mean, sigma * factor) for mean, sigma in members]
    assert expected(wider) >= expected(members) - 0.02 * (1 + max(s for _, s in wider))


@settings(deadline=None)  # the first call compiles
@given(st.integers(1, 12), st.floats(0.01, 5.0))
def test_it_grows_with_ranks_and_with_sigma(count, sigma) -> None:
    one, more = expected([(0.0, sigma)] * count), expected([(0.0, sigma)] * (count + 1))
    assert more > one
    assert expected([(0.0, 2 * sigma)] * (count + 1)) == pytest.approx(2 * more)


@settings(deadline=None)  # the first call compiles
@given(MEMBERS, st.floats(-100.0, 100.0), st.floats(0.1, 10.0))
def test_it_moves_and_scales_with_its_members(members, move, factor) -> None:
    there = [(mean * factor + move, sigma * factor) for mean, sigma in members]
    assert expected(there) == pytest.approx(expected(members) * factor + move, abs=1e-6)
