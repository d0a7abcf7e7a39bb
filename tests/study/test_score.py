"""Figures of merit against numbers worked out by hand, and properties that any figure of merit must have."""

import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgnn.study.error_measures import (
    coverage,
    forgiven,
    judge,
    kendall_tau,
    median_noise,
    regret,
    score,
)

NONE = np.zeros(5)
MEASURED = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
PREDICTED = np.array([1.1, 1.8, 3.3, 3.0, 10.0])  # errors +10 %, -10 %, +10 %, -25 %, +100 %


def test_errors_by_hand() -> None:
    found = score(PREDICTED, MEASURED, NONE)
    assert found.n == 5
    assert found.median_error == pytest.approx(0.10)
    assert found.mean_error == pytest.approx((0.1 + 0.1 + 0.1 + 0.25 + 1.0) / 5)
    assert found.p90_error == pytest.approx(0.25 + 0.6 * 0.75)  # place 0.9 x 4 = 3.6 between the sorted 4th and 5th
    assert found.max_error == pytest.approx(1.0)
    assert found.bias == pytest.approx(0.10)
    assert found.coverage is None


def test_tau_by_hand() -> None:
    # of ten pairs only (3.3, 3.0), measured (3, 4), is the wrong way round
    assert kendall_tau(PREDICTED, MEASURED, NONE) == (pytest.approx((9 - 1) / 10), 10)
    # 15 % noise: gaps of 1 at 3 and 4 are 1 < 2 hypot(0.45, 0.6) = 1.5, and at 4 and 5 1 < 2 hypot(0.6, 0.75); (2, 3)
    # 1 < 2 hypot(0.3, 0.45) = 1.08; (1, 2) 1 > 2 hypot(0.15, 0.3) = 0.67; (3, 5) 2 > 2 hypot(0.45, 0.75) = 1.75
    assert kendall_tau(PREDICTED, MEASURED, np.full(5, 0.15)) == (pytest.approx(1.0), 7)
    assert kendall_tau(PREDICTED[:1], MEASURED[:1], NONE[:1]) == (None, 0)
    # predicted to be equal: neither right nor wrong
    assert kendall_tau(np.array([1.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0]), np.zeros(3)) == (pytest.approx(2 / 3), 3)


def test_regret_by_hand() -> None:
    measured = np.array([1.0, 1.2, 3.0, 2.0, 5.0])
    predicted = np.array([2.0, 1.0, 1.0, 2.0, 1.0])
    groups = ["a", "a", "b", "b", "c"]  # a picks the second: +20 %; b picks the first: +50 %; c has no choice
    mean, worst, decisions = regret(predicted, measured, NONE, groups)
    assert (mean, worst, decisions) == (pytest.approx(0.35), pytest.approx(0.5), 2)
    # 10 % noise: the gap of 0.2 in a lies within 2 hypot(0.1, 0.12) = 0.31, so there is nothing to decide
    noisy = regret(predicted, measured, np.full(5, 0.1), groups)
    assert noisy == (pytest.approx(0.5), pytest.approx(0.5), 1)
    assert regret(predicted[4:], measured[4:], NONE[4:], ["c"]) == (None, None, 0)


def test_a_pick_within_the_noise_costs_nothing() -> None:
    measured, predicted = np.array([1.0, 1.05, 3.0]), np.array([2.0, 1.0, 4.0])
    assert regret(predicted, measured, np.full(3, 0.05), [0, 0, 0]) == (0.0, 0.0, 1)


def test_coverage_by_hand() -> None:
    low = np.array([0.9, 2.1, np.nan, 3.0, 5.0])
    high = np.array([1.1, 2.3, np.nan, 4.0, 6.0])
    assert coverage(MEASURED, NONE, low, high) == (0.75, 0.75, 0.75, 4)
    # two standard errors are 0.12, 0.24, -, 0.48, 0.6: the first lies 0.1 from both edges, the others 0, 0.1 and 0
    assert coverage(MEASURED, np.full(5, 0.06), low, high) == (0.75, 0.0, 1.0, 4)
    # 0.02, 0.04, -, 0.08, 0.1: the first is safely inside, the second safely outside, the others lie on an edge
    assert coverage(MEASURED, np.full(5, 0.01), low, high) == (0.75, 0.25, 0.75, 4)
    assert coverage(MEASURED, NONE, None, None) == (None, None, None, 0)
    assert coverage(MEASURED, NONE, np.full(5, np.nan), np.full(5, np.nan)) == (None, None, None, 0)


@pytest.mark.parametrize(
    ("width", "noise", "figure", "holds"),
    [
        (0.10, 0.00, 1.0, False),  # all inside, none in doubt: the intervals are too wide
        (0.10, 0.06, 0.97, True),  # all inside, any may be outside
        (-0.1, 0.00, 0.0, False),
        (-0.1, 0.06, 0.80, True),
    ],
)
def test_noise_forgives_coverage_up_to_the_bar(width: float, noise: float, figure: float, holds: bool) -> None:
    # a negative width is an interval that lies beside what was measured
    low, high = MEASURED * (1 - abs(width)), MEASURED * (1 + abs(width))
    if width < 0:
        low, high = MEASURED * (1 - width), MEASURED * (1 - 2 * width)
    errors = np.full(5, noise)
    found = score(MEASURED, MEASURED, errors, low=low, high=high)
    assert judge({"coverage": (0.80, 0.97)}, found, NONE, errors) == [("coverage", pytest.approx(figure), holds)]


def test_noise_of_a_median_by_hand() -> None:
    # deviations -1, 0, 1: sample standard deviation 1, over the root of 3, times the root of pi / 2, over the median 10
    assert median_noise([9.0, 10.0, 11.0]) == pytest.approx(math.sqrt(math.pi / 2) / math.sqrt(3) / 10)
    assert math.isnan(median_noise([1.0]))


def test_noise_forgives_up_to_the_bar_and_no_further() -> None:
    errors, noise = np.array([0.05, 0.15, 0.15, -0.30]), np.array([0.0, 0.1, 0.05, np.nan])
    assert forgiven(errors, noise, 0.08) == pytest.approx([0.05, 0.08, 0.15, 0.30])


def test_bars_by_hand() -> None:
    found = score(PREDICTED, MEASURED, NONE, low=MEASURED * 0.9, high=MEASURED * 1.1)
    bars = {"median_error": 0.1 + 1e-9, "p90_error": 0.2, "tau": 0.8, "regret": 0.03, "coverage": (0.80, 0.97)}
    verdicts = {name: holds for name, _, holds in judge(bars, found, PREDICTED / MEASURED - 1.0, NONE)}
    assert verdicts == {"median_error": True, "p90_error": False, "tau": True, "regret": True, "coverage": False}


def test_what_cannot_be_told_does_not_hold() -> None:
    none = np.zeros(0)
    found = score(none, none, none)
    assert found.median_error is None
    bars = {"median_error": 1.0, "tau": -1.0, "regret": 9.0, "coverage": (0.0, 1.0)}
    assert not any(holds for _, _, holds in judge(bars, found, none, none))


times = st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=12)


@settings(deadline=None)
@given(times, st.floats(0.0, 0.3), st.randoms(use_true_random=False))
def test_the_order_of_cases_does_not_matter(measured: list[float], noise: float, random: object) -> None:
    n = len(measured)
    one = np.array(measured)
    two = np.array([random.uniform(1e-3, 1e3) for _ in range(n)])  # type: ignore[attr-defined]
    order = list(range(n))
    random.shuffle(order)  # type: ignore[attr-defined]
    groups = [place % 2 for place in range(n)]
    before = score(two, one, np.full(n, noise), groups, two * 0.9, two * 1.1)
    after = score(
        two[order], one[order], np.full(n, noise), [groups[i] for i in order], two[order] * 0.9, two[order] * 1.1
    )
    # equal predictions in a group may be picked in another order; drawn floats are practically never equal
    for name, value in asdict(before).items():
        assert asdict(after)[name] == (None if value is None else pytest.approx(value)), name


@settings(deadline=None)
@given(times, st.floats(0.0, 0.3))
def test_a_perfect_predictor_is_perfect(measured: list[float], noise: float) -> None:
    one = np.array(measured)
    found = score(one, one, np.full(len(one), noise), low=one, high=one)
    assert found.max_error == 0.0
    assert found.tau in (None, 1.0)
    assert found.regret in (None, 0.0)
    assert found.coverage == 1.0


@settings(deadline=None)
@given(times, st.floats(0.01, 100.0))
def test_a_constant_factor_spoils_errors_and_no_order(measured: list[float], factor: float) -> None:
    one = np.array(measured)
    found = score(one * factor, one, np.full(len(one), 0.01))
    assert found.median_error == pytest.approx(abs(factor - 1.0), abs=1e-9)
    assert found.p90_error == pytest.approx(abs(factor - 1.0), abs=1e-9)
    assert found.tau in (None, 1.0)
    assert found.regret in (None, 0.0)


@settings(deadline=None)
@given(times, times)
def test_tau_of_the_reverse_is_the_opposite(measured: list[float], predicted: list[float]) -> None:
    n = min(len(measured), len(predicted))
    one, two = np.array(measured[:n]), np.array(predicted[:n])
    tau, pairs = kendall_tau(two, one, np.zeros(n))
    opposite, same_pairs = kendall_tau(-two, one, np.zeros(n))
    assert pairs == same_pairs
    assert tau is None or opposite == pytest.approx(-tau)
