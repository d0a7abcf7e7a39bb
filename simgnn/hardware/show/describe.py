"""A profile as nested text and as numbers: for ``simgnn hardware show`` and whoever else prints one."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import HardwareError
from simgnn.hardware.price.features import unit_of
from simgnn.hardware.profile.quantities import Number, Strict
from simgnn.hardware.show.describe_topology import add_topology
from simgnn.hardware.show.node import Node
from simgnn.hardware.topology.routes import lay_out
from simgnn.hardware.topology.topology import expand_edges, node_kinds
from simgnn.units import cost_of, format_quantity

if TYPE_CHECKING:
    from simgnn.hardware.profile.devices import Curve, Device
    from simgnn.hardware.profile.libraries import Collective
    from simgnn.hardware.profile.links import Load
    from simgnn.hardware.profile.profile import Profile


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
