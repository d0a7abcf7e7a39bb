"""Variants of a profile: a rate cut down (a score that does not notice is no score); costs as other software has."""

from collections.abc import Mapping, Sequence

from simgnn.errors import ConfigError
from simgnn.hardware.profile.communication import Backend, Collective, LinkType
from simgnn.hardware.profile.devices import Curve, Device
from simgnn.hardware.profile.profile import Profile
from simgnn.hardware.profile.quantities import Bandwidth
from simgnn.spelling import nearest
from simgnn.study.published.suite import Adjustment
from simgnn.study.validate.suite import Slowed


def slow_down(profile: Profile, what: Slowed) -> Profile:
    """The profile with one rate cut down to a share: of a primitive (its costs grow), or of a kind of links.

    Shared-memory links of a library have their rate in the library, so its rates go down with them. Raises
    :class:`ConfigError` when the profile has nothing of the kind.
    """
    if what.primitive is not None:
        known = sorted({curve.primitive for device in profile.devices.values() for curve in device.curves})
        if what.primitive != "*" and what.primitive not in known:
            raise ConfigError(
                f"sensitivity.primitive: got '{what.primitive}', expected '*' or one of the profile's: "
                f"{', '.join(known)}{nearest(what.primitive, known)}"
            )
        devices = {name: _slower(device, what.primitive, what.share) for name, device in profile.devices.items()}
        return profile.model_copy(update={"devices": devices})
    slower_links = {
        name: _slower_link(link, what.share) for name, link in profile.links.items() if link.kind == what.link
    }
    backends = dict(profile.backends)
    if what.link in ("shared-memory", "loopback"):
        backends = {name: _slower_backend(entry, what.share) for name, entry in profile.backends.items()}
    return profile.model_copy(update={"links": {**profile.links, **slower_links}, "backends": backends})


def adjusted(profile: Profile, adjustments: Sequence[Adjustment], memory: float) -> Profile:
    """The profile with factors on its GPUs' costs, and with as much less memory as ``memory`` times more is needed.

    Raises :class:`ConfigError` for a cost that no GPU of the profile has.
    """
    gpus = {name: device for name, device in profile.devices.items() if device.kind == "gpu"}
    for one in adjustments:
        known = {name for gpu in gpus.values() for curve in gpu.curves_of(one.primitive) for name in curve.costs}
        for name in sorted(set(one.costs) - known):
            raise ConfigError(
                f"tables.adjust: {one.primitive} has no cost '{name}' on any GPU of '{profile.meta.name}'"
                f"{nearest(name, sorted(known))}; known: {', '.join(sorted(known)) or 'none'}"
            )
    changed = {name: _adjusted(gpu, adjustments, memory) for name, gpu in gpus.items()}
    return profile.model_copy(update={"devices": {**profile.devices, **changed}})


def _adjusted(device: Device, adjustments: Sequence[Adjustment], memory: float) -> Device:
    curves, caches = list(device.curves), dict(device.caches)
    for one in adjustments:
        curves = [_scaled(curve, one.costs) if curve.primitive == one.primitive else curve for curve in curves]
        for cache in {cache for curve in device.curves_of(one.primitive) for cache in curve.caches}:
            size = caches[cache].size
            larger = size.model_copy(update={"value": size.value * one.cache})
            caches[cache] = caches[cache].model_copy(update={"size": larger})
    there = device.memory.model_copy(update={"value": device.memory.value / memory})
    return device.model_copy(update={"curves": tuple(curves), "caches": caches, "memory": there})


def _scaled(curve: Curve, factors: Mapping[str, float]) -> Curve:
    costs = {name: cost * factors.get(name, 1.0) for name, cost in curve.costs.items()}
    return curve.model_copy(update={"costs": costs})


def affects(profile: Profile, what: Slowed) -> bool:
    """Whether it can change anything: a primitive always can, links only where the profile has one of the kind."""
    return what.primitive is not None or any(link.kind == what.link for link in profile.links.values())


def _slower(device: Device, primitive: str, share: float) -> Device:
    curves = tuple(
        _scaled(curve, dict.fromkeys(curve.costs, 1 / share)) if primitive in ("*", curve.primitive) else curve
        for curve in device.curves
    )
    return device.model_copy(update={"curves": curves})


def _cut(rate: Bandwidth | None, share: float) -> Bandwidth | None:
    return None if rate is None else rate.model_copy(update={"value": rate.value * share})


def _slower_link(link: LinkType, share: float) -> LinkType:
    rates = {"bandwidth": link.bandwidth, "message_bandwidth": link.message_bandwidth}
    return link.model_copy(update={name: _cut(rate, share) for name, rate in rates.items()})


def _slower_backend(backend: Backend, share: float) -> Backend:
    message = backend.message.model_copy(update={"bandwidth": _cut(backend.message.bandwidth, share)})
    ports = backend.ports
    if ports is not None:
        ports = ports.model_copy(update={"send": _cut(ports.send, share), "receive": _cut(ports.receive, share)})
    collectives = tuple(_slower_bus(collective, share) for collective in backend.collectives)
    return backend.model_copy(update={"message": message, "ports": ports, "collectives": collectives})


def _slower_bus(collective: Collective, share: float) -> Collective:
    return collective.model_copy(update={"bus_bandwidth": _cut(collective.bus_bandwidth, share)})
