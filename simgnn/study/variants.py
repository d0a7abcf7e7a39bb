"""Profiles with a rate halved: a score that does not notice is no score."""

from simgnn.errors import ConfigError
from simgnn.hardware.devices import Device
from simgnn.hardware.links import Backend, Collective, LinkType
from simgnn.hardware.profile import Profile
from simgnn.hardware.quantities import Bandwidth
from simgnn.names import nearest
from simgnn.study.suite import Halved


def halve(profile: Profile, what: Halved) -> Profile:
    """The profile with one rate halved: every cost of a primitive doubled, or every rate of a kind of links halved.

    Shared-memory links of a library have their rate in the library, so its rates are halved with them. Raises
    :class:`ConfigError` when the profile has nothing of the kind.
    """
    if what.primitive is not None:
        known = sorted({curve.primitive for device in profile.devices.values() for curve in device.curves})
        if what.primitive != "*" and what.primitive not in known:
            raise ConfigError(
                f"sensitivity.primitive: got '{what.primitive}', expected '*' or one of the profile's: "
                f"{', '.join(known)}{nearest(what.primitive, known)}"
            )
        devices = {name: _slower(device, what.primitive) for name, device in profile.devices.items()}
        return profile.model_copy(update={"devices": devices})
    links = {name: _half_link(link) if link.kind == what.link else link for name, link in profile.links.items()}
    local = what.link in ("shared-memory", "loopback")
    backends = {name: _half_backend(entry) if local else entry for name, entry in profile.backends.items()}
    return profile.model_copy(update={"links": links, "backends": backends})


def affects(profile: Profile, what: Halved) -> bool:
    """Whether halving can change anything: a primitive always can, links only where the profile has one of the kind."""
    return what.primitive is not None or any(link.kind == what.link for link in profile.links.values())


def _slower(device: Device, primitive: str) -> Device:
    curves = tuple(
        curve.model_copy(update={"costs": {name: 2 * cost for name, cost in curve.costs.items()}})
        if primitive in ("*", curve.primitive)
        else curve
        for curve in device.curves
    )
    return device.model_copy(update={"curves": curves})


def _half(rate: Bandwidth | None) -> Bandwidth | None:
    return None if rate is None else rate.model_copy(update={"value": rate.value / 2})


def _half_link(link: LinkType) -> LinkType:
    return link.model_copy(
        update={"bandwidth": _half(link.bandwidth), "message_bandwidth": _half(link.message_bandwidth)}
    )


def _half_backend(backend: Backend) -> Backend:
    message = backend.message.model_copy(update={"bandwidth": _half(backend.message.bandwidth)})
    ports = backend.ports
    if ports is not None:
        ports = ports.model_copy(update={"send": _half(ports.send), "receive": _half(ports.receive)})
    return backend.model_copy(
        update={"message": message, "ports": ports, "collectives": tuple(map(_half_bus, backend.collectives))}
    )


def _half_bus(collective: Collective) -> Collective:
    return collective.model_copy(update={"bus_bandwidth": _half(collective.bus_bandwidth)})
