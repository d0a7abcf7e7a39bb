"""Between which epochs a run stops: where something happens there, and nowhere else."""

from itertools import pairwise, product

import pytest

from executor.spans import SPAN, spans


@pytest.mark.parametrize(
    ("start", "every", "keep", "steps", "expected"),
    [
        (0, 0, 0, 5, [(0, 1), (1, 10)]),  # the first epoch warms up
        (4, 0, 0, 5, [(4, 5), (5, 10)]),  # so does the first one of a run that goes on
        (0, 4, 0, 5, [(0, 1), (1, 4), (4, 8), (8, 10)]),
        (0, 0, 3, 5, [(0, 1), (1, 3), (3, 6), (6, 9), (9, 10)]),
        (0, 1, 0, 1, [(epoch, epoch + 1) for epoch in range(10)]),
        (0, 0, 0, SPAN, [(epoch, epoch + 1) for epoch in range(10)]),
    ],
)
def test_spans_end_where_something_happens(
    start: int, every: int, keep: int, steps: int, expected: list[tuple[int, int]]
) -> None:
    assert list(spans(start, 10, every, keep, steps)) == [range(*pair) for pair in expected]


@pytest.mark.parametrize("steps", [1, 7, SPAN // 2, 2 * SPAN])
def test_spans_are_all_epochs_in_order(steps: int) -> None:
    for start, more, every, keep in product((0, 3), (1, 2, 9), (0, 1, 2, 5), (0, 1, 3)):
        found = list(spans(start, start + more, every, keep, steps))
        assert (found[0].start, found[-1].stop) == (start, start + more)
        assert all(one.stop == other.start for one, other in pairwise(found))
        assert all(len(one) == 1 or len(one) * steps <= SPAN for one in found)
        for epoch in range(start + 1, start + more):
            if (every and epoch % every == 0) or (keep and epoch % keep == 0):
                assert epoch in {one.stop for one in found}
