"""Malformed profiles: each fault is told with its key path, what was expected, and the nearest name; all at once."""

from collections.abc import Callable
from typing import Any

import pytest

from simgnn.errors import HardwareError
from simgnn.hardware.profile.profile import find_problems, parse_profile

Table = dict[str, Any]
Spoil = Callable[[Table], Any]


def host(table: Table) -> Table:
    found: Table = table["topology"]["hosts"]["node"]
    return found


def curve(table: Table, number: int = 0) -> Table:
    found: Table = table["devices"]["fast"]["curves"][number]
    return found


def load(*messages: int) -> Table:
    return {"source": "measured", "queues": [{"messages": count, "size": "90 kB"} for count in messages]}


FAULTS: dict[str, tuple[Spoil, str]] = {
    "unknown unit": (
        lambda t: t["links"]["pcie"]["bandwidth"].update(value="20 GB"),
        "links.pcie.bandwidth.value: got '20 GB': unknown unit 'GB' (did you mean 'GB/s'?)",
    ),
    "negative bandwidth": (
        lambda t: t["links"]["pcie"]["bandwidth"].update(value="-20 GB/s"),
        "links.pcie.bandwidth.value: got '-20 GB/s', expected a number that is not negative",
    ),
    "zero bandwidth": (
        lambda t: t["links"]["pcie"]["bandwidth"].update(value="0 GB/s"),
        "links.pcie.bandwidth.value: got '0 GB/s', expected more than zero",
    ),
    "bare number": (
        lambda t: t["devices"]["fast"]["memory"].update(value=10),
        "devices.fast.memory.value: got the bare number 10, expected a size with its unit",
    ),
    "number without source": (
        lambda t: t["links"]["pcie"]["latency"].pop("source"),
        "links.pcie.latency.source: missing; expected one of 'measured', 'published', 'datasheet', 'assumed'",
    ),
    "number that is no table": (
        lambda t: t["links"]["pcie"].update(latency="2 us"),
        "links.pcie.latency: got '2 us', expected a table",
    ),
    "unknown source": (
        lambda t: t["links"]["pcie"]["latency"].update(source="measurd"),
        "(did you mean 'measured'?)",
    ),
    "unknown key": (
        lambda t: t["links"]["pcie"].update(duplx="full"),
        "links.pcie.duplx: unknown key (did you mean 'duplex'?)",
    ),
    "idle above active": (
        lambda t: t["devices"]["fast"]["idle_power"].update(value="300 W"),
        "devices.fast: idle_power: got 300 W, which is above active_power, 250 W",
    ),
    "a number that overflows": (
        lambda t: t["links"]["pcie"]["latency"].update(value="1e308 s"),
        "links.pcie.latency.value: got '1e308 s', which is too large for any machine",
    ),
    "a spread that no interval can tell": (
        lambda t: t["links"]["pcie"]["bandwidth"].update(spread="1e6 %"),
        "links.pcie.bandwidth.spread: got '1e6 %', which is too large for any machine; expected at most 1000 %",
    ),
    "a spread of a curve beyond all": (
        lambda t: curve(t).update(spread="50000 %"),
        "devices.fast.curves.0.spread: got '50000 %', which is too large for any machine",
    ),
    "jitter beyond all": (
        lambda t: curve(t).update(jitter="1001 %"),
        "devices.fast.curves.0.jitter: got '1001 %', which is too large for any machine",
    ),
    "drift beyond all": (
        lambda t: curve(t).update(drift="1e9 %"),
        "devices.fast.curves.0.drift: got '1e9 %', which is too large for any machine",
    ),
    "a spread by size beyond all": (
        lambda t: t["backends"]["nccl"]["collectives"][0].update(own_spread=[{"size": "0 B", "share": "2000 %"}]),
        "backends.nccl.collectives.0.own_spread.0.share: got '2000 %', which is too large for any machine",
    ),
    "a rate too low to divide by": (
        lambda t: t["links"]["pcie"]["bandwidth"].update(value="1e-308 B/s"),
        "links.pcie.bandwidth.value: got '1e-308 B/s', which is too small for any machine",
    ),
    "a cost that overflows": (
        lambda t: curve(t)["costs"].update(flops="1e-308 flop/s"),
        "devices.fast.curves.0.costs: flops: got '1e-308 flop/s', which is too large for any machine",
    ),
    "an empty list": (
        lambda t: t["links"]["pcie"]["efficiency"].update(points=[]),
        "links.pcie.efficiency.points: got [], expected at least 1 entry",
    ),
    "an empty table": (
        lambda t: t["topology"].update(hosts={}),
        "topology.hosts: got an empty table, expected at least 1 entry",
    ),
    "too many entries": (
        lambda t: host(t)["edges"][0].update(between=["left", "switch0", "switch1"]),
        "topology.hosts.node.edges.0.between: got ['left', 'switch0', 'switch1'], expected at most 2 entries",
    ),
    "a time of day for a date": (
        lambda t: t["meta"].update(date=3),
        "meta.date: got 3, expected a date, such as 2026-01-31",
    ),
    "another format": (lambda t: t.update(format="1"), "format: got '1', expected one of 1"),
    "spreads of sizes upside down": (
        lambda t: t["backends"]["nccl"]["collectives"][0].update(
            carried_spread=[{"size": "1 MB", "share": "2 %"}, {"size": "0 B", "share": "9 %"}]
        ),
        "carried_spread: expected strictly ascending sizes",
    ),
    "spreads of sizes twice": (
        lambda t: t["backends"]["nccl"]["collectives"][0].update(own_spread=[{"size": "1 MB", "share": "2 %"}] * 2),
        "own_spread: expected strictly ascending sizes",
    ),
    "spreads of sizes of a call that has none": (
        lambda t: next(c for c in t["backends"]["nccl"]["collectives"] if c["kind"] == "exchange").update(
            own_spread=[{"size": "0 B", "share": "2 %"}]
        ),
        "own_spread and carried_spread: not allowed for 'exchange'",
    ),
    "unknown section": (lambda t: t.update(devcies={}), "devcies: unknown key (did you mean 'devices'?)"),
    "unknown link kind": (
        lambda t: t["links"]["pcie"].update(kind="pci"),
        "links.pcie.kind: got 'pci', expected one of 'pcie', 'nvlink'",
    ),
    "missing section": (lambda t: t.pop("topology"), "topology: missing; expected a table with hosts"),
    "missing latency": (lambda t: t["links"]["pcie"].pop("latency"), "links.pcie.latency: missing"),
    "unknown primitive": (
        lambda t: curve(t).update(primitive="matmull"),
        "devices.fast.curves.0.primitive: got 'matmull'",
    ),
    "unknown feature": (
        lambda t: curve(t)["costs"].update(flps="1 Tflop/s"),
        "devices.fast.curves.0.costs: flps: not a feature of matmul (did you mean 'flops'?)",
    ),
    "cost in the wrong unit": (
        lambda t: curve(t)["costs"].update(flops="1 us/edge"),
        "costs: flops: got '1 us/edge': unknown unit 'us/edge'",
    ),
    "curve that costs nothing": (
        lambda t: curve(t).update(costs={"call": "0 s/call"}),
        "costs: all costs are zero",
    ),
    "range upside down": (
        lambda t: curve(t)["range"].update(flops=["9 flops", "1 flops"]),
        "range: flops: got [9 flops, 1 flops], expected the smaller value first",
    ),
    "range of nothing known": (
        lambda t: curve(t)["range"].update(edges=["1 edge", "2 edges"], outr=["1 element", "2 elements"]),
        "outr: neither a size nor a feature of matmul (did you mean 'outer'?)",
    ),
    "measured without spread": (
        lambda t: curve(t).pop("spread"),
        "source is 'measured', but spread is missing",
    ),
    "cache that the device lacks": (
        lambda t: curve(t, 1)["costs"].update({"missed_bytes/L3": "10 GB/s"}),
        "spmm counts misses of cache 'L3', which the device does not have",
    ),
    "two curves of one level": (
        lambda t: t["devices"]["fast"]["curves"].append(dict(curve(t))),
        "two curves of matmul for concurrency 1 and 1 threads",
    ),
    "cpu without cores": (
        lambda t: t["devices"]["fast"].update(kind="cpu"),
        "devices.fast: cores: missing; a CPU needs",
    ),
    "unknown device type": (
        lambda t: host(t)["devices"][0].update(type="fats"),
        "topology.hosts.node.devices.0.type: got 'fats', which [devices] does not define (did you mean 'fast'?)",
    ),
    "unknown link type": (
        lambda t: host(t)["edges"][0].update(link="pci"),
        "topology.hosts.node.edges.0.link: got 'pci', which [links] does not define (did you mean 'pcie'?)",
    ),
    "edge to nowhere": (
        lambda t: host(t)["edges"][0].update(between=["left", "switch9"]),
        "topology.hosts.node.edges.0.between: got 'switch9', which is not a node or device (did you mean 'switch",
    ),
    "unreachable devices": (
        lambda t: host(t)["edges"].pop(3),
        "topology: 'node0/right0' is not reachable from 'node0/left0'",
    ),
    "unreachable host": (
        lambda t: t["topology"]["edges"][0].update(between=["node0/nic", "spine"]),
        "topology: 'node1/left0' is not reachable from 'node0/left0'",
    ),
    "switch joined to itself": (
        lambda t: host(t)["edges"].append({"between": ["nic", "nic"], "link": "pcie"}),
        "joins 'node0/nic' to itself",
    ),
    "two links side by side": (
        lambda t: host(t)["edges"].append({"between": ["switch1", "switch0"], "link": "pcie"}),
        "topology.hosts.node.edges.5.between: a second link between 'node0/switch1' and 'node0/switch0'",
    ),
    "name borne twice": (
        lambda t: host(t)["nodes"].update(left0="nic"),
        "topology.hosts.node: 2 devices or nodes are named 'left0'",
    ),
    "no devices": (
        lambda t: host(t).update(devices=[]),
        "topology.hosts.node.devices: got [], expected at least 1 entry",
    ),
    "count of zero": (
        lambda t: host(t).update(count=0),
        "topology.hosts.node.count: got 0, expected at least 1",
    ),
    "too many devices": (
        lambda t: host(t).update(count=10_000),
        "topology: hosts: got 40000 devices in all, expected at most",
    ),
    "count as text": (
        lambda t: host(t).update(count="2"),
        "topology.hosts.node.count: got '2', expected a whole number",
    ),
    "efficiency not ascending": (
        lambda t: t["links"]["pcie"]["efficiency"]["points"].reverse(),
        "links.pcie.efficiency: points: expected strictly ascending sizes",
    ),
    "queues of a link not ascending": (
        lambda t: t["links"]["pcie"].update(load=load(4, 1)),
        "links.pcie.load: queues: expected strictly ascending numbers of messages",
    ),
    "queue twice": (
        lambda t: t["links"]["pcie"].update(load=load(2, 2)),
        "links.pcie.load: queues: expected strictly ascending numbers of messages",
    ),
    "load without a queue": (
        lambda t: t["links"]["pcie"].update(load=load()),
        "links.pcie.load.queues: got [], expected at least 1 entry",
    ),
    "queue behind no message": (
        lambda t: t["links"]["pcie"].update(load=load(0)),
        "links.pcie.load.queues.0.messages: got 0, expected at least 1",
    ),
    "queue without a unit": (
        lambda t: t["links"]["pcie"].update(load={**load(1), "queues": [{"messages": 1, "size": 1000}]}),
        "links.pcie.load.queues.0.size: got the bare number 1000",
    ),
    "processor time of a byte without a unit": (
        lambda t: t["links"]["pcie"].update(load={**load(1), "processor": "12"}),
        "links.pcie.load.processor: got '12' without a unit",
    ),
    "load without its source": (
        lambda t: t["links"]["pcie"].update(load={"queues": load(1)["queues"]}),
        "links.pcie.load.source: missing; expected one of 'measured'",
    ),
    "burst where messages are copies through host memory": (
        lambda t: (
            t["links"]["infiniband"].update(burst={"value": "1 MB", "source": "assumed"}),
            t["devices"]["fast"].update(peer_to_peer=False),
        ),
        "links.infiniband.burst: got 1 MB, but messages of 'fast' go as copies through host memory",
    ),
    "unknown backend": (
        lambda t: t["backends"].update(mpi=t["backends"]["nccl"]),
        "backends.mpi: got 'mpi', expected one of 'gloo'",
    ),
    "ring of an exchange": (
        lambda t: t["backends"]["nccl"]["collectives"][1].update(algorithm="ring"),
        "'pairwise' and kind 'exchange' require each other",
    ),
    "newer format": (lambda t: t.update(format=2), "format: got 2, expected one of 1"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_with_its_place(name: str, table: Table) -> None:
    spoil, told = FAULTS[name]
    spoil(table)
    profile, problems = find_problems(table)
    assert profile is None
    assert any(told in problem for problem in problems), problems


def test_all_faults_at_once(table: Table) -> None:
    chosen = ["negative bandwidth", "unknown key", "unknown primitive", "unknown link type", "number without source"]
    for name in chosen:
        FAULTS[name][0](table)
    with pytest.raises(HardwareError) as caught:
        parse_profile(table, "mine.toml")
    lines = str(caught.value).splitlines()
    assert all(line.startswith("mine.toml: ") for line in lines)
    for name in chosen:
        assert any(FAULTS[name][1] in line for line in lines), name
    assert len(lines) == len(set(lines)) == len(chosen)
