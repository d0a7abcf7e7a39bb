"""Collectives in closed form, and which description is read for a group."""

from typing import Any

import pytest

from simgnn.errors import HardwareError
from simgnn.hardware.price.collectives import binomial_rounds, bytes_moved, flow_bytes, flow_pairs, steps
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.operations import read_question
from simgnn.hardware.profile.profile import Profile, parse_profile
from simgnn.sim.one_op import time_op


@pytest.mark.parametrize(
    ("kind", "algorithm", "ranks", "expected"),
    [
        ("allreduce", "ring", 4, 6),
        ("allreduce", "tree", 5, 6),
        ("allgather", "ring", 8, 7),
        ("broadcast", "tree", 8, 3),
        ("broadcast", "ring", 8, 7),
        ("broadcast", "binomial", 5, 3),
        ("barrier", "tree", 3, 2),
        ("exchange", "pairwise", 8, 7),
        ("allreduce", "ring", 1, 0),
    ],
)
def test_steps(kind: str, algorithm: str, ranks: int, expected: int) -> None:
    assert steps(kind, algorithm, ranks) == expected


@pytest.mark.parametrize("kind", ["allreduce", "broadcast", "allgather"])
@pytest.mark.parametrize("algorithm", ["ring", "tree"])
@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8])
def test_flows_carry_at_least_what_must_arrive(kind: str, algorithm: str, ranks: int) -> None:
    nbytes = 1000.0
    pairs = flow_pairs(kind, algorithm, list(range(ranks)), 0)
    each = flow_bytes(kind, algorithm, ranks, nbytes)
    assert len(set(pairs)) == len(pairs)
    arriving = {rank: each * sum(target == rank for _, target in pairs) for rank in range(ranks)}
    needed = {"allreduce": nbytes * (ranks - 1) / ranks, "broadcast": nbytes, "allgather": nbytes * (ranks - 1)}[kind]
    for rank in range(1 if kind == "broadcast" else 0, ranks):
        assert arriving[rank] >= needed - 1e-9


def test_a_broadcast_starts_at_its_root() -> None:
    assert flow_pairs("broadcast", "ring", [0, 1, 2, 3], 2) == [(2, 3), (3, 0), (0, 1)]
    assert flow_pairs("broadcast", "tree", [0, 1, 2, 3], 2) == [(2, 3), (2, 0), (3, 1)]


def test_a_binomial_broadcast_counts_from_its_root() -> None:
    assert binomial_rounds(range(4), 0) == [[(0, 1), (0, 2)], [(1, 3)]]
    assert binomial_rounds(range(4), 1) == [[(1, 2), (1, 3)], [(2, 0)]]
    assert binomial_rounds([3, 5, 6, 7, 9], 5) == [[(5, 6), (5, 7), (5, 3)], [(6, 9)]]
    assert binomial_rounds([4], 4) == []


@pytest.mark.parametrize("ranks", range(1, 18))
def test_in_a_binomial_broadcast_each_gets_the_buffer_once_from_one_who_has_it(ranks: int) -> None:
    for root in range(ranks):
        having = {root}
        for pairs in binomial_rounds(range(ranks), root):
            assert {source for source, _ in pairs} <= having
            targets = [target for _, target in pairs]
            assert len(set(targets)) == len(targets)
            assert not having & set(targets)
            having.update(targets)
        assert having == set(range(ranks))


@pytest.mark.parametrize("root", range(4))
def test_ranks_of_a_binomial_broadcast_do_not_ask_where_the_others_are(cluster: Profile, root: int) -> None:
    """From rank 0 of two hosts of two the buffer leaves its host in both rounds; from rank 1 twice at once, and then
    comes back."""
    table = cluster.to_table()
    entry = next(found for found in table["backends"]["gloo"]["collectives"] if found["kind"] == "broadcast")
    entry["algorithm"] = "binomial"
    entry["bus_bandwidth"] = {"value": "1000 GB/s", "source": "assumed"}  # so that links decide
    machine = Machine.place(parse_profile(table), [0, 0, 1, 1])
    nbytes = 1e8
    price = machine.collective("broadcast", "gloo", nbytes, range(4), root)
    link, port = nbytes / 1.25e9, nbytes / 2e9
    seconds = max(link, 2 * port) + link if root % 2 == 0 else 2 * link + link
    assert price.seconds_alone == pytest.approx(50e-6 + 2 * 30e-6 + seconds)
    assert price.relay is not None
    assert (price.relay.call_s, price.relay.hop_s) == pytest.approx((50e-6, 30e-6))
    assert [len(flows) for flows in price.relay.rounds] == [2, 1]
    assert price.flows == (*price.relay.rounds[0], *price.relay.rounds[1])
    assert {flow.nbytes for flow in price.flows} == {nbytes}
    # the library's own time, two thirds of it while the root sends twice
    assert [flow.rate_bytes_per_s for flow in price.flows] == pytest.approx([1.5e12, 1.5e12, 3e12])


@pytest.mark.parametrize("root", range(4))
def test_a_binomial_broadcast_that_was_measured_takes_as_long_as_measured(cluster: Profile, root: int) -> None:
    """Though links would take longer; who leaves after the first round has taken two thirds of it."""
    table = cluster.to_table()
    entry = next(found for found in table["backends"]["gloo"]["collectives"] if found["kind"] == "broadcast")
    entry |= {"algorithm": "binomial", "ranks": [4], "bus_bandwidth": {"value": "3 GB/s", "source": "measured"}}
    machine = Machine.place(parse_profile(table), [0, 0, 1, 1])
    question = read_question("broadcast", {"bytes": "300 MB", "root": str(root)}, ranks=4)
    found = time_op(question, machine)
    price = machine.collective("broadcast", "gloo", 3e8, range(4), root)
    assert price.seconds_alone == pytest.approx(50e-6 + 2 * 30e-6 + 0.1)
    assert found.seconds == pytest.approx(price.seconds_alone)
    first = 50e-6 + 30e-6 + 0.1 * 2 / 3
    expected = [first, price.seconds_alone, first, price.seconds_alone]  # counted from the root
    assert [found.per_rank_s[(root + place) % 4] for place in range(4)] == pytest.approx(expected)


def test_only_broadcasts_are_binomial(cluster: Profile) -> None:
    table = cluster.to_table()
    next(f for f in table["backends"]["gloo"]["collectives"] if f["kind"] == "allreduce")["algorithm"] = "binomial"
    with pytest.raises(HardwareError, match="'binomial' is only for broadcasts; got kind 'allreduce'"):
        parse_profile(table)


def test_measured_allreduce_in_closed_form(server: Profile) -> None:
    machine = Machine.place(server, [0, 0])
    price = machine.collective("allreduce", "nccl", 1e9, [0, 1])
    assert price.latency_s == pytest.approx(10e-6 + 2 * 1e-6)
    assert price.seconds_alone == pytest.approx(price.latency_s + 1e9 / 5e9)  # 2(P-1)/P = 1, residual 100 %
    assert price.seconds_alone == pytest.approx(
        price.latency_s + price.flows[0].nbytes / price.flows[0].rate_bytes_per_s
    )
    assert not price.extrapolated
    small = machine.collective("allreduce", "nccl", 1e3, [0, 1])
    assert small.seconds_alone == pytest.approx(small.latency_s + 2 * 1e3 / 5e9)
    assert machine.collective("allreduce", "nccl", 10, [0, 1]).extrapolated


def test_rank_counts_that_were_not_measured_are_flagged(server: Profile) -> None:
    machine = Machine.place(server, [0, 0, 0, 0, 1, 1, 1, 1])
    assert not machine.collective("allreduce", "nccl", 1e6, range(4)).extrapolated
    assert machine.collective("allreduce", "nccl", 1e6, range(3)).extrapolated
    assert machine.collective("allreduce", "nccl", 1e6, range(8)).extrapolated


def test_without_bus_bandwidth_the_links_decide(cluster: Profile) -> None:
    machine = Machine.place(cluster, [0, 0, 1, 1])
    nbytes = 1e8
    price = machine.collective("allreduce", "gloo", nbytes, range(4))
    each = 2 * 3 / 4 * nbytes
    # ring 0-1-2-3-0: one flow each way between the hosts, at 10 Gbit/s
    assert price.seconds_alone == pytest.approx(50e-6 + 6 * 30e-6 + each / 1.25e9)
    assert {(flow.source, flow.target) for flow in price.flows} == {(0, 1), (1, 2), (2, 3), (3, 0)}
    shuffled = machine.collective("allreduce", "gloo", nbytes, [2, 0, 3, 1])
    assert shuffled.seconds_alone == price.seconds_alone


def test_a_measured_collective_takes_what_was_measured(server: Profile) -> None:
    """Even where the links, as measured with something else, would be slower: flows are lightened to fit them."""
    table = server.to_table()
    entry = table["backends"]["nccl"]["collectives"][0]
    entry["bus_bandwidth"] = {"value": "15 GB/s", "source": "measured", "spread": "1 %"}
    del entry["residual"]
    machine = Machine.place(parse_profile(table), [0] * 4)
    price = machine.collective("allreduce", "nccl", 1e9, range(4))
    assert price.seconds_alone - price.latency_s == pytest.approx(1.5e9 / 15e9)
    shared = sum(flow.nbytes for flow in price.flows if {flow.source, flow.target} in ({1, 2}, {3, 0}))
    assert shared / 10e9 == pytest.approx(1.5e9 / 15e9)  # both ways over the half-duplex link, just as long
    assert not price.extrapolated
    extrapolated = machine.collective("allreduce", "nccl", 1e9, [0, 1, 2])
    assert extrapolated.extrapolated
    assert extrapolated.seconds_alone - extrapolated.latency_s == pytest.approx(2 * 4 / 3 * 1e9 / 10e9)


def test_ring_bytes_of_all_ranks_share_the_loopback(cluster: Profile) -> None:
    machine = Machine.place(cluster, [0] * 16)
    price = machine.collective("allreduce", "gloo", 1e8, range(16))
    total = 16 * bytes_moved("allreduce", 16, 1e8)
    assert price.seconds_alone - price.latency_s == pytest.approx(total / 16e9)


def test_no_bytes_and_one_rank_cost_the_latency_only(cluster: Profile) -> None:
    machine = Machine.place(cluster, [0, 0])
    assert machine.collective("barrier", "gloo", 0, [0, 1]).flows == ()
    alone = machine.collective("allreduce", "gloo", 1e6, [0])
    assert (alone.seconds_alone, alone.flows) == (50e-6, ())
    assert machine.collective("allreduce", "gloo", 0, [0, 1]).seconds_alone == pytest.approx(50e-6 + 2 * 30e-6)


def test_an_exchange_has_a_floor_and_a_hop(cluster: Profile) -> None:
    machine = Machine.place(cluster, [0, 0, 1])
    assert machine.call("exchange", "default", range(3)) == (50e-6, 5e-6, None, False)


def test_scope_comes_before_any(server: Profile) -> None:
    table = server.to_table()
    entry = table["backends"]["nccl"]["collectives"][0]
    across = {**entry, "scope": "cluster", "floor": {"value": "99 us", "source": "assumed"}}
    table["backends"]["nccl"]["collectives"].append(across)
    machine = Machine.place(parse_profile(table), [0, 0, 1, 1])
    assert machine.call("allreduce", "nccl", [0, 1]).floor_s == 10e-6
    assert machine.call("allreduce", "nccl", [0, 1, 2, 3]).floor_s == 99e-6


def test_a_hop_that_was_not_measured_is_the_longest_of_the_ring(server: Profile) -> None:
    table = server.to_table()
    del table["backends"]["nccl"]["collectives"][0]["hop"]
    machine = Machine.place(parse_profile(table), [0, 0, 0])
    assert machine.call("allreduce", "nccl", [0, 1, 2]).hop_s == pytest.approx(4e-6 + 7e-6)


def test_a_missing_collective_is_named(server: Profile) -> None:
    machine = Machine.place(server, [0, 0])
    with pytest.raises(HardwareError, match=r"backends\.nccl\.collectives: no 'broadcast' for groups inside a host"):
        machine.collective("broadcast", "nccl", 1.0, [0, 1])


def allreduces(profile: Profile, changes: list[dict[str, object]], choices: list[dict[str, object]]) -> Machine:
    """The profile's all-reduce, changed in several ways, on two hosts of two."""
    table = profile.to_table()
    nccl = table["backends"]["nccl"]
    plain = {
        "kind": "allreduce",
        "floor": {"value": "10 us", "source": "assumed"},
        "hop": {"value": "1 us", "source": "assumed"},
        "bus_bandwidth": {"value": "1 GB/s", "source": "assumed"},
    }
    nccl["collectives"] = [{**plain, **change} for change in changes]
    nccl["choices"] = choices
    return Machine.place(parse_profile(table), [0, 0, 1, 1])


def test_every_round_of_a_ring_pays_its_hops(server: Profile) -> None:
    machine = allreduces(server, [{"chunk": "1 MB"}], [])
    for nbytes, rounds in ((4e6, 1), (4.1e6, 2), (12e6, 3)):
        price = machine.collective("allreduce", "nccl", nbytes, range(4))
        assert price.latency_s == pytest.approx(10e-6 + 7 * (rounds + 0.5) * 1e-6)
    assert machine.collective("allreduce", "nccl", 1e6, [0]).latency_s == pytest.approx(10e-6)


def test_the_library_takes_a_tree_where_it_expects_more_of_it(server: Profile) -> None:
    shares = [{"size": "1 MB", "share": "50 %"}, {"size": "8 MB", "share": "80 %"}, {"size": "16 MB", "share": "50 %"}]
    choice = {"scope": "cluster", "source": "published", "tree_over_ring": "90 %", "shares": shares}
    faster = {"scope": "cluster", "algorithm": "tree", "bus_bandwidth": {"value": "2 GB/s", "source": "assumed"}}
    machine = allreduces(server, [{"scope": "cluster", "algorithm": "ring"}, faster], [choice])
    for nbytes, way in ((1e5, "ring"), (4e6, "ring"), (8e6, "tree"), (15e6, "tree"), (16e6, "ring")):
        price = machine.collective("allreduce", "nccl", nbytes, range(4))
        steps_, moved, rate = (4, nbytes, 2e9) if way == "tree" else (6, 1.5 * nbytes, 1e9)
        assert price.seconds_alone == pytest.approx(10e-6 + steps_ * 1e-6 + moved / rate), nbytes
    # of two ranks a ring passes as much as a tree of nine tenths never can
    assert machine.collective("allreduce", "nccl", 8e6, [0, 2]).latency_s == pytest.approx(10e-6 + 2e-6)
    table = server.to_table()
    table["backends"]["nccl"]["choices"] = [{**choice, "shares": shares[::-1]}]
    with pytest.raises(HardwareError, match="strictly ascending sizes"):
        parse_profile(table)


def test_ranks_of_a_rail_share_its_bandwidth(server: Profile) -> None:
    slow = {"bus_bandwidth": {"value": "1 MB/s", "source": "assumed"}}
    for each, rails in ((1, 2), (2, 1), (4, 1)):
        machine = allreduces(server, [{**slow, "ranks_per_rail": each}], [])
        price = machine.collective("allreduce", "nccl", 1e6, range(4))
        assert price.seconds_alone - price.latency_s == pytest.approx(1.5 / rails)


def test_a_measured_group_comes_before_all_groups_together(server: Profile) -> None:
    named = [
        {"ranks": ranks, "floor": {"value": f"{place} us", "source": "assumed"}}
        for place, ranks in enumerate([[2], [4], [2, 4]], 1)
    ]
    machine = allreduces(server, named, [])
    floors = [machine.call("allreduce", "nccl", range(ranks)).floor_s for ranks in (2, 3, 4)]
    assert floors == pytest.approx([1e-6, 3e-6, 2e-6])
    assert [machine.call("allreduce", "nccl", range(ranks)).extrapolated for ranks in (2, 3, 4)] == [False, True, False]


def test_bytes_that_pass_at_once_take_no_time_of_their_own(table: dict[str, Any]) -> None:
    table["links"]["nvlink"]["burst"] = {"value": "1 MB", "source": "assumed"}
    entry = table["backends"]["nccl"]["collectives"][0]
    del entry["bus_bandwidth"], entry["residual"]
    machine = Machine.place(parse_profile(table), [0, 0])
    small, large = (machine.collective("allreduce", "nccl", nbytes, [0, 1]) for nbytes in (1e3, 3e6))
    assert small.seconds_alone == small.latency_s
    assert large.seconds_alone == pytest.approx(large.latency_s + 2e6 / 100e9)
    for text, price in (("1 kB", small), ("3 MB", large)):
        question = read_question("allreduce", {"bytes": text}, ranks=2)
        assert time_op(question, machine).seconds == pytest.approx(price.seconds_alone, abs=1e-11)
