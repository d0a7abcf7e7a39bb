"""Variants of a hardware profile: with a reduced rate, which a score must notice, or with another software's costs."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from simgnn.errors import ConfigError
from simgnn.hardware.profile.communication import Backend
from simgnn.hardware.profile.devices import Curve, Device
from simgnn.hardware.profile.profile import Profile
from simgnn.hardware.profile.quantities import Strict
from simgnn.spelling import nearest
from simgnn.study.published.suite import Adjustment
from simgnn.study.validate.suite import Slowed

Table = TypeVar("Table", bound=Strict)


def slow_down(profile: Profile, what: Slowed) -> Profile:
    """Return the profile with one rate reduced to a share: of a primitive (its costs grow), or of one kind of links.

    A profile without such links is unchanged. The rate of shared-memory links is stated by the communication library,
    so the rates of libraries are reduced with them. Raises :class:`ConfigError` for a primitive that the profile lacks.
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
    rates = ("bandwidth", "message_bandwidth")
    links = {name: _cut(link, rates, what.share) for name, link in profile.links.items() if link.kind == what.link}
    backends = dict(profile.backends)
    if links and what.link in ("shared-memory", "loopback"):
        backends = {name: _slower_backend(entry, what.share) for name, entry in profile.backends.items()}
    return profile.model_copy(update={"links": {**profile.links, **links}, "backends": backends})


def adjusted(profile: Profile, adjustments: Sequence[Adjustment], memory: float) -> Profile:
    """Return the profile with factors on the costs of its GPUs, and with their memory divided by ``memory``.

    Raises :class:`ConfigError` for a cost that no GPU of the profile has.
    """
    gpus = {name: device for name, device in profile.devices.items() if device.kind == "gpu"}
    for one in adjustments:
        curves = [curve for gpu in gpus.values() for curve in gpu.curves_of(one.primitive)]
        known = sorted({name for curve in curves for name in curve.costs})
        for name in sorted(set(one.costs).difference(known)):
            raise ConfigError(
                f"tables.adjust: {one.primitive} has no cost '{name}' on any GPU of '{profile.meta.name}'"
                f"{nearest(name, known)}; known: {', '.join(known) or 'none'}"
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


def _slower(device: Device, primitive: str, share: float) -> Device:
    curves = tuple(
        _scaled(curve, dict.fromkeys(curve.costs, 1 / share)) if primitive in ("*", curve.primitive) else curve
        for curve in device.curves
    )
    return device.model_copy(update={"curves": curves})


def _slower_backend(backend: Backend, share: float) -> Backend:
    ports = None if backend.ports is None else _cut(backend.ports, ("send", "receive"), share)
    collectives = tuple(_cut(collective, ("bus_bandwidth",), share) for collective in backend.collectives)
    message = _cut(backend.message, ("bandwidth",), share)
    return backend.model_copy(update={"message": message, "ports": ports, "collectives": collectives})


def _cut(table: Table, names: Sequence[str], share: float) -> Table:
    """Return a copy of a profile's table with the named rates, where present, multiplied by ``share``."""
    rates = {name: getattr(table, name) for name in names}
    changed = {name: rate.model_copy(update={"value": rate.value * share}) for name, rate in rates.items() if rate}
    return table.model_copy(update=changed)
