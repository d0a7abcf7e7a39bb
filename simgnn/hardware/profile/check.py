"""What a profile must hold so that training can be priced on its machine."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from simgnn.errors import HardwareError
from simgnn.hardware.primitives import PRIMITIVES
from simgnn.hardware.profile.profile import Profile
from simgnn.hardware.topology.routes import lay_out
from simgnn.hardware.topology.topology import expand_edges, node_kinds

TRAINING_PRIMITIVES = tuple(name for name, row in PRIMITIVES.items() if not row.optional and row.stand_in is None)
"""What full-graph training is priced from. Without a curve of any other primitive, programs that need it have no price,
or are priced by what stands in for it."""
TRAINING_COLLECTIVES = ("allreduce", "exchange")


def price_problems(profile: Profile) -> list[str]:
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
    """The same problems, found in a table that is no profile yet, so that all are reported at once."""
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


def _missing_memories(profile: Profile) -> list[str]:
    """Devices whose messages go through host memory, which they do not reach."""
    network = lay_out(profile)
    problems = []
    for name in sorted(network.staged):
        try:
            network.host_memory(name)
        except HardwareError as error:
            problems.append(str(error))
    return problems


def _unstaged(profile: Profile, used: Collection[str]) -> list[str]:
    """Gloo uses host memory only, so on GPUs a profile must state the rate of that memory."""
    problems = []
    for name, backend in profile.backends.items():
        gpus = any(device.kind == "gpu" for kind, device in profile.devices.items() if kind in used)
        if gpus and str(name) == "gloo" and backend.memory != "host":
            problems.append(f"backends.{name}.memory: got '{backend.memory}', expected 'host': Gloo sends from there")
        if backend.memory == "host" and backend.ports is None and backend.message.bandwidth is None:
            problems.append(f"backends.{name}: expected ports or message.bandwidth: inside a memory no link limits it")
    return problems


def _missing_loops(profile: Profile) -> list[str]:
    if profile.calibrated and len(profile.topology.host_names()) > 1:
        return []  # where one rank measured alone nobody knows how two talk: pricing it is refused
    kinds = node_kinds(profile.topology)
    looped = {one for one, other, _, _ in expand_edges(profile.topology) if one == other}
    return [
        f"topology: '{name}' has no link to itself, so ranks on it cannot talk; expected an edge between it and itself"
        for name, kind in kinds.items()
        if kind.startswith("device:") and profile.devices[kind.partition(":")[2]].kind == "cpu" and name not in looped
    ]
