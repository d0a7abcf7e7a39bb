"""Token buckets on links: closed forms, pauses, sharing, and nothing at all without a burst."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs.notation import op, program

from sim.test_fast_forward import same
from sim.worlds import flow_ends, machine, run, seconds_of_work
from simgnn.hardware.price.messages import price_messages
from simgnn.program.calendar import Calendar
from simgnn.program.ops import Stream, Transfer
from simgnn.program.sizes import Route

RATE, BURST, FAST = 25e6, 1e6, 1e9


def alone(size: float, burst: float = BURST, fast: float = FAST) -> float:
    """A bucket emptied at full speed, then the link's rate."""
    return max(size / fast, (size - burst) / RATE)


def cap(size: float, burst: float = BURST, fast: float = FAST) -> float:
    """What one message reaches alone, as hardware prices it."""
    return size / alone(size, burst, fast)


@settings(max_examples=60, deadline=None)
@given(size=st.floats(1.0, 1e8), burst=st.floats(1.0, 1e7), fast=st.floats(26e6, 1e10))
def test_a_message_alone_takes_its_closed_form(size: float, burst: float, fast: float) -> None:
    (end,) = flow_ends([RATE], [((0,), size)], caps=[cap(size, burst, fast)], burst=[burst])
    assert end == pytest.approx(alone(size, burst, fast), rel=1e-6, abs=2e-12)


def test_messages_that_begin_together_share_the_tokens() -> None:
    sizes = [4e6, 2e6, 2e6]
    flows = [((0,), size) for size in sizes]
    ends = flow_ends([RATE], flows, caps=[cap(size) for size in sizes], burst=[BURST])
    assert max(ends) == pytest.approx((sum(sizes) - BURST) / RATE)
    assert ends[1] == ends[2] < ends[0]


@pytest.mark.parametrize("pause", [0.0, 0.01, 0.02, 0.04, 1.0])
def test_a_bucket_fills_while_nothing_flows(pause: float) -> None:
    size = 2 * BURST
    first = alone(size)
    ends = flow_ends(
        [RATE], [((0,), size)] * 2, starts=[0.0, first + pause], caps=[cap(size)] * 2, burst=[BURST]
    )  # fmt: skip
    saved = min(BURST, RATE * pause)
    assert ends[0] == pytest.approx(first)
    assert ends[1] - first - pause == pytest.approx((size - saved) / RATE, rel=1e-6)


def test_a_link_in_use_has_saved_nothing() -> None:
    size = 2 * BURST
    ends = flow_ends([RATE], [((0,), size)] * 2, starts=[0.0, 0.01], caps=[cap(size)] * 2, burst=[BURST])
    assert max(ends) == pytest.approx((2 * size - BURST) / RATE)


def test_two_links_in_a_row_each_with_a_bucket_are_as_one() -> None:
    (end,) = flow_ends([RATE, RATE], [((0, 1), 3e6)], caps=[cap(3e6)], burst=[BURST, BURST])
    assert end == pytest.approx(alone(3e6))


def test_a_bucket_on_a_link_that_is_faster_than_the_flow_is_of_no_use() -> None:
    (end,) = flow_ends([RATE, 10 * RATE], [((0, 1), 3e6)], caps=[RATE], burst=[0.0, BURST])
    assert end == pytest.approx(3e6 / RATE)


def test_epochs_use_what_saved_up_between_them_and_repeat_alike() -> None:
    """An epoch's message finds a full bucket first, later what 20 ms of work gave time to save."""
    ops = [
        op("work", "elementwise", "compute", after="send<<1", work=seconds_of_work(0.02)),
        op("send", "exchange", "comm", after="work", transfer=Transfer(1), route="pair"),
    ]
    streams = [Stream("compute"), Stream("comm", group="world")]
    routes = {"pair": Route.from_matrix(np.array([[0, 2 * round(BURST)], [0, 0]]))}
    repeated = program("ping", {"epoch": ops}, Calendar("epoch"), [], streams, (0, 1), routes=routes)
    on = machine((0, 1), ethernet=RATE, burst=BURST, pcie=FAST)
    fast = run(repeated, on, epochs=12)
    same(fast, run(repeated, on, epochs=12, fast_forward=False))
    assert fast.copied
    assert fast.epoch_s[0] == pytest.approx(0.02 + (2 * BURST - BURST) / RATE)
    assert fast.epoch_s[1:] == pytest.approx([0.02 + (2 * BURST - 0.02 * RATE) / RATE] * 11)


def test_a_burst_of_nearly_nothing_changes_nothing() -> None:
    plain, tiny = machine((0, 1), ethernet=RATE), machine((0, 1), ethernet=RATE, burst=1e-5)
    for size in (1e3, 1e6):
        one, other = (on.message(0, 1, size) for on in (plain, tiny))
        assert other.rate_bytes_per_s == pytest.approx(one.rate_bytes_per_s)
        seconds = [on.collective("allreduce", "nccl", size, (0, 1)).seconds_alone for on in (plain, tiny)]
        assert seconds[1] == pytest.approx(seconds[0])


@pytest.mark.parametrize("size", [1e5, 1e6, 3e6, 1e8])
def test_prices_of_one_and_of_many_messages_know_the_burst(size: float) -> None:
    on = machine((0, 1), ethernet=RATE, burst=BURST, pcie=FAST)
    one = on.message(0, 1, size, "nccl")
    assert size / one.rate_bytes_per_s == pytest.approx(alone(size))
    many = price_messages(on, [0], [1], np.array([size]), "nccl")
    assert many.rate_bytes_per_s[0] == pytest.approx(one.rate_bytes_per_s)
    reduced = on.collective("allreduce", "nccl", size, (0, 1))
    assert reduced.seconds_alone == pytest.approx(max(size / FAST, (size - BURST) / RATE), rel=1e-6)
