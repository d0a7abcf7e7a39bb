"""Prices in bulk equal prices one by one, and ops outside the measured range are named."""

import numpy as np
import pytest

from sim.planned import shipped, spread, statistics, vanilla
from sim.worlds import machine, run
from simgnn.errors import HardwareError
from simgnn.hardware.price.host_copies import host_route
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.messages import price_messages
from simgnn.hardware.profile.profile import parse_profile
from simgnn.units import format_quantity


@pytest.mark.parametrize("name", ["a800-pcie-ib-2x8", "cpu-100gbe-8"])
def test_many_messages_cost_what_each_costs(name: str) -> None:
    hosts = spread(8, 2)
    profile = shipped(name, hosts).profile
    table = profile.to_table()
    points = [{"size": "1 KiB", "share": "10 %"}, {"size": "1 MiB", "share": "90 %"}]
    for library in table["backends"].values():
        library["message"]["efficiency"] = {"source": "assumed", "points": points}
    for link in list(table["links"].values())[:1]:
        link["bandwidth"]["range"] = [format_quantity(1e3, "bytes"), format_quantity(1e6, "bytes")]
        link["efficiency"] = {"source": "assumed", "points": points[::-1][:1]}
    on = Machine.place(parse_profile(table), hosts)
    pairs = [(i, j) for i in range(8) for j in range(8) if i != j]
    sizes = np.random.default_rng(0).lognormal(10.0, 4.0, len(pairs))
    found = price_messages(on, [i for i, _ in pairs], [j for _, j in pairs], sizes, "default")
    for k, (i, j) in enumerate(pairs):
        one = on.message(i, j, float(sizes[k]))
        assert found.latency_s[k] == pytest.approx(one.latency_s, rel=1e-12)
        assert found.rate_bytes_per_s[k] == pytest.approx(one.rate_bytes_per_s, rel=1e-9)
        assert found.extrapolated[k] == one.extrapolated


def test_ops_outside_what_was_measured_are_named() -> None:
    hosts = spread(4, 2)
    stats = statistics(hosts)
    prog = vanilla(stats)
    table = shipped("cpu-100gbe-8", hosts).profile.to_table()
    for curve in table["devices"]["cpu"]["curves"]:
        curve["concurrency"], curve["threads"] = 2, 24
        if curve["primitive"] == "optimizer":
            curve["range"] = {"elements": ["1 elements", "2 elements"]}
    found = run(prog, Machine.place(parse_profile(table), hosts), stats=stats)
    assert found.extrapolated == ("update/optimize",)
    assert found.uncalibrated


def test_a_gpu_that_cannot_reach_host_memory_is_named() -> None:
    table = machine((0,)).profile.to_table()
    table["topology"]["hosts"]["node"]["nodes"]["switch"] = "nvswitch"
    with pytest.raises(HardwareError, match="'node/dev' has no link to the memory of its host"):
        host_route(Machine.place(parse_profile(table), (0,)), 0, True)


def test_nothing_is_flagged_without_ranges() -> None:
    stats = statistics([0])
    assert run(vanilla(stats), machine((0,)), stats=stats).extrapolated == ()
