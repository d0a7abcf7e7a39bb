"""Describe a profile as a text tree and as JSON numbers, for ``simgnn hardware show``."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import HardwareError
from simgnn.hardware.primitives import unit_of
from simgnn.hardware.profile.quantities import Number, Strict
from simgnn.hardware.topology.routes import lay_out
from simgnn.hardware.topology.topology import Host, copies, expand_edges
from simgnn.units import cost_of, format_quantity

if TYPE_CHECKING:
    from simgnn.hardware.profile.communication import Collective, Load
    from simgnn.hardware.profile.devices import Device
    from simgnn.hardware.profile.profile import Profile


@dataclass
class Node:
    """A line of a text tree and the lines below it."""

    text: str
    children: list["Node"] = field(default_factory=list)

    def add(self, text: str) -> "Node":
        child = Node(text)
        self.children.append(child)
        return child


ROOTS = ("socket", "pcie-switch", "nvswitch", "nic", "memory", "network-switch")
"""Kinds of nodes at the top of the tree of a host: the first of these kinds that the host has."""
MOST_DEVICES = 16
HUGE_BYTES = 1e12
SCOPES = {"any": "", "host": " inside a host", "cluster": " across hosts"}


def _stated(number: Number | None) -> str:
    if number is None:
        return "not stated"
    spread = "" if number.spread is None else f" ± {format_quantity(number.spread, 'ratio')}"
    value: float = number.value  # type: ignore[attr-defined]
    return f"{_rounded(value, number.dimension)}{spread} ({number.source})"


def _rounded(value: float, dimension: str) -> str:
    return format_quantity(float(f"{value:.4g}") if dimension != "bytes" else value, dimension)


def tree(profile: "Profile") -> Node:
    """Return the text tree of a profile: devices with curves, hosts, links, and communication libraries."""
    meta = profile.meta
    root = Node(f"{meta.name}: {meta.description}")
    ranks = ", ".join(map(str, meta.calibrated_ranks))
    root.add(f"{meta.date}; " + (f"calibrated with {ranks} ranks" if ranks else "never calibrated"))
    counts = ", ".join(f"{count} {source}" for source, count in profile.source_counts().items() if count)
    root.add(f"numbers: {counts}")
    for source in meta.sources:
        root.add(f"source: {source}")
    devices = root.add("devices")
    for name, device in profile.devices.items():
        _device(devices.add(f"{name}: {device.model or device.kind}"), device)
    _add_topology(root.add("topology"), profile)
    links = root.add("links")
    for name, link in profile.links.items():
        line = f"{name}: {link.kind}, {_stated(link.bandwidth)}, {link.duplex} duplex, latency {_stated(link.latency)}"
        if link.message_bandwidth is not None:
            line += f", one message at most {_stated(link.message_bandwidth)}"
        if link.burst is not None:
            line += f", {_stated(link.burst)} at once after a pause"
        below = links.add(line)
        if link.load is not None:
            below.add(_load(link.load))
    for name, backend in profile.backends.items():
        usual = ", unless another is asked for" if name == profile.usual_backend else ""
        library = root.add(f"{name}: a message costs {_stated(backend.message.floor)}{usual}")
        if backend.staging == "chunks":
            library.add("without peer access, chunk by chunk through host memory: its copies overlap")
        if backend.ports is not None:
            library.add(f"a rank sends {_stated(backend.ports.send)}, receives {_stated(backend.ports.receive)}")
        for entry in backend.collectives:
            library.add(_collective(entry))
    return root


def _collective(entry: "Collective") -> str:
    ranks = sizes = ""
    if entry.ranks is not None:
        *others, last = map(str, entry.ranks)
        ranks = f", measured with {', '.join(others)}{' and ' if others else ''}{last} ranks"
    if entry.sizes is not None:
        low, high = (_rounded(size, "bytes") for size in entry.sizes)
        sizes = f", {low} to {high}" if entry.sizes[0] > 0 else f", below {high}"
    protocol = "" if entry.protocol is None else f" ({entry.protocol})"
    bus = "" if entry.bus_bandwidth is None else f", bus {_stated(entry.bus_bandwidth)}"
    hop = "" if entry.hop is None else f", each step {_stated(entry.hop)}"
    head = f"{entry.kind}{SCOPES[entry.scope]}{ranks}{sizes}: {entry.algorithm}{protocol}"
    return f"{head}, floor {_stated(entry.floor)}{hop}{bus}"


def _load(load: "Load") -> str:
    spread = "" if load.spread is None else f" ± {_rounded(load.spread, 'ratio')}"
    waits = ", ".join(
        f"{_rounded(float(f'{queue.size:.4g}'), 'bytes')} wait before it with {queue.messages}" for queue in load.queues
    )
    costs = "not stated" if load.processor is None else f"{_rounded(load.processor, 's')} of a core at each end"
    return f"while messages fill it ({load.source}{spread}): {waits} at once; a byte costs {costs}"


def _device(node: Node, device: "Device") -> None:
    cores = "" if device.cores is None else f", {_stated(device.cores)}"
    sockets = "" if device.sockets is None else f" on {device.sockets} socket{'s' if device.sockets > 1 else ''}"
    clock = "" if device.clock is None else f", clock {_stated(device.clock)}"
    node.add(f"memory {_stated(device.memory)}{cores}{sockets}{clock}")
    node.add(f"power: idle {_stated(device.idle_power)}, active {_stated(device.active_power)}")
    for name, cache in device.caches.items():
        shared = "" if cache.shared_by is None else f", one for each {_stated(cache.shared_by)}"
        node.add(f"cache {name}: {_stated(cache.size)}{shared}")
    curves = node.add("curves")
    for curve in device.curves:
        costs = ", ".join(f"{feature} {_cost(feature, cost)}" for feature, cost in curve.costs.items())
        spread = "" if curve.spread is None else f", ± {_rounded(curve.spread, 'ratio')}"
        level = f"{curve.concurrency} at once, {curve.threads} threads; {curve.source}{spread}"
        curves.add(f"{curve.primitive} ({level}): {costs}")


def _cost(feature: str, cost: float) -> str:
    unit = unit_of(feature)
    if cost > 0 and unit in ("B", "flop"):
        return _rounded(1 / cost, "bytes/s" if unit == "B" else "flop/s")
    return _rounded(cost, cost_of(unit))


def bandwidth_matrix(profile: "Profile") -> tuple[list[str], NDArray[np.float64]]:
    """Return (device names, bytes/s [n, n]): the rate of one large message alone from row to column, by links only.

    NaN where two ranks cannot communicate. At most MOST_DEVICES are shown: the same number from each of the first
    hosts, so that pairs inside and across hosts are included.
    """
    network = lay_out(profile)
    hosts = [
        [f"{full}/{local}" for entry in host.devices for local in entry.names()]
        for full, host in profile.topology.host_names()
    ]
    if sum(map(len, hosts)) > MOST_DEVICES:
        shown = hosts[: max(2, MOST_DEVICES // max(map(len, hosts)))]
        hosts = [names[: max(1, MOST_DEVICES // len(shown))] for names in shown]
    names = [name for of_host in hosts for name in of_host][:MOST_DEVICES]
    matrix = np.full((len(names), len(names)), np.nan)
    for row, source in enumerate(names):
        for column, target in enumerate(names):
            with suppress(HardwareError):
                matrix[row, column] = network.route(source, target).message_rate(HUGE_BYTES)
    return names, matrix


class _Edge(NamedTuple):
    one: str
    other: str
    link: str


class _Line(NamedTuple):
    """A node or device in a tree: name in the host, kind, and the link to the parent line ("": none)."""

    name: str
    kind: str
    link: str


def _add_topology(node: Node, profile: "Profile") -> None:
    """Add lines for every host, then for the network between hosts, below ``node``."""
    topology = profile.topology
    edges = [_Edge(one, other, link) for one, other, link, _ in expand_edges(topology)]
    for base, host in topology.hosts.items():
        inside = f"{copies(base, host.count)[0]}/"
        machine = node.add(f"{host.count} x {base}" if host.count > 1 else base)
        if host.memory is not None:
            machine.add(f"memory of the host {format_quantity(host.memory.value, 'bytes')} ({host.memory.source})")
        if host.cpu is not None:
            machine.add(f"draws mini-batches on {host.cpu}")
        own, outward = [], []
        for edge in edges:
            ends = [end for end in edge[:2] if end.startswith(inside)]
            if len(ends) == 2:
                own.append(_Edge(edge.one.removeprefix(inside), edge.other.removeprefix(inside), edge.link))
            elif ends:
                other = edge.other if ends[0] == edge.one else edge.one
                outward.append(f"{ends[0].removeprefix(inside)} -- {other}{_by(edge.link, profile)}")
        _add_host(machine, host, own, profile)
        for text in outward:
            machine.add(text)
    for name, kind in topology.nodes.items():
        node.add(f"{name} ({kind})")
    outer = [(*edge.between, edge.link) for edge in topology.edges if set(topology.nodes).issuperset(edge.between)]
    for one, other, link in dict.fromkeys(outer):
        node.add(f"{one} -- {other}{_by(link, profile)}")


def _add_host(machine: Node, host: Host, edges: Sequence[_Edge], profile: "Profile") -> None:
    """Add the nodes and devices of one host as a breadth-first forest from ROOTS, then the links not in the forest."""
    kinds = {**dict(host.nodes), **{name: placed.type for placed in host.devices for name in placed.names()}}
    root = next((kind for kind in ROOTS if kind in host.nodes.values()), None)
    below: dict[str, list[_Line]] = {name: [] for name in kinds}
    seen, used, tops = set[str](), set[int](), list[_Line]()
    for starts in ([name for name, kind in host.nodes.items() if kind == root], *([name] for name in kinds)):
        queue = [name for name in starts if name not in seen]
        seen.update(queue)
        tops += [_Line(name, kinds[name], "") for name in queue]
        for here in queue:  # grows while it is read
            if here not in host.nodes:
                continue  # devices are leaves: links among them are cross links
            for number, edge in enumerate(edges):
                other = edge.other if edge.one == here else edge.one if edge.other == here else here
                if other not in seen and other in kinds:
                    seen.add(other)
                    used.add(number)
                    below[here].append(_Line(other, kinds[other], edge.link))
                    queue.append(other)
    entries = {name: placed.name for placed in host.devices for name in placed.names()}
    _add_lines(machine, tops, below, entries, profile)
    crossing: Counter[tuple[str, str, bool]] = Counter()
    for number, edge in enumerate(edges):
        if number not in used:
            ends = entries.get(edge.one, edge.one), entries.get(edge.other, edge.other)
            itself = edge.one == edge.other
            crossing[f"among ranks on {ends[0]}" if itself else " -- ".join(ends), edge.link, itself] += 1
    for (text, link, itself), count in crossing.items():
        machine.add(f"{text}{_by(link, profile)}{'' if itself or count == 1 else f' ({count} pairs)'}")


def _add_lines(
    parent: Node,
    lines: Sequence[_Line],
    below: Mapping[str, list[_Line]],
    entries: Mapping[str, str],
    profile: "Profile",
) -> None:
    """Add lines below ``parent``. Devices of one entry with equal links share a line."""
    groups: dict[tuple[str, str], list[_Line]] = {}
    for line in lines:
        groups.setdefault((entries.get(line.name, line.name), line.link), []).append(line)
    for (entry, link), group in groups.items():
        name, kind, _ = group[0]
        if name not in entries:
            text = f"{name} ({kind})"
        else:
            text = f"{name}: {kind}" if len(group) == 1 else f"{len(group)} x {entry}: {kind}"
        _add_lines(parent.add(f"{text}{_by(link, profile)}"), below[name], below, entries, profile)


def _by(link: str, profile: "Profile") -> str:
    if not link:
        return ""
    return f", by {link} ({_rounded(profile.links[link].bandwidth.value, 'bytes/s')})"


def counts(profile: "Profile") -> dict[str, int]:
    """Count the hosts, devices and links of a profile. Both directions of a duplex link count as one."""
    hosts = profile.topology.host_names()
    return {
        "hosts": len(hosts),
        "devices": sum(placed.count for _, host in hosts for placed in host.devices),
        "links": sum(1 for _ in expand_edges(profile.topology)),
    }


def as_json(value: object) -> object:
    """Convert part of a profile to JSON values, with SI numbers instead of text."""
    if isinstance(value, Strict):
        return {name: as_json(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {str(key): as_json(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [as_json(entry) for entry in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
