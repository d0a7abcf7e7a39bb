"""The numbers of a profile that can limit a run, and profiles in which one of them is twice as good."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from simgnn.hardware.primitives import unit_of
from simgnn.hardware.profile.communication import Backend, Collective, LinkType
from simgnn.hardware.profile.devices import Curve, Device
from simgnn.hardware.profile.profile import Profile
from simgnn.hardware.profile.quantities import (
    SOURCES,
    Bandwidth,
    CoreCount,
    Duration,
    Frequency,
    Size,
    Source,
    Strict,
)
from simgnn.units import cost_of, format_quantity, parse

Path = tuple[str | int, ...]
DOUBLED, HALVED = 2.0, 0.5


@dataclass(frozen=True)
class ProfileNumber:
    """A rate, time or size of a profile. ``key``: where it stands; ``value``: as text with its unit.

    ``paths``: fields and entries that lead to it from the profile; several for numbers that only matter together.
    ``part``: what it belongs to. ``rate``: whether it is a bandwidth. ``factor``: what makes it twice as good.
    """

    key: str
    value: str
    source: Source
    paths: tuple[Path, ...]
    part: str
    rate: bool = False
    factor: float = DOUBLED

    def doubled(self, profile: Profile) -> Profile:
        """Return the profile with this number twice as good: a rate or size doubled, a time or cost halved."""
        return self.scaled(profile, self.factor)

    def halved(self, profile: Profile) -> Profile:
        """Return the profile with this number half as good: a rate or size halved, a time or cost doubled."""
        return self.scaled(profile, 1.0 / self.factor)

    def scaled(self, profile: Profile, factor: float) -> Profile:
        """Return the profile with this number, or all that it stands for, multiplied by a factor."""
        for path in self.paths:
            profile = _replaced(profile, path, factor)
        return profile


def profile_numbers(profile: Profile) -> Iterator[ProfileNumber]:
    """Yield every number of a profile that can change a time: of devices, links and libraries.

    Left out are capacities of memory and powers, which change no time, curves of factors, which qualify a number, and
    which cores share a cache.
    """
    for name, device in profile.devices.items():
        yield from _of_device(name, device)
    for name, link in profile.links.items():
        yield from _of_link(name, link)
    for name, backend in profile.backends.items():
        yield from _of_backend(str(name), backend)


def grouped_numbers(profile: Profile) -> Iterator[ProfileNumber]:
    """Yield the numbers of a profile as a user would change them: of a device all work at once, then what work costs a
    byte (the bandwidth of its memory), then each primitive, and its cores, clock and caches; links and libraries as
    :func:`profile_numbers` does."""
    for number in profile_numbers(profile):
        if number.part != "device" or number.paths[0][2] != "curves":
            yield number
    for name, device in profile.devices.items():
        yield from _work_of(name, device)


def _work_of(name: str, device: Device) -> Iterator[ProfileNumber]:
    costs = [
        (curve, cost, ("devices", name, "curves", place, "costs", cost))
        for place, curve in enumerate(device.curves)
        for cost, value in curve.costs.items()
        if value
    ]
    groups: dict[str, list[tuple[Curve, Path]]] = {}
    for curve, cost, path in costs:
        groups.setdefault("all work", []).append((curve, path))
        if unit_of(cost) == "B":
            groups.setdefault("work, by byte", []).append((curve, path))
        groups.setdefault(curve.primitive, []).append((curve, path))
    for what, found in groups.items():
        sources = {curve.source for curve, _ in found}
        least = max(sources, key=SOURCES.index)  # a group is as sure as its least sure number
        paths = tuple(path for _, path in found)
        yield ProfileNumber(f"devices.{name} ({what})", f"{len(paths)} costs", least, paths, "device", factor=HALVED)


def _of_device(name: str, device: Device) -> Iterator[ProfileNumber]:
    key, path = f"devices.{name}", ("devices", name)
    yield from _numbers(key, path, device, ("cores", "clock"), "device")
    for cache in device.caches:
        inside = (*path, "caches", cache)
        yield from _numbers(f"{key}.caches.{cache}", inside, device.caches[cache], ("size",), "device")
    for place, curve in enumerate(device.curves):
        several = len(device.curves_of(curve.primitive)) > 1
        level = f" ({curve.concurrency} x {curve.threads})" if several else ""
        for cost, value in curve.costs.items():
            if value:
                where = f"{key}.curves.{curve.primitive}.{cost}{level}"
                at: Path = (*path, "curves", place, "costs", cost)
                yield ProfileNumber(where, _cost_text(cost, value), curve.source, (at,), "device", factor=HALVED)


def _rounded(value: float, dimension: str) -> str:
    """Format a quantity with four digits."""
    return format_quantity(float(f"{value:.4g}"), dimension)


def _cost_text(feature: str, cost: float) -> str:
    """Format a cost as profiles state it: per byte and flop as a rate, else as a time."""
    unit = unit_of(feature)
    rate = {"B": "bytes/s", "flop": "flop/s"}.get(unit)
    return _rounded(cost, cost_of(unit)) if rate is None else _rounded(1 / cost, rate)


def _of_link(name: str, link: LinkType) -> Iterator[ProfileNumber]:
    key, path = f"links.{name}", ("links", name)
    for number in _numbers(key, path, link, ("bandwidth", "message_bandwidth", "latency", "burst"), "link"):
        in_bits = number.rate and link.kind in ("ethernet", "infiniband")
        yield replace(number, value=_as_bits(number.value)) if in_bits else number
    if link.load is not None:
        queues = tuple((*path, "load", "queues", place, "size") for place in range(len(link.load.queues)))
        most = _rounded(max(queue.size for queue in link.load.queues), "bytes")
        yield ProfileNumber(f"{key}.load.queues", f"up to {most}", link.load.source, queues, "load", factor=HALVED)
        if link.load.processor:
            text = f"{_rounded(link.load.processor, 's')} a byte"
            at: Path = (*path, "load", "processor")
            yield ProfileNumber(f"{key}.load.processor", text, link.load.source, (at,), "load", factor=HALVED)


def _as_bits(rate: str) -> str:
    """Write a rate as networks are sold: "25 Gbit/s"."""
    return f"{8 * parse(rate, 'bytes/s') / 1e9:.4g} Gbit/s"


def _of_backend(name: str, backend: Backend) -> Iterator[ProfileNumber]:
    key, path = f"backends.{name}", ("backends", name)
    yield from _numbers(f"{key}.message", (*path, "message"), backend.message, ("floor", "bandwidth"), "library")
    ports = backend.ports
    if ports is not None and ports.send.value == ports.receive.value:
        both = tuple((*path, "ports", one, "value") for one in ("send", "receive"))
        text = _rounded(ports.send.value, "bytes/s")
        yield ProfileNumber(f"{key}.ports (send and receive)", text, ports.send.source, both, "library", True)
    elif ports is not None:
        yield from _numbers(f"{key}.ports", (*path, "ports"), ports, ("send", "receive"), "library")
    for place, entry in enumerate(backend.collectives):
        where = f"{key}.{entry.kind}"
        if sum(other.kind == entry.kind for other in backend.collectives) > 1:
            where += f" ({_which(entry)})"
        fields = ("floor", "hop", "bus_bandwidth", "inside")
        yield from _numbers(where, (*path, "collectives", place), entry, fields, "library")


def _which(entry: Collective) -> str:
    """Tell an entry from others of its kind: scope, algorithm, rank counts and sizes."""
    ranks = "" if entry.ranks is None else f", {'/'.join(map(str, entry.ranks))} ranks"
    sizes = "" if entry.sizes is None else f", from {format_quantity(entry.sizes[0], 'bytes')}"
    return f"{entry.scope}, {entry.algorithm}{ranks}{sizes}"


def _numbers(key: str, path: Path, table: Strict, names: tuple[str, ...], part: str) -> Iterator[ProfileNumber]:
    for name in names:
        number = getattr(table, name)
        if isinstance(number, Bandwidth | Duration | Size | CoreCount | Frequency) and number.value:
            text, at = _rounded(number.value, number.dimension), (*path, name, "value")
            rate, factor = isinstance(number, Bandwidth), HALVED if isinstance(number, Duration) else DOUBLED
            yield ProfileNumber(f"{key}.{name}", text, number.source, (at,), part, rate, factor)


def _replaced(value: Any, path: Path, factor: float) -> Any:
    """Return a copy of a table, list or number in which the number at the end of a path is multiplied by a factor."""
    if not path:
        return value * factor
    name, rest = path[0], path[1:]
    if isinstance(value, tuple):
        place = int(name)
        return (*value[:place], _replaced(value[place], rest, factor), *value[place + 1 :])
    if isinstance(value, Mapping):
        return {**value, name: _replaced(value[name], rest, factor)}
    return value.model_copy(update={name: _replaced(getattr(value, str(name)), rest, factor)})
