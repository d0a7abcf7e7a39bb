"""Links that messages fill: what comes waits behind them, and their bytes take processor time; in closed form."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs.notation import op

from sim.engine_programs import one, route
from sim.test_fast_forward import same
from sim.worlds import machine, run, seconds_of_work, times
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.communication import Load
from simgnn.hardware.profile.quantities import Duration
from simgnn.program.ops import Stream, Transfer
from simgnn.program.program import Program
from simgnn.sim.simulate import Simulation

RATE = 1e9
SMALL, LARGE = 1_000, 100_000_000
QUEUE = 1_000_000
STREAMS = (Stream("compute"), Stream("bulk", group="world"), Stream("comm", group="world"))


def load(processor: float = 0.0, queue: float = QUEUE) -> dict[str, object]:
    queues = [{"messages": 1, "size": f"{queue!r} B"}, {"messages": 3, "size": f"{2 * queue!r} B"}]
    return {"source": "assumed", "queues": queues, "processor": f"{processor!r} s"}


def program(*ops, hosts=(0, 1), **routes) -> Program:
    """Ops of one epoch; ``routes`` as matrices of rows."""
    return one(*ops, hosts=hosts, streams=STREAMS, routes={name: route(rows) for name, rows in routes.items()})


def exchange(name: str, stream: str, along: str, after: str = "", row_bytes: int = 1, **fields):
    return op(name, "exchange", stream, after=after, transfer=Transfer(row_bytes), route=along, **fields)


def beside(nbytes: int, bulk: int = LARGE, **options) -> tuple[float, float, float]:
    """Begin and end of a message of ``nbytes`` from host 0 to host 1, and end of bulk that was there 10 ms before."""
    ops = [
        exchange("bulk", "bulk", "bulk"),
        op("wait", "elementwise", "compute", work=seconds_of_work(0.01)),
        exchange("message", "comm", "message", after="wait"),
    ]
    planned = program(*ops, bulk=[[0, bulk], [0, 0]], message=[[0, nbytes], [0, 0]])
    found = run(planned, machine((0, 1), kind="cpu", pcie=1e15, threads=1, **options))
    return times(found, "message", 1)[0], times(found, "message", 1)[2], times(found, "bulk", 1)[2]


@settings(max_examples=50, deadline=None)
@given(messages=st.floats(0, 10))
def test_a_queue_is_linear_between_what_was_measured(messages: float) -> None:
    found = Load.model_validate(load()).queued_bytes(messages)
    assert found == pytest.approx(np.interp(messages, [0, 1, 3], [0, QUEUE, 2 * QUEUE]))


@pytest.mark.parametrize(("first", "second"), [(2, 2), (3, 1)])
def test_numbers_of_messages_must_ascend(first: int, second: int) -> None:
    queues = [{"messages": count, "size": "1 MB"} for count in (first, second)]
    with pytest.raises(ValueError, match="ascend"):
        Load.model_validate({"source": "assumed", "queues": queues})


def test_a_small_message_waits_for_the_queue() -> None:
    begin, end, _ = beside(SMALL, load=load())
    assert begin == pytest.approx(0.01)
    assert end - begin == pytest.approx((QUEUE + SMALL) / RATE)


def test_without_a_load_it_takes_its_share_at_once() -> None:
    begin, end, _ = beside(SMALL)
    assert end - begin == pytest.approx(2 * SMALL / RATE)


def test_a_message_larger_than_the_queue_waits_no_longer_than_by_sharing() -> None:
    assert beside(2 * QUEUE, load=load()) == beside(2 * QUEUE)


@settings(max_examples=20, deadline=None)
@given(left=st.integers(SMALL + 1, QUEUE))
def test_nobody_waits_for_more_than_others_have_left(left: int) -> None:
    begin, end, bulk = beside(SMALL, bulk=round(0.01 * RATE) + left, load=load())
    assert end - begin == pytest.approx((left + SMALL) / RATE, rel=1e-6)
    assert bulk <= end


def test_the_bytes_of_all_are_delivered_in_the_time_that_they_need() -> None:
    """Waiting leaves the link to others: the bulk ends when the bytes of both have passed, with a load or without."""
    assert beside(SMALL, load=load())[2] == pytest.approx(beside(SMALL)[2])


def test_two_bulk_messages_queue_more() -> None:
    ops = [
        exchange("bulk", "bulk", "bulk"),
        op("wait", "elementwise", "compute", work=seconds_of_work(0.01)),
        exchange("message", "comm", "message", after="wait"),
    ]
    apart = np.zeros((4, 4), dtype=np.int64)
    apart[0, 2] = apart[1, 3] = LARGE
    small = np.zeros((4, 4), dtype=np.int64)
    small[0, 3] = SMALL
    planned = program(*ops, bulk=apart, message=small, hosts=(0, 0, 1, 1))
    found = run(planned, machine((0, 0, 1, 1), kind="cpu", pcie=1e15, threads=1, load=load()))
    issued, _, ended = times(found, "message", 3)
    assert ended - issued == pytest.approx((1.5 * QUEUE + SMALL) / RATE, rel=1e-4)


def ring(nbytes: int, bulk: bool, **options) -> float:
    """Seconds of an all-reduce of two hosts, alone or beside bulk in both directions."""
    ops = [
        exchange("bulk", "bulk", "bulk"),
        op("wait", "elementwise", "compute", work=seconds_of_work(0.01)),
        op("sum", "allreduce", "comm", after="wait", transfer=Transfer(nbytes)),
    ]
    amount = LARGE if bulk else 0
    planned = program(*ops, bulk=[[0, amount], [amount, 0]])
    issued, _, ended = times(
        run(planned, machine((0, 1), kind="cpu", pcie=1e15, hop=1e-6, threads=1, **options)), "sum"
    )
    return ended - issued


def test_each_step_of_a_ring_waits() -> None:
    """Two steps of two ranks; each hands over half of its half of the buffer at once, when the other has told that it
    is there."""
    nbytes, handed = 40_000, 10_000
    waits = 2 * (QUEUE + QUEUE - handed) / RATE
    assert ring(nbytes, True, load=load()) == pytest.approx(ring(nbytes, True) + waits, rel=1e-3)


def test_a_ring_alone_is_as_without_a_load() -> None:
    assert ring(40_000, False, load=load()) == pytest.approx(ring(40_000, False), rel=1e-6)


def regimes(where: Machine, floors: Sequence[float]) -> Machine:
    """The same machine, all-reduces below and from 1,000 bytes on with these floors."""
    name, library = where.backend()
    entry = next(found for found in library.collectives if found.kind == "allreduce")
    made = [
        entry.model_copy(update={"sizes": sizes, "floor": Duration.of(floor, "assumed")})
        for sizes, floor in zip(((0.0, 1e3), (1e3, 1e12)), floors, strict=True)
    ]
    backends = {**where.profile.backends, name: library.model_copy(update={"collectives": made})}
    return Machine.place(where.profile.model_copy(update={"backends": backends}), where.hosts, 1)


@pytest.mark.parametrize("floors", [(0.5, 1e-3), (1e-3, 0.5)])
def test_a_ring_with_a_load_begins_with_the_floor_of_the_regime_of_its_size(floors: tuple[float, float]) -> None:
    planned = program(op("sum", "allreduce", "comm", transfer=Transfer(40_000)))
    seconds = []
    for options in ({}, {"load": load()}):
        where = regimes(machine((0, 1), kind="cpu", pcie=1e15, hop=1e-6, threads=1, **options), floors)
        seconds.append(run(planned, where).epoch_s[0])
    assert seconds[1] == pytest.approx(seconds[0], rel=1e-6)
    assert seconds[0] == pytest.approx(floors[1], rel=0.1)


def test_a_buffer_of_one_share_waits_only_where_it_crosses() -> None:
    """Of two ranks both directions cross, so that no step is spared; whoever comes later has been told by then."""
    assert ring(8, True, load=load()) == pytest.approx((2 + 1) * QUEUE / RATE, rel=1e-2)


def worked(processor: float, *, cores: int = 1, seconds: float = 0.05, nbytes: int = LARGE) -> Simulation:
    ops = [
        exchange("bulk", "bulk", "bulk"),
        op("work", "elementwise", "compute", work=seconds_of_work(seconds)),
    ]
    planned = program(*ops, bulk=[[0, nbytes], [0, 0]])
    return run(planned, machine((0, 1), kind="cpu", pcie=1e15, cores=cores, threads=1, load=load(processor)))


@pytest.mark.parametrize("rank", [0, 1])
def test_bytes_that_cross_take_from_the_cores_at_both_ends(rank: int) -> None:
    """While 1 GB/s cross at 0.25 ns a byte, one core has 0.75 left."""
    assert times(worked(0.25e-9), "work", rank)[2] == pytest.approx(0.05 / 0.75)


def test_work_is_as_quick_as_before_when_the_bytes_have_passed() -> None:
    found = worked(0.25e-9, seconds=0.2)
    assert times(found, "bulk", 1)[2] == pytest.approx(0.1)
    assert times(found, "work")[2] == pytest.approx(0.1 + (0.2 - 0.075))


def test_a_free_core_passes_bytes_on_beside_the_work() -> None:
    assert times(worked(0.25e-9, cores=2), "work")[2] == pytest.approx(0.05)


def test_work_never_starves() -> None:
    assert times(worked(5e-9, seconds=0.001), "work")[2] == pytest.approx(0.001 / 0.05)


def alike(faster: float = 1.0, **options: bool) -> Simulation:
    """Epochs of bulk beside a ring and work, which repeat."""
    ops = [
        exchange("bulk", "bulk", "bulk", after="sum<<1"),
        op("work", "elementwise", "compute", after="sum<<1", work=seconds_of_work(0.01)),
        op("sum", "allreduce", "comm", after="work", transfer=Transfer(40_000)),
    ]
    planned = program(*ops, bulk=[[0, LARGE // 8], [LARGE // 8, 0]])
    on = machine((0, 1), kind="cpu", pcie=1e15, cores=1, threads=1, faster=faster, load=load(0.25e-9 / faster))
    return run(planned, on, epochs=6, **options)


def test_epochs_that_repeat_are_copied_alike() -> None:
    fast = alike()
    assert fast.copied
    same(fast, alike(fast_forward=False))


def test_all_rates_times_k_is_all_times_over_k() -> None:
    slow, fast = alike(), alike(4.0)
    np.testing.assert_allclose(slow.columns["ended_s"], 4 * fast.columns["ended_s"], rtol=1e-6)
