"""Between which epochs a run stops: where something happens there, and nowhere else."""

from itertools import pairwise, product

import pytest

from simgnn.program.drain_points import Stops


@pytest.mark.parametrize(
    ("start", "every", "keep", "expected"),
    [
        (0, 0, 0, [(0, 1), (1, 10)]),  # the first epoch warms up
        (4, 0, 0, [(4, 5), (5, 10)]),  # so does the first one of a run that goes on
        (0, 4, 0, [(0, 1), (1, 4), (4, 8), (8, 10)]),
        (0, 0, 3, [(0, 1), (1, 3), (3, 6), (6, 9), (9, 10)]),
        (0, 1, 0, [(epoch, epoch + 1) for epoch in range(10)]),
    ],
)
def test_spans_end_where_something_happens(start: int, every: int, keep: int, expected: list[tuple[int, int]]) -> None:
    assert list(Stops(10, every, keep, start).spans()) == [range(*pair) for pair in expected]


def test_spans_are_all_epochs_in_order() -> None:
    for start, more, every, keep in product((0, 3), (1, 2, 9), (0, 1, 2, 5), (0, 1, 3)):
        stops = Stops(start + more, every, keep, start)
        found = list(stops.spans())
        assert (found[0].start, found[-1].stop) == (start, start + more)
        assert all(one.stop == other.start for one, other in pairwise(found))
        ends = {one.stop for one in found}
        assert ends == {done for done in range(start + 1, start + more + 1) if stops.after(done)}
        for done in range(start + 1, start + more):
            if (every and done % every == 0) or (keep and done % keep == 0):
                assert done in ends
