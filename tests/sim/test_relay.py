"""Broadcasts that members relay one by one (Gloo's binomial tree): who leaves when, who waits for whom, contention."""

import numpy as np
import pytest
from programs.notation import op, program

from sim.engine_programs import STREAMS, one, work
from sim.test_fast_forward import same
from sim.test_spread import jittery
from sim.worlds import machine, run, times
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.operations import read_question
from simgnn.program.calendar import Calendar, Turn
from simgnn.program.ops import Stream, Transfer
from simgnn.program.sizes import Route
from simgnn.sim.engine.turn_sizes import Sizes
from simgnn.sim.one_op import time_op
from simgnn.sim.spread.intervals import estimate_spread
from simgnn.sim.spread.origins import Origins

TWO_BY_TWO = (0, 0, 1, 1)
BLOCK = Transfer(1, 10**9)
SOON = 1e-5
"""Inside a host a block takes a microsecond, from host to host a second."""


def relaying(hosts=TWO_BY_TWO, **fields) -> Machine:
    return machine(hosts, **{"pcie": 1e15, "broadcast": "binomial", **fields})


def ends(on: Machine, root: int) -> list[float]:
    question = read_question("broadcast", {"bytes": "1 GB", "root": str(root)}, ranks=on.ranks)
    return time_op(question, on).per_rank_s.tolist()


@pytest.mark.parametrize(
    ("root", "expected"),
    # from 0: 0 -> 1 inside, 0 -> 2 and 1 -> 3 share the link. From 1: 1 -> 2 and 1 -> 3 share it, 2 -> 0 comes back
    [(0, [2, 2, 2, 2]), (1, [3, 2, 3, 2]), (2, [2, 2, 2, 2]), (3, [3, 2, 3, 2])],
)
def test_each_rank_leaves_with_its_own_last_message(root: int, expected: list[float]) -> None:
    assert ends(relaying(), root) == pytest.approx(expected, abs=SOON)


def test_inside_a_host_the_root_leaves_before_those_who_send_on() -> None:
    # five ranks, each with a link of 1 GB/s: 0 sends three blocks at once, then 1 sends to 3
    assert ends(relaying((0,) * 5, pcie=1e9), 0) == pytest.approx([3, 4, 3, 4, 3])


def test_calls_cost_each_rank_their_floor_and_messages_a_hop() -> None:
    # the three steps of five ranks are paid in two rounds, so that the last pays all of them
    on = relaying((0,) * 5, pcie=1e9, floor=0.5, hop=0.1)
    assert ends(on, 0) == pytest.approx([3.65, 4.8, 3.65, 4.8, 3.65])
    assert on.collective("broadcast", "default", 1e9, range(5), 0).latency_s == pytest.approx(0.8)


@pytest.mark.parametrize("hosts", [TWO_BY_TWO, (0, 1, 0, 1), (0,) * 4, (0, 0, 0, 1, 1)])
def test_alone_the_last_rank_ends_with_the_price(hosts) -> None:
    """Hops hide behind bytes of others that cross the same link: the price does not count on that."""
    plain, hopping = relaying(hosts, floor=0.5), relaying(hosts, floor=0.5, hop=0.1)
    for root in range(len(hosts)):
        price = plain.collective("broadcast", "default", 1e9, range(len(hosts)), root)
        assert max(ends(plain, root)) == pytest.approx(price.seconds_alone, rel=1e-4)
        longer = hopping.collective("broadcast", "default", 1e9, range(len(hosts)), root)
        assert price.seconds_alone + 0.1 - SOON <= max(ends(hopping, root)) <= longer.seconds_alone + SOON


def test_early_messages_of_later_rounds_may_hold_up_others() -> None:
    """Four blocks go over from 2, 2, 3 and 3 and share the link for 4 s; then two come back. Round after round it would
    be 2 s (2 -> 4, 2 -> 6), 2 s (3 -> 5, 3 -> 7 and, meanwhile, 4 -> 0) and 1 s (5 -> 1)."""
    on = relaying((0, 0, 0, 0, 1, 1, 1, 1))
    assert ends(on, 2) == pytest.approx([6, 6, 4, 4, 6, 6, 4, 4], abs=SOON)
    assert on.collective("broadcast", "default", 1e9, range(8), 2).seconds_alone == pytest.approx(5, abs=SOON)


@pytest.mark.parametrize(
    ("late", "expected"),
    [
        (0, [11.0, 2.0, 11.0, 2.0]),  # behind 2: nobody else hears of it
        (3, [2.0, 11.0, 2.0, 11.0]),  # sent to by the root, which has the link for 2 alone meanwhile
        (2, [12.0, 11.0, 12.0, 1.0]),
        (1, [13.0, 12.0, 13.0, 12.0]),  # the root: all wait
    ],
)
def test_a_rank_waits_for_those_that_it_sends_to_or_hears_from(late: int, expected: list[float]) -> None:
    prog = one(work("w", 10.0, ranks="late"), op("b", "broadcast", "comm", after="w", root=1, transfer=BLOCK),
               hosts=TWO_BY_TWO, columns={"late": [int(rank == late) for rank in range(4)]})  # fmt: skip
    found = run(prog, relaying())
    assert [times(found, "b", rank)[2] for rank in range(4)] == pytest.approx(expected, abs=SOON)
    assert found.sum_by_rank("collective_bytes").tolist() == [0, 10**9, 0, 0]


def test_two_broadcasts_overlap_and_contend() -> None:
    # at 2 s rank 1 and 3 are through with the first, 2 -> 0 of it shares the way back with 3 -> 1 of the second
    prog = one(op("first", "broadcast", "comm", root=1, transfer=BLOCK),
               op("second", "broadcast", "comm", after="first", root=3, transfer=BLOCK), hosts=TWO_BY_TWO)  # fmt: skip
    found = run(prog, relaying())
    assert [times(found, "first", rank)[2] for rank in range(4)] == pytest.approx([4, 2, 4, 2], abs=SOON)
    assert [times(found, "second", rank)[2] for rank in range(4)] == pytest.approx([6, 4, 6, 5], abs=SOON)
    assert times(found, "second", 1)[1] == pytest.approx(4, abs=SOON), "through when the last comes: it only waited"


def test_a_message_beside_it_shares_the_link() -> None:
    streams = (Stream("comm", group="a"), Stream("other", group="b"))
    route = Route.from_matrix(np.array([[0, 0, 1, 0], *[[0] * 4] * 3]))
    prog = one(op("b", "broadcast", "comm", root=1, transfer=BLOCK),
               op("x", "exchange", "other", route="r", transfer=Transfer(10**9)),
               hosts=TWO_BY_TWO, streams=streams, routes={"r": route})  # fmt: skip
    found = run(prog, relaying())
    assert [times(found, "b", rank)[2] for rank in range(4)] == pytest.approx([4, 3, 4, 3], abs=SOON)
    assert times(found, "x", 0)[2] == pytest.approx(3, abs=SOON)


@pytest.mark.parametrize("factor", [0.25, 3.0, 1e3])
def test_rates_times_k_are_times_over_k(factor: float) -> None:
    ops = [op(f"b{root}", "broadcast", "comm", root=root, transfer=BLOCK) for root in range(4)]
    prog = one(*ops, hosts=TWO_BY_TWO)
    plain, faster = (run(prog, relaying(floor=0.1, hop=0.02, latency=1e-3, faster=k)) for k in (1.0, factor))
    assert faster.columns["ended_s"] * factor == pytest.approx(plain.columns["ended_s"], abs=1e-9 * max(factor, 1.0))


@pytest.mark.parametrize(("part", "roots"), [([1, 1, 1, 1], (0, 1, 2, 3)), ([1, 1, 0, 1], (3, 1, 0))])
def test_epochs_of_which_ranks_leave_one_by_one_are_fast_forwarded(part: list[int], roots: tuple[int, ...]) -> None:
    """Rank 1 opens an epoch while blocks of the one before are under way to others; a rank may have no part in it."""
    ops, before = [op("meet", "barrier", "other", after=f"w{roots[-1]}<<1")], "meet"
    for root in roots:
        ops += [op(f"b{root}", "broadcast", "comm", after=before, root=root, transfer=BLOCK, ranks="part"),
                work(f"w{root}", 0.25, f"b{root}", ranks="part")]  # fmt: skip
        before = f"w{root}"
    streams = (*STREAMS, Stream("other", group="b"))
    prog = program("blocks", {"epoch": ops}, Calendar("epoch"), [], streams, TWO_BY_TWO, columns={"part": part})
    fast = run(prog, relaying(floor=0.125), epochs=12)
    same(fast, run(prog, relaying(floor=0.125), epochs=12, fast_forward=False))
    assert sum(count for _, count in fast.copied) >= 6
    epoch, issued, ended = (fast.columns[name] for name in ("epoch", "issued_s", "ended_s"))
    assert issued[epoch == 5].min() < ended[epoch == 4].max(), "epochs overlap"


def test_jitter_delays_a_rank_by_those_that_it_waits_for() -> None:
    # the root sends to 2 and 3; that 0, behind 2, comes when it likes is nothing to it
    prog = one(work("w", 1.0), op("b", "broadcast", "comm", after="w", root=1, transfer=Transfer(1)),
               work("rest", 100.0, "b", ranks="root"), hosts=TWO_BY_TWO, columns={"root": [0, 1, 0, 0]})  # fmt: skip
    added = {}
    for algorithm in ("ring", "binomial"):
        where = jittery(relaying(broadcast=algorithm), jitter=0.1)
        found = run(prog, where)
        added[algorithm] = float(estimate_spread(found, where).added_s[0])
        origins = Origins(found.compiled, where, Sizes(prog, {}), None)
        awaited = origins.awaited(found.compiled.templates["epoch"].ops[1], Turn(0, 0, "epoch"))
    assert awaited is not None
    assert awaited.astype(int).tolist() == [[1, 1, 1, 0], [0, 1, 1, 1], [1, 1, 1, 0], [0, 1, 0, 1]]
    # the greatest of three and of four equal normal times, in standard deviations
    assert added["binomial"] == pytest.approx(0.8463 * 0.1, rel=0.03)
    assert added["ring"] == pytest.approx(1.0294 * 0.1, rel=0.03)
