"""Order of rows within printed tables and across them: by hand, and against Kendall's tau over all pairs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgnn.study.error_measures import kendall_tau
from simgnn.study.published.score import Order, orders

MEASURED = np.array([1.0, 2.0, 3.0, 4.0])
PREDICTED = np.array([3.0, 1.0, 2.5, 2.5])
TABLES = ["here", "here", "there", "there"]


def test_pairs_by_hand() -> None:
    within, across, discordant = orders(PREDICTED, MEASURED, np.zeros(4), TABLES)
    # here: (1, 2) measured, (3, 1) predicted; there: (3, 4) measured, predicted to be equal
    assert within == Order(tau=-0.5, pairs=2, discordant=1, equal=1)
    # across: the first against both of the other table is wrong, the second against both is right
    assert across == Order(tau=0.0, pairs=4, discordant=2, equal=0)
    assert discordant == (3, 1, 1, 1)


def test_gaps_within_the_noise_are_no_pairs() -> None:
    found = orders(PREDICTED, MEASURED, np.full(4, 10.0), TABLES)
    nothing = Order(tau=None, pairs=0, discordant=0, equal=0)
    assert found == (nothing, nothing, (0, 0, 0, 0))
    empty = np.zeros(0)
    assert orders(empty, empty, empty, [])[2] == ()


rows = st.lists(
    st.tuples(st.floats(0.1, 10.0), st.floats(0.1, 10.0), st.floats(0.0, 0.1), st.sampled_from("abc")), max_size=12
)


@settings(deadline=None)
@given(rows)
def test_within_and_across_add_up_to_all_pairs(cases: list[tuple[float, float, float, str]]) -> None:
    predicted, measured, noise = (np.array([case[at] for case in cases], dtype=np.float64) for at in range(3))
    found = orders(predicted, measured, noise, [case[3] for case in cases])
    tau, pairs = kendall_tau(predicted, measured, noise)
    both = found[:2]
    assert sum(one.pairs for one in both) == pairs
    assert sum(found[2]) == 2 * sum(one.discordant for one in both), "each discordant pair has two ends"
    if tau is not None:
        assert sum(one.tau * one.pairs for one in both if one.tau is not None) == pytest.approx(tau * pairs)
    alone = orders(predicted, measured, noise, [str(at) for at in range(len(cases))])
    assert alone[0].pairs == 0
    assert alone[1].pairs == pairs
