"""What links carry: closed forms on small machines, and the sum that follows from the traffic between ranks."""

import numpy as np
import pytest
from programs.notation import op, program

from sim.planned import shipped, spread, statistics, vanilla
from sim.worlds import machine, run
from simgnn.hardware.price.machine import Machine
from simgnn.program.calendar import Calendar
from simgnn.program.ops import Stream, Transfer
from simgnn.program.program import Program
from simgnn.record.traffic import LinkTraffic, traffic_by_rank
from simgnn.sim.link_traffic import traffic_by_link
from simgnn.sim.simulate import Simulation


def one_op(kind: str, hosts: tuple[int, ...], **fields: object) -> Program:
    ops = [op("it", kind, "comm", transfer=Transfer(1000), **fields)]
    return program("p", {"epoch": ops}, Calendar("epoch"), [], [Stream("comm", group="all")], hosts)


def links(simulation: Simulation, on: Machine) -> dict[str, LinkTraffic]:
    return {one.link: one for one in traffic_by_link(simulation, on, {})}


def total(simulation: Simulation) -> float:
    return sum(traffic_by_rank(simulation.program, simulation.columns, simulation.payload_epochs).total)


def test_a_ring_crosses_each_host_once_in_each_direction() -> None:
    on = machine((0, 0, 1, 1))
    found = run(one_op("allreduce", (0, 0, 1, 1)), on, epochs=4)
    each = 1.5 * 1000  # 2 (P - 1) / P of the buffer along each of the four edges of the ring
    assert total(found) == pytest.approx(4 * each)
    carried = links(found, on)
    # two edges inside hosts cross two links of pcie; two between hosts cross two of pcie and two of ethernet
    assert carried["pcie"].total_bytes == pytest.approx(8 * each)
    assert carried["ethernet"].total_bytes == pytest.approx(4 * each)
    assert carried["ethernet"].busiest_bytes == pytest.approx(each)
    assert carried["ethernet"].busiest == "node0/nic -> net"


@pytest.mark.parametrize("algorithm", ["ring", "tree", "binomial"])
def test_a_broadcast_counts_what_each_link_carries(algorithm: str) -> None:
    on = machine((0, 1, 2), broadcast=algorithm)
    found = run(one_op("broadcast", (0, 1, 2), root=0), on, epochs=1)
    assert total(found) == 2 * 1000, "two ranks get the block"
    assert links(found, on)["ethernet"].total_bytes == 2 * total(found), "it leaves one host and enters another"


@pytest.mark.parametrize("profile", ["cpu-25gbe-4", "p100-10gbe-4x2"])
def test_every_byte_between_hosts_crosses_two_links_of_a_star(profile: str) -> None:
    hosts = spread(4, 4)
    stats, on = statistics(hosts), shipped(profile, hosts)
    found = run(vanilla(stats), on, epochs=4, stats=stats)
    carried = links(found, on)
    assert carried["ethernet"].total_bytes == pytest.approx(2 * total(found))
    assert carried["ethernet"].busiest_bytes <= max(
        traffic_by_rank(found.program, found.columns, found.payload_epochs).total
    ) + np.max(found.bytes_sent().sum(axis=0))


def test_copies_to_and_from_gpus_cross_their_links_too() -> None:
    hosts = spread(4, 4)
    stats, on = statistics(hosts), shipped("p100-10gbe-4x2", hosts)
    assert on.through_host(0, "default"), "its messages go through host memory"
    found = run(vanilla(stats), on, epochs=4, stats=stats)
    carried = links(found, on)
    inside = [one for name, one in carried.items() if name != "ethernet"]
    assert sum(one.total_bytes for one in inside) > 2 * total(found)
