"""Topology of a profile: hosts, their devices and nodes, the links between them, and checks of all names.

A host, or a device entry, may stand for several equal ones (``count``). A link between "gpu" and "switch" is then one
link for each GPU. Names outside a host are "host/node", where the base name of a host means every copy of it.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from itertools import combinations, product
from typing import Annotated, Literal, Self

from pydantic import Field, StrictBool, StrictInt, StrictStr, model_validator

from simgnn.hardware.profile.quantities import Size, Strict
from simgnn.spelling import nearest

NodeKind = Literal["socket", "memory", "pcie-switch", "nvswitch", "nic", "network-switch"]
MAX_DEVICES = 16384
Count = Annotated[StrictInt, Field(ge=1, le=MAX_DEVICES)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.+-]*$")]


class Edge(Strict):
    """A link of type ``link`` between two nodes. Between a device and itself: the link among the ranks on that device.

    ``mesh`` links every two members of one group, as NVLink without a switch does: between = ["gpu", "gpu"].
    """

    between: tuple[StrictStr, StrictStr]
    link: StrictStr
    mesh: StrictBool = False


class Placed(Strict):
    """``count`` devices of one type in a host, named NAME, or NAME0, NAME1, ... if there are several."""

    name: Name
    type: StrictStr
    count: Count = 1

    def names(self) -> tuple[str, ...]:
        return copies(self.name, self.count)


class Host(Strict):
    """``count`` equal machines. ``memory``: host memory beside GPUs (None: not stated; the memory of a CPU belongs to
    its device). ``cpu``: the CPU beside GPUs, a name in [devices], which draws mini-batches (None: not stated).
    ``nodes``: name -> kind of what connects the devices."""

    count: Count = 1
    memory: Size | None = None
    cpu: StrictStr | None = None
    devices: Annotated[tuple[Placed, ...], Field(min_length=1)]
    nodes: dict[Name, NodeKind] = Field(default_factory=dict)
    edges: tuple[Edge, ...] = ()


class Topology(Strict):
    """All ``hosts``, numbered in this order, and ``nodes`` and ``edges`` of the network between them."""

    hosts: Annotated[dict[Name, Host], Field(min_length=1)]
    nodes: dict[Name, NodeKind] = Field(default_factory=dict)
    edges: tuple[Edge, ...] = ()

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        total = sum(host.count * sum(placed.count for placed in host.devices) for host in self.hosts.values())
        if total > MAX_DEVICES:
            raise ValueError(f"hosts: got {total} devices in all, expected at most {MAX_DEVICES}")
        return self

    def host_names(self) -> tuple[tuple[str, Host], ...]:
        """Return (full name, host) of every machine. The position is the host number."""
        return tuple((full, host) for name, host in self.hosts.items() for full in copies(name, host.count))


def copies(name: str, count: int) -> tuple[str, ...]:
    """Return the names of ``count`` copies: NAME, or NAME0, NAME1, ... if there are several."""
    return (name,) if count == 1 else tuple(f"{name}{number}" for number in range(count))


def expand_edges(topology: Topology) -> Iterator[tuple[str, str, str, tuple[str | int, ...]]]:
    """Yield (node, node, link type, key path) of every single link. Names are full; unknown ones are unchanged."""
    for base, host in topology.hosts.items():
        inside = _local_names(host)
        for full in copies(base, host.count):
            for number, edge in enumerate(host.edges):
                first, second = (inside.get(end, (end,)) for end in edge.between)
                for one, other in _pairs(edge, first, second):
                    yield f"{full}/{one}", f"{full}/{other}", edge.link, ("topology", "hosts", base, "edges", number)
    outside: dict[str, tuple[str, ...]] = {name: (name,) for name in topology.nodes}
    for base, host in topology.hosts.items():
        machines = copies(base, host.count)
        for local, members in _local_names(host).items():
            for machine in machines:
                outside[f"{machine}/{local}"] = tuple(f"{machine}/{member}" for member in members)
            outside[f"{base}/{local}"] = tuple(f"{machine}/{member}" for machine in machines for member in members)
    for number, edge in enumerate(topology.edges):
        first, second = (outside.get(end, (end,)) for end in edge.between)
        for one, other in _pairs(edge, first, second):
            yield one, other, edge.link, ("topology", "edges", number)


def node_kinds(topology: Topology) -> dict[str, str]:
    """Return the kind of every node by full name; the kind of a device is "device:TYPE"."""
    kinds: dict[str, str] = {}
    for full, host in topology.host_names():
        for placed in host.devices:
            kinds.update({f"{full}/{name}": f"device:{placed.type}" for name in placed.names()})
        kinds.update({f"{full}/{name}": kind for name, kind in host.nodes.items()})
    kinds.update(topology.nodes)
    return kinds


def _pairs(edge: Edge, first: tuple[str, ...], second: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if edge.mesh:
        yield from combinations(first, 2)
    elif edge.between[0] == edge.between[1]:
        yield from ((name, name) for name in first)
    else:
        yield from product(first, second)


def _local_names(host: Host) -> Mapping[str, tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = {name: (name,) for name in host.nodes}
    for placed in host.devices:
        names[placed.name] = placed.names()
        names.update({name: (name,) for name in placed.names()})
    return names


def topology_problems(topology: Topology, devices: Collection[str], links: Collection[str]) -> list[str]:
    """Report invalid references of a topology: unknown names, duplicate names, unreachable devices."""
    problems = dict.fromkeys(_name_problems(topology, devices))  # an ordered set
    kinds = node_kinds(topology)
    group = {name: name for name in kinds}
    seen: set[frozenset[str]] = set()
    certain = not problems

    def root(name: str) -> str:
        while group[name] != name:
            group[name] = group[group[name]]
            name = group[name]
        return name

    for one, other, link, path in expand_edges(topology):
        where = ".".join(str(part) for part in path)
        if link not in links:
            listed = ", ".join(links) or "none"
            unknown = f"got '{link}', which [links] does not define{nearest(link, links)}; it has: {listed}"
            problems[f"{where}.link: {unknown}"] = None
        missing = [end for end in (one, other) if end not in kinds]
        for end in missing:
            shown = end if path[1] == "edges" else end.partition("/")[2]
            known = kinds if path[1] == "edges" else [name.partition("/")[2] for name in kinds]
            problems[f"{where}.between: got '{shown}', which is not a node or device{nearest(shown, known)}"] = None
        if missing:
            certain = False  # devices may be reachable only by this edge
            continue
        fault = None
        if one == other and not kinds[one].startswith("device:"):
            fault = f"joins '{one}' to itself; expected two nodes (only a device has a link of its own)"
        elif frozenset((one, other)) in seen:
            fault = f"a second link between '{one}' and '{other}'; expected one with the bandwidth of both"
        if fault is not None:
            problems[f"{where}.between: {fault}"] = None
        seen.add(frozenset((one, other)))
        group[root(one)] = root(other)
    placed = [name for name, kind in kinds.items() if kind.startswith("device:")] if certain else []
    return list(problems) + [
        f"topology: '{name}' is not reachable from '{placed[0]}'; expected a chain of links in topology.*.edges"
        for name in placed[1:]
        if root(name) != root(placed[0])
    ]


def _name_problems(topology: Topology, devices: Collection[str]) -> list[str]:
    problems = []
    for base, host in topology.hosts.items():
        where = f"topology.hosts.{base}"
        for number, placed in enumerate(host.devices):
            if placed.type not in devices:
                known = f"{nearest(placed.type, devices)}; it has: {', '.join(devices) or 'none'}"
                key = f"{where}.devices.{number}.type"
                problems.append(f"{key}: got '{placed.type}', which [devices] does not define{known}")
        if host.cpu is not None and host.cpu not in devices:
            known = f"{nearest(host.cpu, devices)}; it has: {', '.join(devices) or 'none'}"
            problems.append(f"{where}.cpu: got '{host.cpu}', which [devices] does not define{known}")
        names = Counter([name for placed in host.devices for name in placed.names()] + list(host.nodes))
        problems += [
            f"{where}: {times} devices or nodes are named '{name}'" for name, times in names.items() if times > 1
        ]
    names = Counter(full for base, host in topology.hosts.items() for full in copies(base, host.count))
    problems += [f"topology.hosts: {times} hosts are named '{name}'" for name, times in names.items() if times > 1]
    return problems
