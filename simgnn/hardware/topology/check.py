"""Check of a topology: names that exist, and devices that reach each other."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping

from simgnn.hardware.topology.topology import Topology, copies, expand_edges, node_kinds
from simgnn.spelling import nearest


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
