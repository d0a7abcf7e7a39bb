"""The rules of PyTorch's caching allocator, in closed form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgnn.sim.memory.caching_allocator import BLOCK, reserved_bytes, segment_bytes

MIB = 2**20


def after(*changes: float, always: tuple[float, ...] = ()) -> float:
    """MiB reserved after takes (positive MiB) and returns (minus the position of the take), each a key of its own."""
    keys, signed = [], []
    sizes: dict[int, int] = {}
    for position, change in enumerate(changes, start=1):
        key = position if change > 0 else int(-change)
        keys.append(key)
        if change > 0:
            sizes[key] = round(change * MIB)
        signed.append(sizes[key] if change > 0 else -sizes[key])
    return reserved_bytes([round(size * MIB) for size in always], keys, signed) / MIB


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
    assert reserved_bytes([], [7, 7], [-5 * MIB, 5 * MIB]) == 0
    assert reserved_bytes([0], [1, 1], [0, 0]) == 0


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
    assert most <= reserved_bytes([], keys, changes) <= segments
