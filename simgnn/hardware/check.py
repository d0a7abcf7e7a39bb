"""What a profile must hold beyond the form of its tables: names that exist, devices that reach each other, prices."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from simgnn.hardware.devices import Device
from simgnn.hardware.features import PRIMITIVES
from simgnn.hardware.topology import Topology, copies, expand_edges, node_kinds
from simgnn.names import nearest

if TYPE_CHECKING:
    from simgnn.hardware.profile import Profile

TRAINING_PRIMITIVES = tuple(primitive for primitive in PRIMITIVES if primitive != "sample")
"""What full-graph training is priced from."""
TRAINING_COLLECTIVES = ("allreduce", "exchange")


def topology_problems(topology: Topology, devices: Collection[str], links: Collection[str]) -> list[str]:
    """Faults of the references of a topology: names that nothing bears, names borne twice, what nothing reaches."""
    problems = [*_name_problems(topology, devices)]
    kinds = node_kinds(topology)
    group = {name: name for name in kinds}
    seen: set[tuple[str, str]] = set()
    told: set[str] = set()

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
            continue
        if one == other and not kinds[one].startswith("device:"):
            tell(f"{where}.between: joins '{one}' to itself; expected two nodes (only a device has a link of its own)")
        if (min(one, other), max(one, other)) in seen:
            tell(f"{where}.between: a second link between '{one}' and '{other}'; expected one: add up their bandwidth")
        seen.add((min(one, other), max(one, other)))
        group[root(one)] = root(other)
    if not problems:
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


def price_problems(profile: "Profile") -> list[str]:
    """What a simulation of training would miss: curves of devices, links among ranks, collectives of a backend."""
    problems = []
    used = {placed.type for host in profile.topology.hosts.values() for placed in host.devices}
    for name, device in profile.devices.items():
        if name in used:
            problems += [f"devices.{name}.curves: no curve of '{missing}'" for missing in _missing_curves(device)]
    problems += _missing_loops(profile)
    if not profile.backends:
        problems.append("backends: none; expected [backends.gloo] or [backends.nccl]")
    for name, backend in profile.backends.items():
        kinds = {collective.kind for collective in backend.collectives}
        problems += [f"backends.{name}.collectives: no '{kind}'" for kind in TRAINING_COLLECTIVES if kind not in kinds]
    return problems


def _missing_curves(device: Device) -> list[str]:
    return [primitive for primitive in TRAINING_PRIMITIVES if not device.curves_of(primitive)]


def _missing_loops(profile: "Profile") -> list[str]:
    kinds = node_kinds(profile.topology)
    looped = {one for one, other, _, _ in expand_edges(profile.topology) if one == other}
    return [
        f"topology: '{name}' has no link to itself, so ranks on it cannot talk; expected an edge between it and itself"
        for name, kind in kinds.items()
        if kind.startswith("device:") and profile.devices[kind.partition(":")[2]].kind == "cpu" and name not in looped
    ]
