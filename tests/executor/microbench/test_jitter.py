"""Jitter of repeats: what a rank does by itself and what hits all, told apart from known parts."""

import numpy as np
import pytest

from executor.microbench.timing import FEWEST, split_jitter


@pytest.mark.parametrize(("own", "common"), [(0.1, 0.0), (0.0, 0.2), (0.1, 0.2)])
def test_known_parts_are_found_again(own: float, common: float) -> None:
    random = np.random.default_rng(0)
    spans = 1 + np.arange(3)[:, None] + common * random.normal(size=2000) + own * random.normal(size=(3, 2000))
    found_own, found_common = split_jitter(spans, float("inf"))
    assert found_own == pytest.approx(own, abs=0.01)
    assert found_common == pytest.approx(common, abs=0.02)


def test_persistent_differences_of_ranks_are_no_jitter() -> None:
    assert split_jitter(np.array([[1.0] * 5, [2.0] * 5]), float("inf")) == (0.0, 0.0)


def test_one_rank_alone_tells_no_common_part() -> None:
    assert split_jitter(np.array([[1.0, 2.0, 3.0]]), float("inf")) == (1.0, 0.0)


def test_outliers_are_left_out_and_few_repeats_tell_nothing() -> None:
    assert split_jitter(np.array([[1.0, 1.0, 1.0, 50.0]]), 2.0) == (0.0, 0.0)
    assert split_jitter(np.array([[1.0] * (FEWEST - 1)]), float("inf")) == (None, None)
    assert split_jitter(np.array([[1.0, 1.0, 50.0]]), 2.0) == (None, None)
