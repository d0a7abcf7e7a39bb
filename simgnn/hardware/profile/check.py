"""Checks that a hardware profile holds everything that a simulation of training needs."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from simgnn.errors import HardwareError
from simgnn.hardware.primitives import PRIMITIVES
from simgnn.hardware.profile.profile import Profile
from simgnn.hardware.topology.routes import lay_out
from simgnn.hardware.topology.topology import expand_edges

TRAINING_PRIMITIVES = tuple(name for name, row in PRIMITIVES.items() if not row.optional and row.stand_in is None)
"""Primitives that full-graph training needs. Other work without a curve has no price, or that of a stand-in."""
TRAINING_COLLECTIVES = ("allreduce", "exchange")


def price_problems(profile: Profile) -> list[str]:
    """List what a profile lacks for training: curves of devices, links among ranks, collectives of a backend."""
    used = {placed.type for host in profile.topology.hosts.values() for placed in host.devices}
    curves = {name: {curve.primitive for curve in device.curves} for name, device in profile.devices.items()}
    problems = _missing_curves({name: present for name, present in curves.items() if name in used})
    network = lay_out(profile)
    # without a measurement with two ranks the speed between ranks is unknown, so pricing messages raises an error
    if not profile.calibrated or len(profile.topology.host_names()) == 1:
        looped = {one for one, other, _, _ in expand_edges(profile.topology) if one == other}
        problems += [
            f"topology: '{name}' has no link to itself, so ranks on it cannot communicate; add an edge between it and "
            "itself"
            for name, kind in network.kinds.items()
            if kind.startswith("device:") and profile.devices[kind.partition(":")[2]].kind == "cpu"
            if name not in looped
        ]
    for name in sorted(network.staged):  # their messages go through host memory
        try:
            network.host_memory(name)
        except HardwareError as error:
            problems.append(str(error))
    for name, backend in profile.backends.items():
        gpus = any(profile.devices[kind].kind == "gpu" for kind in used)
        if gpus and str(name) == "gloo" and backend.memory != "host":
            problems.append(
                f"backends.{name}.memory: got '{backend.memory}', expected 'host': Gloo sends from host memory"
            )
        if backend.memory == "host" and backend.ports is None and backend.message.bandwidth is None:
            problems.append(
                f"backends.{name}: missing ports or message.bandwidth, as no link limits messages inside one memory"
            )
    backends = {
        str(name): [(c.kind, c.scope) for c in backend.collectives] for name, backend in profile.backends.items()
    }
    devices = [sum(placed.count for placed in host.devices) for _, host in profile.topology.host_names()]
    return problems + _missing_collectives(backends, len(devices) > 1, max(devices) > 1)


def table_price_problems(table: Mapping[str, Any]) -> list[str]:
    """Find the problems of :func:`price_problems` in a table that is not a valid profile, to report all at once."""
    hosts = _mapping(_mapping(table.get("topology")).get("hosts"))
    placed = [entry.get("type") for host in hosts.values() for entry in _tables(host, "devices")]
    problems = _missing_curves(
        {
            name: {curve.get("primitive") for curve in _tables(device, "curves")}
            for name, device in _mapping(table.get("devices")).items()
            if name in placed and isinstance(device, Mapping)
        }
    )
    if not isinstance(table.get("backends", {}), Mapping):
        return problems
    present = {
        str(name): [(entry.get("kind"), "any") for entry in _tables(backend, "collectives")]
        for name, backend in table.get("backends", {}).items()
    }
    return problems + _missing_collectives(present, False, False)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _tables(value: object, key: str) -> list[Mapping[str, Any]]:
    """Entries of the list under ``key`` that are tables; empty if there is no list."""
    entries = _mapping(value).get(key)
    return [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []


def _missing_curves(devices: Mapping[str, Collection[Any]]) -> list[str]:
    """Report missing curves of devices, given as name -> primitives that have a curve."""
    return [
        f"devices.{name}.curves: no curve of '{primitive}'"
        for name, present in devices.items()
        for primitive in TRAINING_PRIMITIVES
        if primitive not in present
    ]


def _missing_collectives(backends: Mapping[str, Sequence[tuple[Any, Any]]], across: bool, inside: bool) -> list[str]:
    """Report missing collectives of backends, given as name -> (kind, scope) of each collective. ``across``,
    ``inside``: whether the machine can have groups across hosts, or inside a host."""
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
