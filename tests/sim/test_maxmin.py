"""The network in closed form: shares, caps, latencies, batches of ends, starved links."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.worlds import PS, flow_ends
from simgnn.errors import HardwareError
from simgnn.sim.network.flow_table import FlowTable
from simgnn.sim.network.max_min import fill, smallest
from simgnn.sim.network.network import WINDOW

TICK = 1.5 / PS


def rates(capacity: list[float], paths: list[dict[int, float]], caps: list[float], weights: list[float]) -> np.ndarray:
    """Rates of classes in the order in which they are given."""
    table = FlowTable(len(capacity))
    for position, (path, cap, weight) in enumerate(zip(paths, caps, weights, strict=True)):
        one = np.array([table.paths.intern(path)])
        table.join(0, one, np.array([weight]), np.array([cap]), np.ones(1), position, np.array([0, 1]))
    dirty = table.settle()
    found = fill(
        table.order,
        table.columns.ended,
        dirty,
        table.columns.cap,
        np.array(capacity),
        np.zeros(len(capacity)),
        table.crossings,
    )
    result = np.empty(len(paths))
    result[table.columns.owner[table.order]] = found[table.order]
    return result


def test_three_flows_by_hand() -> None:
    # link 0 (6) carries A and B, link 1 (10) carries B and C: A = B = 3, C takes the other 7
    assert rates([6.0, 10.0], [{0: 1.0}, {0: 1.0, 1: 1.0}, {1: 1.0}], [np.inf] * 3, [1.0] * 3).tolist() == [3, 3, 7]


def test_a_cap_leaves_its_share_to_others() -> None:
    assert rates([6.0], [{0: 1.0}, {0: 1.0}, {0: 1.0}], [1.0, np.inf, np.inf], [1.0] * 3).tolist() == [1, 2.5, 2.5]


def test_a_class_of_many_flows_counts_as_many() -> None:
    assert rates([12.0], [{0: 1.0}, {0: 1.0}], [np.inf] * 2, [3.0, 1.0]).tolist() == [3, 3]


def test_a_flow_may_take_a_link_twice() -> None:
    # two hops of one collective on a link: its rate counts double there
    assert rates([9.0], [{0: 2.0}, {0: 1.0}], [np.inf] * 2, [1.0] * 2).tolist() == [3, 3]


@st.composite
def networks(draw):
    links = draw(st.integers(1, 6))
    capacity = [draw(st.floats(0.5, 100.0)) for _ in range(links)]
    flows = draw(st.integers(1, 12))
    paths = [
        {link: draw(st.sampled_from([0.5, 1.0, 2.0])) for link in draw(st.sets(st.integers(0, links - 1), min_size=1))}
        for _ in range(flows)
    ]
    caps = [draw(st.one_of(st.just(np.inf), st.floats(0.1, 50.0))) for _ in range(flows)]
    weights = [float(draw(st.integers(1, 4))) for _ in range(flows)]
    return capacity, paths, caps, weights


@settings(max_examples=300, deadline=None)
@given(networks())
def test_max_min_holds(network) -> None:
    capacity, paths, caps, weights = network
    found = rates(capacity, paths, caps, weights)
    used = np.zeros(len(capacity))
    for rate, path, weight in zip(found, paths, weights, strict=True):
        for link, share in path.items():
            used[link] += rate * weight * share
    assert np.all(found > 0)
    assert np.all(used <= np.array(capacity) * (1 + 1e-9)), "a link carries more than it can"
    for position, (rate, path, cap) in enumerate(zip(found, paths, caps, strict=True)):
        capped = rate >= cap * (1 - 1e-9)
        bottleneck = any(
            used[link] >= capacity[link] * (1 - 1e-9)
            and all(found[k] <= rate * (1 + 1e-9) for k, other in enumerate(paths) if link in other)
            for link in path
        )
        assert capped or bottleneck, f"flow {position} could be faster without making a slower one slower"


def test_the_counterexample_to_monotony() -> None:
    # design section 5: capacities 1, 6, 10; A over links 1-2 size 1, B over 2-3 size 5, C over 3 size 5
    flows = [((0, 1), 1.0), ((1, 2), 5.0), ((2,), 5.0)]
    slow, fast = flow_ends([1.0, 6.0, 10.0], flows), flow_ends([2.0, 6.0, 10.0], flows)
    # B and C share link 3 at 5 each beside A's 1; with A at 2, B falls to 4 while C takes 6
    assert slow == pytest.approx([1.0, 1.0, 1.0], abs=TICK)
    # A ends at 1/2, when B has 3 left of 5 and C 2; both then get 5 each: C ends at 0.9, and B's last 1 takes 1/6
    assert fast == pytest.approx([0.5, 0.9 + 1.0 / 6.0, 0.9], abs=TICK)
    assert max(fast) > max(slow)


def test_a_flow_speeds_up_when_another_ends() -> None:
    # two flows share 2 bytes/s: 1 byte ends at 1 s, the other has 2 of 3 left and all of the link
    assert flow_ends([2.0], [((0,), 1.0), ((0,), 3.0)]) == pytest.approx([1.0, 2.0], abs=TICK)


def test_latency_is_paid_before_a_flow_shares() -> None:
    # alone until 1 s, then halved: 2 + 2 bytes at 2 bytes/s
    ends = flow_ends([2.0], [((0,), 3.0), ((0,), 1.0)], starts=[0.0, 1.0])
    assert ends == pytest.approx([2.0, 2.0], abs=TICK)


def test_messages_that_cross_no_link_are_bound_by_their_cap() -> None:
    assert flow_ends([1.0], [((), 6.0)], caps=[3.0]) == pytest.approx([2.0], abs=TICK)


def test_untouched_components_are_left_alone() -> None:
    # the second link's flow keeps its predicted end to the tick, whatever happens on the first
    many = [((0,), float(size)) for size in range(1, 20)]
    alone = flow_ends([3.0, 7.0], [((1,), 11.0)])
    assert flow_ends([3.0, 7.0], [*many, ((1,), 11.0)])[-1] == alone[0]


def test_a_link_without_bandwidth_is_named() -> None:
    with pytest.raises(HardwareError, match=r"link 1.*expected more than zero"):
        flow_ends([1.0, 0.0], [((0, 1), 1.0)])


def test_a_starved_link_is_finite_or_an_error() -> None:
    assert flow_ends([1e-3], [((0,), 1.0)]) == pytest.approx([1000.0])
    with pytest.raises(HardwareError, match="not end within"):
        flow_ends([1e-9], [((0,), 1.0)])


@settings(max_examples=50, deadline=None)
@given(networks(), st.sampled_from([2.0, 4.0, 1.0 / 8.0]), st.integers(0, 2**31))
def test_scaling_rates_scales_times(network, factor: float, seed: int) -> None:
    capacity, paths, caps, _ = network
    rng = np.random.default_rng(seed)
    flows = [(tuple(path), float(size)) for path, size in zip(paths, rng.integers(1, 1000, len(paths)), strict=True)]
    starts = rng.random(len(paths)).round(3)
    once = flow_ends(capacity, flows, starts=starts.tolist(), caps=caps)
    scaled = flow_ends(
        [c * factor for c in capacity], flows, starts=(starts / factor).tolist(), caps=[c * factor for c in caps]
    )
    # each of the few re-solves rounds to a tick
    assert np.array(scaled) * factor == pytest.approx(np.array(once), abs=4 * len(flows) * max(factor, 1.0) / PS)


def all_to_all(ranks: int, seed: int):
    """An uneven exchange on send and receive ports with a shared uplink, caps that depend on sizes, uneven starts."""
    rng = np.random.default_rng(seed)
    pairs = [(i, j) for i in range(ranks) for j in range(ranks) if i != j]
    sizes = rng.lognormal(12.0, 1.5, len(pairs))
    half = ranks // 2
    flows = [
        ((i, ranks + j, *((2 * ranks,) if (i < half) != (j < half) else ())), float(size))
        for (i, j), size in zip(pairs, sizes, strict=True)
    ]
    issue = rng.random(ranks) * 1e-4
    starts = [float(max(issue[i], issue[j])) for i, j in pairs]
    capacity = [2e9] * (2 * ranks) + [3e9]
    return pairs, capacity, flows, starts, list(2e9 * sizes / (sizes + 1e5))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ranks", [6, 20])
def test_batching_ends_costs_less_than_a_percent(ranks: int, seed: int) -> None:
    pairs, capacity, flows, starts, caps = all_to_all(ranks, seed)
    exact = np.array(flow_ends(capacity, flows, starts=starts, caps=caps))
    batched = np.array(flow_ends(capacity, flows, starts=starts, caps=caps, window=WINDOW))
    assert batched.max() == pytest.approx(exact.max(), rel=0.005)
    for rank in range(ranks):
        mine = [k for k, pair in enumerate(pairs) if rank in pair]
        assert batched[mine].max() == pytest.approx(exact[mine].max(), rel=0.01), "a rank's end"


@pytest.mark.parametrize("factor", [2.0, 1.0 / 16.0])
def test_batches_do_not_know_units_of_time(factor: float) -> None:
    _, capacity, flows, starts, caps = all_to_all(20, 0)
    once = np.array(flow_ends(capacity, flows, starts=starts, caps=caps, window=WINDOW))
    scaled = flow_ends(
        [c * factor for c in capacity], flows, starts=[s / factor for s in starts], caps=[c * factor for c in caps],
        window=WINDOW,
    )  # fmt: skip
    # a tick may move a flow from one batch to the next
    assert np.array(scaled) * factor == pytest.approx(once, rel=1e-3)


def test_a_shared_link_with_barriers_is_never_slower_when_doubled() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        sizes = rng.integers(1, 100, rng.integers(1, 8))
        rounds = [[((0,), float(size))] * int(rng.integers(1, 4)) for size in sizes]
        slow = sum(max(flow_ends([5.0], flows)) for flows in rounds)
        fast = sum(max(flow_ends([10.0], flows)) for flows in rounds)
        assert fast <= slow
        assert fast == pytest.approx(slow / 2)


@given(st.lists(st.integers(-5, 5) | st.integers(0, 2**62), min_size=1, max_size=40), st.data())
def test_the_value_at_a_rank_is_that_of_the_sorted_values(values, data):
    rank = data.draw(st.integers(0, len(values) - 1))
    assert smallest(np.array(values, dtype=np.int64), rank) == sorted(values)[rank]


@settings(max_examples=60, deadline=None)
@given(networks(), st.lists(st.tuples(st.booleans(), st.integers(0, 11)), min_size=1, max_size=60), st.integers(0, 99))
def test_a_table_kept_up_to_date_is_one_made_anew(network, changes, seed: int) -> None:
    """Classes join and end in any order; loads, components' rates and the order are those of a fresh table."""
    capacity, paths, caps, weights = network
    table, alive, joined = FlowTable(len(capacity)), [], 0
    known = np.full(0, -1.0)
    for joins, pick in changes * 3:
        if joins or not alive:
            kind = pick % len(paths)
            one = np.array([table.paths.intern(paths[kind])] * (1 + seed % 40))
            table.join(0, one, np.full(len(one), weights[kind]), np.full(len(one), caps[kind]), np.ones(len(one)),
                       joined, np.zeros(len(one) + 1, dtype=np.int64))  # fmt: skip
            alive.append((joined, kind))
            joined += 1
        else:
            gone, _ = alive.pop(pick % len(alive))
            table.leave(np.flatnonzero((table.columns.owner == gone) & ~table.columns.ended & np.isin(
                np.arange(len(table.columns.owner)), table.order)))  # fmt: skip
        dirty = table.settle()
        found = fill(
            table.order,
            table.columns.ended,
            dirty,
            table.columns.cap,
            np.array(capacity),
            np.zeros(len(capacity)),
            table.crossings,
        )
        table.columns.rate[:] = np.where(found >= 0, found, table.columns.rate)
        known = table.columns.rate[table.order]
    fresh = FlowTable(len(capacity))
    for number, kind in alive:
        one = np.array([fresh.paths.intern(paths[kind])] * (1 + seed % 40))
        fresh.join(0, one, np.full(len(one), weights[kind]), np.full(len(one), caps[kind]), np.ones(len(one)), number,
                   np.zeros(len(one) + 1, dtype=np.int64))  # fmt: skip
    dirty = fresh.settle()
    found = fill(
        fresh.order,
        fresh.columns.ended,
        dirty,
        fresh.columns.cap,
        np.array(capacity),
        np.zeros(len(capacity)),
        fresh.crossings,
    )
    assert table.columns.owner[table.order].tolist() == fresh.columns.owner[fresh.order].tolist()
    assert known == pytest.approx(found[fresh.order], rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_batching_at_64_ranks_with_32_peers_costs_less_than_a_percent(seed: int) -> None:
    pairs, capacity, flows, starts, caps = all_to_all(64, seed)
    near = [k for k, (i, j) in enumerate(pairs) if min(abs(i - j), 64 - abs(i - j)) <= 16]
    flows, starts, caps = [flows[k] for k in near], [starts[k] for k in near], [caps[k] for k in near]
    exact = np.array(flow_ends(capacity, flows, starts=starts, caps=caps))
    batched = np.array(flow_ends(capacity, flows, starts=starts, caps=caps, window=WINDOW))
    ends = np.zeros((2, 64))
    for place, k in enumerate(near):
        for rank in pairs[k]:
            ends[:, rank] = np.maximum(ends[:, rank], (exact[place], batched[place]))
    assert ends[1] == pytest.approx(ends[0], rel=0.01), "a rank's end"
