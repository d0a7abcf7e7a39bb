"""A profile as nested text and as numbers: for ``simgnn hardware show`` and whoever else prints one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import HardwareError
from simgnn.hardware.primitives import unit_of
from simgnn.hardware.profile.quantities import Number, Strict
from simgnn.hardware.topology.routes import lay_out
from simgnn.hardware.topology.topology import Host, Topology, copies, expand_edges, node_kinds
from simgnn.units import cost_of, format_quantity

if TYPE_CHECKING:
    from simgnn.hardware.profile.devices import Curve, Device
    from simgnn.hardware.profile.libraries import Collective
    from simgnn.hardware.profile.links import Load
    from simgnn.hardware.profile.profile import Profile


@dataclass
class Node:
    """A line of a tree and the lines below it."""

    text: str
    children: list["Node"] = field(default_factory=list)

    def add(self, text: str) -> "Node":
        """Add a line below this one, and return it."""
        child = Node(text)
        self.children.append(child)
        return child


def lines(node: Node, depth: int = 0) -> Iterator[tuple[int, str]]:
    """Every line of a tree with its depth."""
    yield depth, node.text
    for child in node.children:
        yield from lines(child, depth + 1)


ROOTS = ("socket", "pcie-switch", "nvswitch", "nic", "memory", "network-switch")
"""Which kinds of nodes stand at the top of a host: the first that is there."""


class _Edge(NamedTuple):
    one: str
    other: str
    link: str


class _Line(NamedTuple):
    """A thing below another: its name in the host, what it is, and the link that it hangs on ("": none)."""

    name: str
    kind: str
    link: str


def add_topology(node: Node, profile: "Profile") -> None:
    """Lines of every host, then of the network between hosts, below ``node``."""
    topology = profile.topology
    edges = [_Edge(one, other, link) for one, other, link, _ in expand_edges(topology)]
    kinds = node_kinds(topology)
    for base, host in topology.hosts.items():
        full = copies(base, host.count)[0]
        machine = node.add(f"{host.count} x {base}" if host.count > 1 else base)
        if host.memory is not None:
            machine.add(f"memory of the host {format_quantity(host.memory.value, 'bytes')} ({host.memory.source})")
        inside = [
            _Edge(edge.one.removeprefix(f"{full}/"), edge.other.removeprefix(f"{full}/"), edge.link)
            for edge in edges
            if edge.one.startswith(f"{full}/") and edge.other.startswith(f"{full}/")
        ]
        _host(machine, host, inside, profile)
        for edge in edges:
            mine = next((end for end in edge[:2] if end.startswith(f"{full}/")), None)
            other = edge.other if mine == edge.one else edge.one
            if mine is not None and not other.startswith(f"{full}/"):
                machine.add(f"{mine.removeprefix(full + '/')} -- {other}{_by(edge.link, profile)}")
    for name in topology.nodes:
        node.add(f"{name} ({kinds[name]})")
    for one, other, link in dict.fromkeys(_outside(topology)):
        node.add(f"{one} -- {other}{_by(link, profile)}")


def _host(machine: Node, host: Host, edges: Sequence[_Edge], profile: "Profile") -> None:
    """The nodes and devices of one host as a forest, breadth first from its ROOTS."""
    kinds = {**dict(host.nodes), **{name: placed.type for placed in host.devices for name in placed.names()}}
    hosted = set(host.nodes)
    tops = next(([n for n, kind in host.nodes.items() if kind == wanted] for wanted in ROOTS
                 if wanted in host.nodes.values()), [])  # fmt: skip
    below: dict[str, list[_Line]] = {name: [] for name in kinds}
    seen, used = set(tops), set()
    queue = list(tops)
    order = [*tops]
    for start in (*tops, *host.nodes, *kinds):
        if start not in seen:
            seen.add(start)
            order.append(start)
            queue.append(start)
        while queue:
            here = queue.pop(0)
            if here not in hosted:
                continue  # devices are leaves: links among them are cross links
            for number, edge in enumerate(edges):
                other = edge.other if edge.one == here else edge.one if edge.other == here else here
                if other not in seen and other in kinds:
                    seen.add(other)
                    used.add(number)
                    below[here].append(_Line(other, kinds[other], edge.link))
                    queue.append(other)
    for line in _grouped([_Line(name, kinds[name], "") for name in order], host, below):
        _add(machine, line, below, host, profile)
    crossing = [edge for number, edge in enumerate(edges) if number not in used]
    for text in _crossing(crossing, host, profile):
        machine.add(text)


def _add(
    parent: Node, line: tuple[str, _Line], below: Mapping[str, list[_Line]], host: Host, profile: "Profile"
) -> None:
    text, entry = line
    child = parent.add(f"{text}{_by(entry.link, profile)}")
    for inner in _grouped(below[entry.name], host, below):
        _add(child, inner, below, host, profile)


def _grouped(lines: Sequence[_Line], host: Host, below: Mapping[str, list[_Line]]) -> list[tuple[str, _Line]]:
    """Text of each line; devices of one entry that hang alike become one."""
    entry_of = {name: placed for placed in host.devices for name in placed.names()}
    groups: dict[tuple[str, str], list[_Line]] = {}
    for line in lines:
        alike = entry_of[line.name].name if line.name in entry_of else line.name
        groups.setdefault((alike, line.link), []).append(line)
    told = []
    for (alike, _), group in groups.items():
        first = group[0]
        if first.name not in entry_of:
            told.append((f"{first.name} ({first.kind})", first))
        elif len(group) == 1:
            told.append((f"{first.name}: {first.kind}", first))
        else:
            told.append((f"{len(group)} x {alike}: {first.kind}", first))
    return told


def _crossing(edges: Sequence[_Edge], host: Host, profile: "Profile") -> list[str]:
    """Links that the tree does not show; a mesh of one entry's devices is one line."""
    entry_of = {name: placed.name for placed in host.devices for name in placed.names()}
    counted: dict[tuple[str, str, str], int] = {}
    for edge in edges:
        ends = (entry_of.get(edge.one, edge.one), entry_of.get(edge.other, edge.other))
        itself = edge.one == edge.other
        key = (f"among ranks on {ends[0]}" if itself else " -- ".join(ends), edge.link, "" if itself else "pairs")
        counted[key] = counted.get(key, 0) + 1
    return [
        f"{text}{_by(link, profile)}{f' ({count} {pairs})' if count > 1 and pairs else ''}"
        for (text, link, pairs), count in counted.items()
    ]


def _outside(topology: Topology) -> list[tuple[str, str, str]]:
    """Edges between nodes of no host."""
    own = set(topology.nodes)
    return [(*edge.between, edge.link) for edge in topology.edges if own.issuperset(edge.between)]


def _by(link: str, profile: "Profile") -> str:
    if not link:
        return ""
    rate = profile.links[link].bandwidth.value
    return f", by {link} ({format_quantity(float(f'{rate:.4g}'), 'bytes/s')})"


SCOPES = {"any": "", "host": " inside a host", "cluster": " across hosts"}


def told(number: Number | None) -> str:
    """A sourced number as text; "not stated" where there is none."""
    if number is None:
        return "not stated"
    spread = "" if number.spread is None else f" ± {format_quantity(number.spread, 'ratio')}"
    value: float = number.value  # type: ignore[attr-defined]
    return f"{_rounded(value, number.dimension)}{spread} ({number.source})"


def _rounded(value: float, dimension: str) -> str:
    return format_quantity(float(f"{value:.4g}") if dimension != "bytes" else value, dimension)


def tree(profile: "Profile") -> Node:
    """Devices with their curves, hosts with what is in them, links, and communication libraries."""
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
    add_topology(root.add("topology"), profile)
    links = root.add("links")
    for name, link in profile.links.items():
        line = f"{name}: {link.kind}, {told(link.bandwidth)}, {link.duplex} duplex, latency {told(link.latency)}"
        if link.message_bandwidth is not None:
            line += f", one message at most {told(link.message_bandwidth)}"
        if link.burst is not None:
            line += f", {told(link.burst)} at once after a pause"
        below = links.add(line)
        if link.load is not None:
            below.add(_load(link.load))
    for name, backend in profile.backends.items():
        library = root.add(f"{name}: a message costs {told(backend.message.floor)}")
        if backend.ports is not None:
            library.add(f"a rank sends {told(backend.ports.send)}, receives {told(backend.ports.receive)}")
        for entry in backend.collectives:
            library.add(_collective(entry))
    return root


def _collective(entry: "Collective") -> str:
    scope = SCOPES[entry.scope]
    ranks = ""
    if entry.ranks is not None:
        *others, last = map(str, entry.ranks)
        ranks = f", measured with {', '.join(others)}{' and ' if others else ''}{last} ranks"
    sizes = ""
    if entry.sizes is not None:
        low, high = (_rounded(size, "bytes") for size in entry.sizes)
        sizes = f", {low} to {high}" if entry.sizes[0] > 0 else f", below {high}"
    protocol = "" if entry.protocol is None else f" ({entry.protocol})"
    bus = "" if entry.bus_bandwidth is None else f", bus {told(entry.bus_bandwidth)}"
    hop = "" if entry.hop is None else f", each step {told(entry.hop)}"
    return f"{entry.kind}{scope}{ranks}{sizes}: {entry.algorithm}{protocol}, floor {told(entry.floor)}{hop}{bus}"


def _load(load: "Load") -> str:
    spread = "" if load.spread is None else f" ± {_rounded(load.spread, 'ratio')}"
    waits = ", ".join(
        f"{_rounded(float(f'{queue.size:.4g}'), 'bytes')} wait before it with {queue.messages}" for queue in load.queues
    )
    costs = "not stated" if load.processor is None else f"{_rounded(load.processor, 's')} of a core at each end"
    return f"while messages fill it ({load.source}{spread}): {waits} at once; a byte costs {costs}"


def _device(node: Node, device: "Device") -> None:
    cores = "" if device.cores is None else f", {told(device.cores)}"
    sockets = "" if device.sockets is None else f" on {device.sockets} socket{'s' if device.sockets > 1 else ''}"
    node.add(f"memory {told(device.memory)}{cores}{sockets}")
    node.add(f"power: idle {told(device.idle_power)}, active {told(device.active_power)}")
    for name, cache in device.caches.items():
        shared = "" if cache.shared_by is None else f", one for each {told(cache.shared_by)}"
        node.add(f"cache {name}: {told(cache.size)}{shared}")
    curves = node.add("curves")
    for curve in device.curves:
        curves.add(_curve(curve))


def _curve(curve: "Curve") -> str:
    costs = ", ".join(f"{name} {_cost(name, cost)}" for name, cost in curve.costs.items())
    at = f"{curve.concurrency} at once, {curve.threads} threads"
    spread = "" if curve.spread is None else f", ± {_rounded(curve.spread, 'ratio')}"
    return f"{curve.primitive} ({at}; {curve.source}{spread}): {costs}"


def _cost(feature: str, cost: float) -> str:
    """Costs of bytes and flops as the rates that people know."""
    unit = unit_of(feature)
    if cost > 0 and unit in ("B", "flop"):
        return _rounded(1 / cost, "flop/s") if unit == "flop" else format_quantity(float(f"{1 / cost:.4g}"), "bytes/s")
    return _rounded(cost, cost_of(unit))


def bandwidth_matrix(profile: "Profile", most: int = 16) -> tuple[list[str], NDArray[np.float64]]:
    """(device names, bytes/s [n, n]) that one large message reaches from row to column, alone, over links only.

    NaN where two ranks cannot talk. At most ``most`` devices: as many of each host as fit, so that every kind of pair
    inside and across hosts that the first hosts have is there.
    """
    network = lay_out(profile)
    names = _pick(profile, most)
    matrix = np.full((len(names), len(names)), np.nan)
    huge = 1e12
    for row, source in enumerate(names):
        for column, target in enumerate(names):
            try:
                route = network.route(source, target)
            except HardwareError:
                continue
            matrix[row, column] = route.message_rate(huge)
    return names, matrix


def _pick(profile: "Profile", most: int) -> list[str]:
    hosts = [
        [f"{full}/{local}" for entry in host.devices for local in entry.names()]
        for full, host in profile.topology.host_names()
    ]
    if sum(map(len, hosts)) <= most:
        return [name for names in hosts for name in names]
    shown = hosts[: max(2, most // max(map(len, hosts)))]
    each = max(1, most // len(shown))
    return [name for names in shown for name in names[:each]][:most]


def counts(profile: "Profile") -> dict[str, int]:
    """How many hosts, devices and links (both directions of a duplex one are one)."""
    kinds = node_kinds(profile.topology)
    return {
        "hosts": len(profile.topology.host_names()),
        "devices": sum(kind.startswith("device:") for kind in kinds.values()),
        "links": sum(1 for _ in expand_edges(profile.topology)),
    }


def as_json(value: object) -> object:
    """A profile's part with SI numbers instead of text, for programs that read it."""
    if isinstance(value, Strict):
        return {name: as_json(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {str(key): as_json(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [as_json(entry) for entry in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
