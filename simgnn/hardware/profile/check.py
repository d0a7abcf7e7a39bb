"""What a profile must hold beyond the form of its tables: names that exist, devices that reach each other, prices."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simgnn.errors import HardwareError
from simgnn.hardware.primitives import PRIMITIVES
from simgnn.hardware.topology.routes import lay_out
from simgnn.hardware.topology.topology import Topology, copies, expand_edges, node_kinds
from simgnn.spelling import nearest
from simgnn.units import format_quantity

if TYPE_CHECKING:
    from simgnn.hardware.profile.profile import Profile

TRAINING_PRIMITIVES = tuple(name for name, row in PRIMITIVES.items() if not row.optional and row.stand_in is None)
"""What full-graph training is priced from. Without a curve of any other primitive, programs that need it have no price,
or are priced by what stands in for it."""
TRAINING_COLLECTIVES = ("allreduce", "exchange")


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


def burst_problems(profile: "Profile") -> list[str]:
    """Links between nodes that let bytes through at once, any of a profile in which messages of a device go as copies
    through host memory, one after the other: which ones these cross is a matter of routes, and of who talks to whom.

    A flow over all the copies is slower than each of its links, so that their buckets could not tell what it has saved.
    """
    used = {placed.type for host in profile.topology.hosts.values() for placed in host.devices}
    apart = [name for name in profile.devices if name in used and profile.devices[name].staged]
    sending = [str(name) for name, backend in profile.backends.items() if backend.memory == "device"]
    if not apart or not sending:
        return []
    crossed = {link for one, other, link, _ in expand_edges(profile.topology) if one != other}
    return [
        f"links.{name}.burst: got {format_quantity(link.burst.value, 'bytes')}, but messages of '{apart[0]}' go as "
        "copies through host memory, of which a burst cannot be told; expected none, peer_to_peer = true of "
        f"{', '.join(apart)}, or backends.{sending[0]}.memory = 'host'"
        for name, link in profile.links.items()
        if name in crossed and link.burst is not None
    ]


def price_problems(profile: "Profile") -> list[str]:
    """What a simulation of training would miss: curves of devices, links among ranks, collectives of a backend."""
    problems = []
    used = {placed.type for host in profile.topology.hosts.values() for placed in host.devices}
    for name, device in profile.devices.items():
        if name in used:
            present = {curve.primitive for curve in device.curves}
            problems += _missing_curves(name, present)
    problems += _missing_loops(profile)
    problems += _missing_memories(profile)
    problems += _unstaged(profile, used)
    backends = {
        str(name): [(c.kind, c.scope) for c in backend.collectives] for name, backend in profile.backends.items()
    }
    devices = [sum(placed.count for placed in host.devices) for _, host in profile.topology.host_names()]
    return problems + _missing_collectives(backends, len(devices) > 1, max(devices) > 1)


def table_price_problems(table: Mapping[str, Any]) -> list[str]:
    """The same as far as it shows in a table that is no profile yet: so that one look tells all there is to mend."""
    problems = []
    topology, devices = table.get("topology"), table.get("devices")
    hosts = topology.get("hosts") if isinstance(topology, Mapping) else None
    placed = [
        entry.get("type")
        for host in (hosts.values() if isinstance(hosts, Mapping) else ())
        for entry in _tables(host, "devices")
    ]
    for name, device in devices.items() if isinstance(devices, Mapping) else ():
        if name in placed and isinstance(device, Mapping):
            problems += _missing_curves(name, {curve.get("primitive") for curve in _tables(device, "curves")})
    backends = table.get("backends")
    if not isinstance(backends, Mapping):
        return problems if "backends" in table else problems + _missing_collectives({}, False, False)
    present = {
        str(name): [(entry.get("kind"), "any") for entry in _tables(backend, "collectives")]
        for name, backend in backends.items()
    }
    return problems + _missing_collectives(present, False, False)


def _tables(value: object, key: str) -> list[Mapping[str, Any]]:
    """The list of tables under a key, as far as it is one."""
    entries = value.get(key) if isinstance(value, Mapping) else None
    return [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []


def _missing_curves(name: str, present: Collection[Any]) -> list[str]:
    missing = [primitive for primitive in TRAINING_PRIMITIVES if primitive not in present]
    return [f"devices.{name}.curves: no curve of '{primitive}'" for primitive in missing]


def _missing_collectives(backends: Mapping[str, Sequence[tuple[Any, Any]]], across: bool, inside: bool) -> list[str]:
    """``backends``: (kind, scope) of each collective; ``across``, ``inside``: groups that the machine can have."""
    if not backends:
        return ["backends: none; expected [backends.gloo] or [backends.nccl]"]
    problems = []
    for name, entries in backends.items():
        for kind in TRAINING_COLLECTIVES:
            scopes = {scope for found, scope in entries if found == kind}
            if not scopes:
                problems.append(f"backends.{name}.collectives: no '{kind}'")
            elif "any" not in scopes:
                for scope, there, where in (("cluster", across, "across hosts"), ("host", inside, "inside a host")):
                    if there and scope not in scopes:
                        problems.append(f"backends.{name}.collectives: no '{kind}' for groups {where}")
    return problems


def _missing_memories(profile: "Profile") -> list[str]:
    """Devices whose messages go through host memory, which they do not reach."""
    network = lay_out(profile)
    problems = []
    for name in sorted(network.staged):
        try:
            network.host_memory(name)
        except HardwareError as error:
            problems.append(str(error))
    return problems


def _unstaged(profile: "Profile", used: Collection[str]) -> list[str]:
    """Gloo reads and writes host memory only, and needs a rate there: on GPUs its messages end where no link tells."""
    problems = []
    for name, backend in profile.backends.items():
        gpus = any(device.kind == "gpu" for kind, device in profile.devices.items() if kind in used)
        if gpus and str(name) == "gloo" and backend.memory != "host":
            problems.append(f"backends.{name}.memory: got '{backend.memory}', expected 'host': Gloo sends from there")
        if backend.memory == "host" and backend.ports is None and backend.message.bandwidth is None:
            problems.append(f"backends.{name}: expected ports or message.bandwidth: inside a memory no link limits it")
    return problems


def _missing_loops(profile: "Profile") -> list[str]:
    if profile.calibrated and len(profile.topology.host_names()) > 1:
        return []  # where one rank measured alone nobody knows how two talk: pricing it is refused
    kinds = node_kinds(profile.topology)
    looped = {one for one, other, _, _ in expand_edges(profile.topology) if one == other}
    return [
        f"topology: '{name}' has no link to itself, so ranks on it cannot talk; expected an edge between it and itself"
        for name, kind in kinds.items()
        if kind.startswith("device:") and profile.devices[kind.partition(":")[2]].kind == "cpu" and name not in looped
    ]
