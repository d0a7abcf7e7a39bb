"""Derives the hardware profile of a declared testbed: this machine's calibrated devices, divided among hosts, and links
of the declared rate. Only the load of a link, if any, was measured inside the testbed."""

from collections.abc import Iterable, Mapping
from math import log
from typing import Any, TypeVar

from executor.testbed.declaration import (
    ACKNOWLEDGED_FRAMES,
    ACKNOWLEDGEMENT_BYTES,
    FRAME_BYTES,
    PAYLOAD_BYTES,
    Declaration,
    RankPlace,
    rank_places,
)
from simgnn.errors import HardwareError
from simgnn.hardware.profile.communication import Backend, LinkType, Load
from simgnn.hardware.profile.devices import Cache, Curve, Device
from simgnn.hardware.profile.profile import Profile, parse_profile
from simgnn.hardware.profile.quantities import Bandwidth, CoreCount, Duration, Size, Strict
from simgnn.tomlfile import without_none
from simgnn.units import format_quantity

LOOP, STACK, WIRE = "loopback", "stack", "wire"
"""Names of links: among the ranks of a device, between a device and its host's interface, between hosts."""
Prices = TypeVar("Prices", bound=Strict)


def describe(declared: Declaration, base: Profile, load: Load | None = None) -> Profile:
    """Return the profile of a testbed on the machine that ``base`` was calibrated on.

    A host without slow ranks is one device with the host's cores. A host with slow ranks has one device per rank: a
    slow rank's device is as fast as its quota, the others share what the quotas leave. ``load``: load of the links
    between hosts, as measured by :func:`executor.testbed.runs.measure_load`. Raises :class:`HardwareError` when
    ``base`` is not one host with one CPU.
    """
    device, loop = _machine(base)
    assert device.cores is not None
    cores = max(1, int(device.cores.value))
    ranks = rank_places(declared, range(cores))
    devices: dict[str, Device] = {}
    slower: dict[str, float] = {}
    hosts: dict[str, Any] = {}
    for number in range(declared.hosts):
        here = [place for place in ranks if place.host.number == number]
        placed, made, times = _host(declared, device, cores, here)
        devices |= made
        slower |= times
        hosts[f"host{number}"] = _topology_of(declared, placed)
    # messages and calls were measured with an equal part of the cores for each rank, work with cores of its own
    share = ranks[0].full_cores / max(1, len(ranks[0].host.cores) // declared.ranks_per_host)
    equal = {name: max(1.0, by * share) for name, by in slower.items()}
    slowest = max(1 / declared.share(rank) for rank in range(declared.ranks))
    links = _links(declared, loop, equal, load)
    table = {
        "format": 1,
        "meta": _meta(declared, base, load is not None),
        "devices": {name: made.model_dump(exclude_defaults=True) for name, made in devices.items()},
        "links": {name: link.model_dump(exclude_defaults=True) for name, link in links.items()},
        "topology": {"hosts": hosts, **_network(declared)},
        "backends": {
            name: _backend(declared, backend, slowest).model_dump(exclude_defaults=True)
            for name, backend in base.backends.items()
        },
    }
    return parse_profile(without_none(table), f"profile of testbed '{declared.name}'")


def _machine(base: Profile) -> tuple[Device, LinkType]:
    """Return the one device of a machine, and the link among the ranks on it."""
    hosts = base.topology.host_names()
    placed = [name for _, host in hosts for entry in host.devices for name in [entry.type] * entry.count]
    edges = [edge.link for _, host in hosts for edge in host.edges if edge.between[0] == edge.between[1]]
    if len(hosts) != 1 or len(placed) != 1 or base.devices[placed[0]].kind != "cpu" or len(edges) != 1:
        raise HardwareError(
            f"--base: got '{base.meta.name}' with {len(hosts)} host(s), {len(placed)} device(s) and {len(edges)} "
            "link(s) among ranks of a device, expected the calibration of one machine with one CPU, by several ranks: "
            "make it with simgnn calibrate"
        )
    return base.devices[placed[0]], base.links[edges[0]]


def _host(
    declared: Declaration, device: Device, cores: int, here: list[RankPlace]
) -> tuple[list[tuple[str, str]], dict[str, Device], dict[str, float]]:
    """Return (name, type) of a host's devices, devices by type, and the factor by which each type is slower."""
    host = here[0].host
    quotas = [place.quota_cores for place in here if place.quota_cores is not None]
    if not quotas:
        part = host.core_count / cores
        return [("cpu", "cpu")], {"cpu": _part(device, cores, host.core_count, part, declared.hosts, 1.0)}, {"cpu": 1.0}
    threads = max(1, len(host.cores) // declared.ranks_per_host)
    left = len(here) - len(quotas)
    rest = min(float(threads), (host.core_count - sum(quotas)) / left) if left else 0.0
    placed, made, slower = [], {}, {}
    for place in here:
        speed = rest if place.quota_cores is None else min(float(threads), place.quota_cores)
        kind = f"cpu-{speed:.3g}-of-{threads}"
        part = host.core_count / cores / len(here)
        slower[kind] = threads / speed
        made[kind] = _part(device, cores, float(threads), part, declared.ranks, slower[kind])
        placed.append((f"cpu{place.local_rank}", kind))
    return placed, made, slower


def _part(device: Device, cores: int, count: float, part: float, split: int, slower: float) -> Device:
    """Return one of ``split`` devices, with ``count`` cores and ``part`` of the memory, ``slower`` times as slow."""
    if split == 1 and slower == 1.0:
        return device
    return device.model_copy(
        update={
            "memory": Size.of(device.memory.value * part, device.memory.source, note="an equal part of the machine's"),
            "cores": CoreCount.of(count, "assumed", note="declared: the machine's cores, divided"),
            "sockets": None,
            "caches": {name: _cache(cache, cores, count) for name, cache in device.caches.items()},
            "curves": tuple(_curves(device.curves, cores, count, split, slower)),
        }
    )


def _cache(cache: Cache, cores: int, count: float) -> Cache:
    """Return the cache of a part of the machine: the part's own instances, or its part of a shared one."""
    sharers = float(cores) if cache.shared_by is None else cache.shared_by.value
    own = max(1.0, count)
    if sharers <= own:
        return cache
    size = Size.of(cache.size.value * own / sharers, cache.size.source, note="its part of a cache shared with others")
    return Cache(size=size, shared_by=CoreCount.of(own, "assumed"))


def _curves(curves: Iterable[Curve], cores: int, count: float, split: int, slower: float) -> Iterable[Curve]:
    """Yield curves of one of ``split`` parts of a machine: c ranks on each part cost as c x split on the machine."""
    levels: dict[tuple[str, int], list[Curve]] = {}
    for curve in curves:
        levels.setdefault((curve.primitive, curve.threads), []).append(curve)
    least = {primitive: min(t for name, t in levels if name == primitive) for primitive, _ in levels}
    for (primitive, threads), measured in levels.items():
        if threads > max(1.0, count) and threads != least[primitive]:
            continue
        for own in sorted({max(1, curve.concurrency // split) for curve in measured}):
            most = max(own, cores // threads)  # more ranks than that take turns
            wanted = min(own * split, most)
            nearest = min(measured, key=lambda curve: (abs(log(curve.concurrency / wanted)), -curve.concurrency))
            yield _relabelled(nearest, own, nearest.concurrency == wanted, slower)


def _relabelled(curve: Curve, concurrency: int, exact: bool, slower: float) -> Curve:
    notes = [] if curve.note is None else [curve.note]
    if curve.concurrency != concurrency or not exact:
        notes.append(f"measured with {curve.concurrency} ranks at work on the machine")
    if slower != 1.0:
        notes.append(f"times multiplied by {slower:.4g}: the declared share of processor time")
    return curve.model_copy(
        update={
            "concurrency": concurrency,
            "costs": {name: cost * slower for name, cost in curve.costs.items()},
            "source": curve.source if exact and slower == 1.0 else "assumed",
            "note": "; ".join(notes) or None,
        }
    )


def _links(
    declared: Declaration, loop: LinkType, slower: Mapping[str, float], load: Load | None
) -> dict[str, LinkType]:
    """Return links by name. ``slower``: by device type, the factor by which computing and messages are slower."""
    links = {LOOP: loop, STACK: _slowed(loop, 1.0)}
    links |= {f"{STACK}-{kind}": _slowed(loop, by) for kind, by in slower.items()}
    if declared.link is not None:
        rate = format_quantity(declared.link, "bytes/s")
        burst = format_quantity(declared.burst_bytes(), "bytes")
        payload = PAYLOAD_BYTES / FRAME_BYTES
        note = f"{PAYLOAD_BYTES} of the {FRAME_BYTES} bytes of a frame are payload"
        # ranks that exchange rows send as much either way; where one end only sends, 2 % more payload passes
        steady = PAYLOAD_BYTES / (FRAME_BYTES + ACKNOWLEDGEMENT_BYTES / ACKNOWLEDGED_FRAMES)
        both = f"as much goes either way, with {ACKNOWLEDGEMENT_BYTES} to acknowledge every {ACKNOWLEDGED_FRAMES}"
        links[WIRE] = LinkType(
            kind="ethernet",
            bandwidth=Bandwidth.of(declared.link * steady, "datasheet", note=f"declared {rate}; {note}, {both} frames"),
            burst=Size.of(declared.burst_bytes() * payload, "datasheet", note=f"declared {burst}; {note}"),
            latency=Duration.of(0.0, "assumed", note="nothing is delayed; the message's floor is that of the machine"),
            load=load,
        )
    return links


def _slowed(loop: LinkType, by: float) -> LinkType:
    """Return a link with half of the latency between two ranks, ``by`` times as slow: a slow rank's end of the path."""
    half = loop.latency.value / 2
    if by == 1.0:
        latency = Duration.of(half, loop.latency.source, note="half of the way from rank to rank")
        return loop.model_copy(update={"latency": latency})
    note = f"times multiplied by {by:.4g}: the declared share of processor time"
    most = loop.message_bandwidth
    return loop.model_copy(
        update={
            "latency": Duration.of(half * by, "assumed", note=note),
            "bandwidth": Bandwidth.of(loop.bandwidth.value / by, "assumed", note=note),
            "message_bandwidth": None if most is None else Bandwidth.of(most.value / by, "assumed", note=note),
        }
    )


def _backend(declared: Declaration, backend: Backend, slowest: float) -> Backend:
    """Return a communication library on the testbed: collectives inside a host as measured, and across hosts the same,
    where links also limit them.

    ``slowest``: the factor by which the slowest rank is slower than a rank with an equal part of the cores, which was
    measured. Processors carry out calls and messages, and all ranks of a call wait for the slowest.
    """
    collectives = backend.collectives
    if declared.hosts > 1:
        found = []
        for each in collectives:
            if each.scope == "any":
                found.append(each.model_copy(update={"scope": "host"}))
            bus = each.bus_bandwidth
            if bus is not None:
                bus = bus.model_copy(
                    update={"source": "assumed", "note": "as inside one machine, where links allow it"}
                )
            found.append(each.model_copy(update={"scope": "cluster", "bus_bandwidth": bus}))
        collectives = tuple(found)
    return backend.model_copy(
        update={
            "message": _slower(backend.message, slowest),
            "ports": None if backend.ports is None else _slower(backend.ports, slowest),
            "collectives": tuple(_slower(each, slowest) for each in collectives),
        }
    )


def _slower(prices: Prices, by: float) -> Prices:
    """Return prices with every time multiplied and every rate divided by ``by``."""
    note = f"times multiplied by {by:.4g}: the slowest rank's declared share of processor time"
    update = {}
    for name, number in prices if by != 1.0 else ():
        if isinstance(number, Duration | Bandwidth):
            value = number.value * by if isinstance(number, Duration) else number.value / by
            update[name] = number.of(value, "assumed", spread=number.spread, note=note)
    return prices.model_copy(update=update)


def _topology_of(declared: Declaration, placed: list[tuple[str, str]]) -> dict[str, Any]:
    """Return a host's topology: devices, each with a link between its own ranks; memory connects several devices."""
    edges = [{"between": (name, name), "link": LOOP} for name, _ in placed]
    nodes: dict[str, str] = {}
    inner = placed[0][0]
    if len(placed) > 1:
        nodes["memory"], inner = "memory", "memory"
        edges += [{"between": (name, inner), "link": f"{STACK}-{kind}"} for name, kind in placed]
    if declared.hosts > 1:
        nodes["nic"] = "nic"
        edges.append({"between": (inner, "nic"), "link": STACK})
    return {"devices": [{"name": name, "type": kind} for name, kind in placed], "nodes": nodes, "edges": edges}


def _network(declared: Declaration) -> dict[str, Any]:
    ends = [f"host{number}/nic" for number in range(declared.hosts)]
    if declared.hosts == 1:
        return {}
    if declared.hosts == 2:
        return {"edges": [{"between": ends, "link": WIRE}]}
    return {
        "nodes": {"switch": "network-switch"},
        "edges": [{"between": (end, "switch"), "link": WIRE} for end in ends],
    }


def _meta(declared: Declaration, base: Profile, loaded: bool) -> dict[str, Any]:
    rate = ""
    if declared.link is not None:
        rate = f", {format_quantity(declared.link, 'bytes/s')} between hosts ({declared.queue} queue)"
    measured = "; what links do while messages fill them as measured inside" if loaded else ""
    slow = "".join(f", rank {rank} at {share:.0%}" for rank, share in declared.slow.items())
    return {
        **base.meta.model_dump(),
        "name": f"{base.meta.name}-{declared.name}",
        "ranks_per_host": declared.ranks_per_host,
        "description": (
            f"testbed '{declared.name}' on {base.meta.name}: {declared.hosts} host(s) of {declared.ranks_per_host} "
            f"rank(s){rate}{slow}; devices as calibrated, links and quotas as declared{measured}"
        ),
        "sources": (*base.meta.sources, f"declaration of testbed '{declared.name}'"),
    }
