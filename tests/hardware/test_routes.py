"""Routes and messages on the invented server, in closed form."""

import time

import numpy as np
import pytest

from simgnn.errors import HardwareError
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.messages import price_messages
from simgnn.hardware.profile.profile import Profile, parse_profile


@pytest.fixture(scope="module")
def machine(server: Profile) -> Machine:
    return Machine.place(server, [0, 0, 0, 0, 1, 1, 1, 1])


def names(machine: Machine, i: int, j: int) -> list[str]:
    return [machine.links[link].name for link in machine.path(i, j).links]


def test_ranks_take_the_gpus_of_their_host_in_order(server: Profile) -> None:
    placed = Machine.place(server, [1, 0, 1])
    assert placed.devices == ("node1/left0", "node0/left0", "node1/left1")
    assert placed.memory_bytes(0) == 10 * 2**30
    assert placed.power(0) == (50.0, 250.0)
    assert placed.cores(0) is None


def test_nvlink_is_nearer_than_the_switch(machine: Machine) -> None:
    assert names(machine, 0, 1) == ["node0/left0 -> node0/left1"]
    assert machine.path(0, 1).latency_s == 1e-6
    assert machine.message(0, 1, 1e6) == (pytest.approx(5e-6), 100e9, False)


def test_through_two_switches(machine: Machine) -> None:
    path = machine.path(0, 2)
    assert names(machine, 0, 2) == [
        "node0/left0 -> node0/switch0",
        "node0/switch0 -- node0/switch1",
        "node0/switch1 -> node0/right0",
    ]
    assert path.latency_s == pytest.approx(2e-6 + 3e-6 + 2e-6, rel=1e-12)
    assert machine.message(0, 2, 1e9).rate_bytes_per_s == 10e9


def test_between_hosts(machine: Machine) -> None:
    assert names(machine, 2, 4) == [
        "node0/right0 -> node0/switch1",
        "node0/switch0 -- node0/switch1",
        "node0/switch0 -> node0/nic",
        "node0/nic -> spine",
        "spine -> node1/nic",
        "node1/nic -> node1/switch0",
        "node1/switch0 -> node1/left0",
    ]
    price = machine.message(2, 4, 1e6)
    assert price.latency_s == pytest.approx((2 + 3 + 2 + 5 + 5 + 2 + 2 + 4) * 1e-6, rel=1e-12)
    assert price.rate_bytes_per_s == 8e9


def test_half_duplex_is_one_object_and_full_duplex_two(machine: Machine) -> None:
    there, back = set(machine.path(0, 2).links), set(machine.path(2, 0).links)
    assert {machine.links[link].name for link in there & back} == {"node0/switch0 -- node0/switch1"}
    assert there.isdisjoint(machine.path(1, 3).links) is False


def test_links_of_every_copy_are_their_own(machine: Machine) -> None:
    assert set(machine.path(0, 2).links).isdisjoint(machine.path(4, 6).links)
    assert len({link.name for link in machine.links}) == len(machine.links)


def test_size_efficiency_of_a_message(machine: Machine) -> None:
    # pcie reaches 10 % of 20 GB/s at 1 kB and all of it from 1 MB; the half-duplex link allows 10 GB/s
    assert machine.message(0, 2, 1e3).rate_bytes_per_s == pytest.approx(2e9)
    assert machine.message(0, 2, 1e6).rate_bytes_per_s == 10e9
    middle = machine.message(0, 2, 1e4).rate_bytes_per_s
    assert 2e9 < middle < 10e9
    assert machine.message(0, 2, 10).extrapolated
    assert not machine.message(0, 2, 1e4).extrapolated


def test_equal_paths_are_one_object(machine: Machine) -> None:
    assert machine.path(0, 5) is machine.path(0, 5)
    assert machine.route(0, 5) is machine.network.route("node0/left0", "node1/left1")


def test_routes_do_not_depend_on_the_order_of_edges(server: Profile) -> None:
    table = server.to_table()
    table["topology"]["hosts"]["node"]["edges"].reverse()
    table["topology"]["hosts"]["node"]["nodes"] = dict(reversed(table["topology"]["hosts"]["node"]["nodes"].items()))
    hosts = [0, 0, 0, 0, 1, 1, 1, 1]
    one, other = Machine.place(server, hosts), Machine.place(parse_profile(table), hosts)
    assert one.links == other.links
    assert all(one.path(i, j) == other.path(i, j) for i in range(8) for j in range(8) if i != j)


def test_equal_latency_takes_fewer_hops_then_the_wider_way(server: Profile) -> None:
    """Two ways of equal latency from left0 to right0: the wider one wins, whatever its name."""
    table = server.to_table()
    host = table["topology"]["hosts"]["node"]
    host["nodes"] = {"narrow": "pcie-switch", "wide": "pcie-switch", "nic": "nic"}
    host["edges"] = [
        {"between": [end, middle], "link": "pcie" if middle == "narrow" else "broad"}
        for end in ("left", "right")
        for middle in ("narrow", "wide")
    ] + [{"between": ["wide", "nic"], "link": "pcie"}]
    table["links"]["broad"] = {**table["links"]["pcie"], "bandwidth": {"value": "30 GB/s", "source": "assumed"}}
    machine = Machine.place(parse_profile(table), [0] * 4)
    assert names(machine, 0, 2) == ["node0/left0 -> node0/wide", "node0/wide -> node0/right0"]


def test_ranks_of_a_cpu_host_share_the_loopback_and_have_ports(cluster: Profile) -> None:
    machine = Machine.place(cluster, [0, 0, 1])
    assert names(machine, 0, 1) == ["rank 0 gloo send", "host0/cpu", "rank 1 gloo receive"]
    assert machine.path(0, 1).links[1] == machine.path(1, 0).links[1]
    assert names(machine, 0, 2)[0] == "rank 0 gloo send"
    assert names(machine, 0, 2)[-1] == "rank 2 gloo receive"
    assert machine.message(0, 2, 1e6).rate_bytes_per_s == 1.25e9
    assert machine.message(0, 1, 1e6).rate_bytes_per_s == 2e9
    assert machine.cores(0) == 8.0
    assert machine.threads_per_rank == (4, 4, 8)


@pytest.mark.parametrize(
    ("hosts", "told"),
    [([0, 8], "got ranks on host 8"), ([-1], "host -1"), ([], "got no ranks")],
)
def test_ranks_that_do_not_fit(cluster: Profile, hosts: list[int], told: str) -> None:
    with pytest.raises(HardwareError, match=told):
        Machine.place(cluster, hosts)


def test_more_ranks_than_gpus(server: Profile) -> None:
    with pytest.raises(HardwareError, match=r"got 5 ranks on host 'node0', which has 4 GPUs"):
        Machine.place(server, [0] * 5)


def test_unknown_backend(server: Profile) -> None:
    machine = Machine.place(server, [0, 0])
    with pytest.raises(
        HardwareError, match=r"backends\.gloo: the profile 'invented-server' does not describe this library"
    ):
        machine.message(0, 1, 1.0, "gloo")


def test_sixty_four_ranks_are_laid_out_quickly(cluster: Profile) -> None:
    import networkx  # noqa: F401  its import is not what is timed

    started = time.perf_counter()
    machine = Machine.place(cluster, [rank // 8 for rank in range(64)])
    paths = {machine.path(i, j) for i in range(64) for j in range(64) if i != j}
    assert len(paths) == 64 * 63
    assert time.perf_counter() - started < 1.0


@pytest.mark.parametrize("nbytes", [1e3, 3e4, 1e8])
@pytest.mark.parametrize("wire", [100.0, 1.0])
def test_copies_through_host_memory_add_up_each_at_its_own_efficiency(
    server: Profile, nbytes: float, wire: float
) -> None:
    """GPUs without peer access: a small message reaches a part of the left one's link, and all of the right one's."""
    table = server.to_table()
    table["devices"]["fast"]["peer_to_peer"] = False
    table["links"]["shared"]["bandwidth"]["value"] = f"{wire} GB/s"
    table["links"]["plain"] = {**table["links"]["pcie"], "bandwidth": {"value": "10 GB/s", "source": "assumed"}}
    del table["links"]["plain"]["efficiency"]
    table["topology"]["hosts"]["node"]["edges"][1]["link"] = "plain"
    machine = Machine.place(parse_profile(table), [0] * 4)
    efficiency = machine.profile.links["pcie"].efficiency
    assert efficiency is not None
    left, right, between = 20e9 * efficiency.at(nbytes), 10e9, wire * 1e9
    # to the sender's memory, then over both switches to the receiver
    expected = {
        (0, 2): 1 / (1 / left + 1 / min(between, right)),
        (2, 0): 1 / (1 / right + 1 / min(between, left)),
    }
    many = price_messages(machine, [0, 2], [2, 0], np.array([nbytes] * 2), "nccl")
    for number, ((i, j), rate) in enumerate(expected.items()):
        assert machine.message(i, j, nbytes).rate_bytes_per_s == pytest.approx(rate)
        assert many.rate_bytes_per_s[number] == pytest.approx(rate)
        assert not many.extrapolated[number]
