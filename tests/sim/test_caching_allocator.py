"""The rules of PyTorch's caching allocator, in closed form."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgnn.sim.memory.caching_allocator import BLOCK, Reservation, reserve, segment_bytes

MIB = 2**20


def replayed(*changes: float, always: tuple[float, ...] = (), capacity: float = inf) -> Reservation:
    """Replay takes (positive MiB) and returns (minus the position of the take), each a key of its own."""
    keys, signed = [], []
    sizes: dict[int, int] = {}
    for position, change in enumerate(changes, start=1):
        key = position if change > 0 else int(-change)
        keys.append(key)
        if change > 0:
            sizes[key] = round(change * MIB)
        signed.append(sizes[key] if change > 0 else -sizes[key])
    return reserve([round(size * MIB) for size in always], keys, signed, capacity * MIB)


def after(*changes: float, always: tuple[float, ...] = ()) -> float:
    """MiB reserved after :func:`replayed` changes on a device that is large enough."""
    return replayed(*changes, always=always).peak_bytes / MIB


ASKED = [(1 / MIB, 2), (1, 2), (1 + 1 / 2048, 20), (9.9, 20), (10, 10), (11.5, 12)]


@pytest.mark.parametrize(("asked", "segment"), ASKED)
def test_segments_come_in_the_documented_sizes(asked: float, segment: float) -> None:
    assert segment_bytes(round(asked * MIB)) == segment * MIB
    assert after(asked) == segment


def test_small_requests_share_segments() -> None:
    assert after(0.5, 0.5, 0.5, 0.5) == 2
    assert after(0.5, 0.5, 0.5, 0.5, 0.5) == 4
    assert after(0.5, always=(0.5,)) == 2
    assert after(1 / MIB, *(512 / MIB,) * 4095) == 2, "a byte takes a block of 512"
    assert after(1 / MIB, *(512 / MIB,) * 4096) == 4


def test_large_requests_are_cut_from_segments_where_more_than_a_mebibyte_is_left() -> None:
    assert after(8, 8) == 20
    assert after(8, 8, 8) == 40, "4 MiB are left in the first"
    assert after(12, -1, 8, 3.5) == 12, "what is returned serves what fits into it"
    assert after(12, -1, 11.5) == 12
    assert after(12, -1, 11.5, 0.4) == 14, "half a MiB left over is no block, and small ones are kept apart"


def test_the_smallest_block_that_is_large_enough_serves() -> None:
    # free: 12 and 16; 11 goes into the 12, so that 16 still finds its place
    assert after(12, 16, -1, -2, 11, 16) == 28


def test_returned_neighbours_become_one_block() -> None:
    assert after(6, 6, 6, -1, -2, 12) == 20, "two of 6 and 6 serve 12"
    assert after(6, 6, 6, -1, -3, 12) == 32, "two that are apart do not"


def test_what_is_held_for_no_time_takes_nothing() -> None:
    assert reserve([], [7, 7], [-5 * MIB, 5 * MIB]).peak_bytes == 0
    assert reserve([0], [1, 1], [0, 0]).peak_bytes == 0


def test_a_full_device_gets_free_segments_back_before_memory_runs_out() -> None:
    assert replayed(12, 12, -1, 14, capacity=26) == Reservation(26 * MIB), "the 12 made room for the 14"
    assert after(12, 12, -1, 14) == 38, "a larger device keeps all three"
    # the 1.5 keeps the segment of 12 taken, so that its free rest cannot be returned
    full = replayed(12, -1, 1.5, 14, capacity=25)
    assert full == Reservation(12 * MIB, 3, 26 * MIB, round(15.5 * MIB))
    assert replayed(12, -1, 1.5, 14, capacity=26).failed is None
    assert replayed(always=(30.0,), capacity=29) == Reservation(0, -1, 30 * MIB, 30 * MIB)


@given(st.lists(st.tuples(st.integers(1, 30 * MIB), st.booleans()), min_size=1, max_size=40))
def test_reserved_is_at_least_what_is_held_and_at_most_a_segment_each(steps: list[tuple[int, bool]]) -> None:
    keys, changes, held, most = [], [], {}, 0
    for key, (size, returned) in enumerate(steps):
        keys.append(key)
        changes.append(size)
        held[key] = size
        most = max(most, sum(-(-nbytes // BLOCK) * BLOCK for nbytes in held.values()))
        if returned:
            oldest = min(held)
            keys.append(oldest)
            changes.append(-held.pop(oldest))
    segments = sum(segment_bytes(-(-size // BLOCK) * BLOCK) for size, _ in steps)
    found = reserve([], keys, changes)
    assert most <= found.peak_bytes <= segments
    assert reserve([], keys, changes, found.peak_bytes) == found
    assert reserve([], keys, changes, most - 1).failed is not None
