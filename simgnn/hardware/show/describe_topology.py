"""A topology as nested lines: what hangs where, by which link; cross links apart."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from simgnn.hardware.show.node import Node
from simgnn.hardware.topology.topology import Host, Topology, copies, expand_edges, node_kinds
from simgnn.units import format_quantity

if TYPE_CHECKING:
    from simgnn.hardware.profile.profile import Profile

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
