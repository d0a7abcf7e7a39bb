"""Topology of a profile: hosts, what is in them, and the links between.

A host may stand for several alike (``count``), a device entry too; a link named between "gpu" and "switch" is then one
link for each GPU. Names outside a host are "host/node", where the host's base name means every copy of it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
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
    """A link of type ``link`` between two nodes; the same node twice: the link among the ranks on that device.

    ``mesh`` links every two members of one group, as NVLink without a switch does: between = ["gpu", "gpu"].
    """

    between: tuple[StrictStr, StrictStr]
    link: StrictStr
    mesh: StrictBool = False


class Placed(Strict):
    """``count`` devices of a type in a host: called NAME, or NAME0, NAME1... if there are several."""

    name: Name
    type: StrictStr
    count: Count = 1

    def names(self) -> tuple[str, ...]:
        """Names inside the host."""
        return copies(self.name, self.count)


class Host(Strict):
    """A machine, ``count`` times. ``memory``: of the host beside its GPUs (None: not stated; a CPU's own is its
    device's); ``nodes``: what lies between its devices, name -> kind."""

    count: Count = 1
    memory: Size | None = None
    devices: Annotated[tuple[Placed, ...], Field(min_length=1)]
    nodes: dict[Name, NodeKind] = Field(default_factory=dict)
    edges: tuple[Edge, ...] = ()


class Topology(Strict):
    """``hosts`` in the order of their numbers; ``nodes`` and ``edges`` of the network between them."""

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
        """(full name, host) of every machine; the position is the host's number."""
        return tuple((full, host) for name, host in self.hosts.items() for full in copies(name, host.count))


def copies(name: str, count: int) -> tuple[str, ...]:
    """The names of ``count`` things."""
    return (name,) if count == 1 else tuple(f"{name}{number}" for number in range(count))


def expand_edges(topology: Topology) -> Iterator[tuple[str, str, str, tuple[str | int, ...]]]:
    """(node, node, link type, key path) of every single link, full names; unknown ends come as they are written."""
    for base, host in topology.hosts.items():
        inside = _local_names(host)
        for full in copies(base, host.count):
            for number, edge in enumerate(host.edges):
                first, second = (inside.get(end, (end,)) for end in edge.between)
                for one, other in _pairs(edge, first, second):
                    yield f"{full}/{one}", f"{full}/{other}", edge.link, ("topology", "hosts", base, "edges", number)
    outside = _global_names(topology)
    for number, edge in enumerate(topology.edges):
        first, second = (outside.get(end, (end,)) for end in edge.between)
        for one, other in _pairs(edge, first, second):
            yield one, other, edge.link, ("topology", "edges", number)


def node_kinds(topology: Topology) -> dict[str, str]:
    """Every node by its full name: its kind, or "device:TYPE"."""
    kinds: dict[str, str] = {}
    for full, host in topology.host_names():
        for placed in host.devices:
            kinds.update({f"{full}/{name}": f"device:{placed.type}" for name in placed.names()})
        kinds.update({f"{full}/{name}": kind for name, kind in host.nodes.items()})
    kinds.update(topology.nodes)
    return kinds


def _pairs(edge: Edge, first: tuple[str, ...], second: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Every pair of ends that an edge joins."""
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


def _global_names(topology: Topology) -> Mapping[str, tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = {name: (name,) for name in topology.nodes}
    for base, host in topology.hosts.items():
        for local, members in _local_names(host).items():
            machines = copies(base, host.count)
            for machine in machines:
                names[f"{machine}/{local}"] = tuple(f"{machine}/{member}" for member in members)
            names[f"{base}/{local}"] = tuple(f"{machine}/{member}" for machine in machines for member in members)
    return names


def topology_problems(topology: Topology, devices: Collection[str], links: Collection[str]) -> list[str]:
    """Faults of the references of a topology: names that nothing bears, names borne twice, what nothing reaches."""
    problems = [*_name_problems(topology, devices)]
    kinds = node_kinds(topology)
    group = {name: name for name in kinds}
    seen: set[tuple[str, str]] = set()
    told: set[str] = set()
    certain = not problems

    def tell(message: str) -> None:
        if message not in told:
            told.add(message)
            problems.append(message)

    def root(name: str) -> str:
        while group[name] != name:
            group[name] = group[group[name]]
            name = group[name]
        return name

    for one, other, link, path in expand_edges(topology):
        where = ".".join(str(part) for part in path)
        if link not in links:
            listed = ", ".join(links) or "none"
            tell(f"{where}.link: got '{link}', which [links] does not define{nearest(link, links)}; it has: {listed}")
        missing = [end for end in (one, other) if end not in kinds]
        for end in missing:
            shown = end if path[1] == "edges" else end.partition("/")[2]
            known = kinds if path[1] == "edges" else [name.partition("/")[2] for name in kinds]
            tell(f"{where}.between: got '{shown}', which is no node or device{nearest(shown, known)}")
        if missing:
            certain = False  # what this edge was to join may hang on it
            continue
        if one == other and not kinds[one].startswith("device:"):
            tell(f"{where}.between: joins '{one}' to itself; expected two nodes (only a device has a link of its own)")
        if (min(one, other), max(one, other)) in seen:
            tell(f"{where}.between: a second link between '{one}' and '{other}'; expected one: add up their bandwidth")
        seen.add((min(one, other), max(one, other)))
        group[root(one)] = root(other)
    if certain:
        problems += _unreachable(kinds, root)
    return problems


def _name_problems(topology: Topology, devices: Collection[str]) -> list[str]:
    problems = []
    for base, host in topology.hosts.items():
        where = f"topology.hosts.{base}"
        for number, placed in enumerate(host.devices):
            if placed.type not in devices:
                listed = ", ".join(devices) or "none"
                problems.append(
                    f"{where}.devices.{number}.type: got '{placed.type}', which [devices] does not define"
                    f"{nearest(placed.type, devices)}; it has: {listed}"
                )
        names = Counter([name for placed in host.devices for name in placed.names()] + list(host.nodes))
        problems += [f"{where}: {times} things are called '{name}'" for name, times in names.items() if times > 1]
    names = Counter(full for base, host in topology.hosts.items() for full in copies(base, host.count))
    problems += [f"topology.hosts: {times} hosts are called '{name}'" for name, times in names.items() if times > 1]
    return problems


def _unreachable(kinds: Mapping[str, str], root: Callable[[str], str]) -> list[str]:
    """One line for each device that the first one does not reach."""
    devices = [name for name, kind in kinds.items() if kind.startswith("device:")]
    return [
        f"topology: '{name}' is not reachable from '{devices[0]}'; expected a chain of links in topology.*.edges"
        for name in devices[1:]
        if root(name) != root(devices[0])
    ]
