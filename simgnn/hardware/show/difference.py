"""Two profiles of one machine compared: predicted times of the second over the first, and what differs by more than
its spread.

Work is compared level by level (ranks at once x threads) on a fixed grid of sizes, as far as both curves were measured
there; where neither states a range, on the whole grid. Links and collectives likewise, over sizes of messages.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import HardwareError
from simgnn.hardware.price.features import features
from simgnn.hardware.primitives import PRIMITIVES, FloatArray
from simgnn.hardware.profile.devices import Curve, Device
from simgnn.hardware.profile.links import LinkType
from simgnn.hardware.profile.profile import Profile
from simgnn.hardware.profile.quantities import Duration, Size
from simgnn.hardware.show.change import MESSAGES, Change, both_spreads, change_of, measured_in_both
from simgnn.hardware.show.difference_libraries import compare_backend


@dataclass(frozen=True)
class Difference:
    """All changes, and what only one of the two profiles has or what could not be compared, with the reason."""

    changes: tuple[Change, ...]
    apart: tuple[str, ...]


def compare_profiles(first: Profile, second: Profile) -> Difference:
    """Compare two profiles by the names of their devices and links; single devices of one kind in any case.

    Raises :class:`HardwareError` when they have no device and no library in common.
    """
    changes: list[Change] = []
    apart: list[str] = []
    pairs = _partners(first, second, apart)
    for name, one, other in pairs:
        _compare_device(name, one, other, changes, apart)
    for name in _both("links", first.links, second.links, apart):
        changes += _compare_link(name, first.links[name], second.links[name], apart)
    libraries = _both("backends", first.backends, second.backends, apart)
    for library in libraries:
        compare_backend(str(library), first, second, changes, apart)
    if not (changes and (pairs or libraries)):  # links of equal names alone are no machine
        raise HardwareError(
            f"'{first.meta.name}' and '{second.meta.name}' have no device and no library in common: "
            f"{'; '.join(apart)}; expected two profiles of one machine"
        )
    return Difference(tuple(changes), tuple(apart))


def _partners(first: Profile, second: Profile, apart: list[str]) -> list[tuple[str, Device, Device]]:
    if len(first.devices) == len(second.devices) == 1:  # a calibration names its one device by its kind
        (name, one), other = next(iter(first.devices.items())), next(iter(second.devices.values()))
        if one.kind == other.kind:
            return [(name, one, other)]
    names = _both("devices", first.devices, second.devices, apart)
    return [(name, first.devices[name], second.devices[name]) for name in names]


def _both(what: str, first: Collection[str], second: Collection[str], apart: list[str]) -> list[str]:
    apart += [f"{what}.{name}: only in the first" for name in first if name not in second]
    apart += [f"{what}.{name}: only in the second" for name in second if name not in first]
    return [name for name in first if name in second]


def _compare_device(name: str, one: Device, other: Device, changes: list[Change], apart: list[str]) -> None:
    levels = [{(c.primitive, c.concurrency, c.threads): c for c in device.curves} for device in (one, other)]
    keys = sorted({*levels[0], *levels[1]}, key=lambda key: (list(PRIMITIVES).index(key[0]), key[1:]))
    for key in keys:
        where = f"{key[0]}, {key[1]} x {key[2]}"
        if key not in levels[0] or key not in levels[1]:
            apart.append(f"devices.{name}: {where}: only in the {'first' if key in levels[0] else 'second'}")
            continue
        curves = levels[0][key], levels[1][key]
        found = [_times(device, curve) for device, curve in zip((one, other), curves, strict=True)]
        common = found[0][1] & found[1][1]
        if not common.any():
            apart.append(f"devices.{name}: {where}: no size of the grid was measured in both")
            continue
        ratios = found[1][0][common] / found[0][0][common]
        changes.append(
            change_of(key[0], f"{key[1]} x {key[2]}", ratios, both_spreads([curve.spread for curve in curves]))
        )


def _times(device: Device, curve: Curve) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Seconds of each size of the grid at the curve's own level, and which of the sizes it was measured for."""
    sizes = PRIMITIVES[curve.primitive].grid()
    cores = None if device.cores is None else device.cores.value
    caches = {name: device.caches[name].bytes_each(cores, curve.concurrency) for name in curve.caches}
    found = features(curve.primitive, sizes, None, caches)
    seconds = sum((cost * found[name] for name, cost in curve.costs.items()), np.zeros_like(found["call"]))
    inside = np.ones(len(seconds), dtype=bool)
    for name, (low, high) in curve.range.items():
        value = found[name] if name in found else sizes.get(name)
        if value is not None:
            inside &= (value >= low * (1 - 1e-6)) & (value <= high * (1 + 1e-6))
    return seconds, inside & (seconds > 0)


def _compare_link(name: str, one: LinkType, other: LinkType, apart: list[str]) -> Iterator[Change]:
    low, high = measured_in_both([*one.rates, *other.rates])
    sizes = [size for size in MESSAGES if low <= size <= high]
    spreads = both_spreads([one.bandwidth.spread, other.bandwidth.spread])
    yield change_of(f"links.{name}", "bandwidth", [one.bandwidth.value / other.bandwidth.value], spreads)
    # what passes a burst at once takes no time of its own
    ratios = [one.message_rate(size) / other.message_rate(size) for size in sizes if size > _burst(one, other)]
    if ratios:
        known = [[rate.spread for rate in link.rates if rate.spread is not None] for link in (one, other)]
        widest = both_spreads([max(shares, default=None) for shares in known])
        yield change_of(f"links.{name}", "one message", ratios, widest)
    numbers: Mapping[str, Sequence[Size | Duration | None]] = {
        "burst": [one.burst, other.burst],
        "latency": [one.latency, other.latency],
    }
    for what, there in numbers.items():
        values = [0.0 if number is None else number.value for number in there]
        if all(values):
            ratio = values[0] / values[1] if what == "burst" else values[1] / values[0]
            told = both_spreads([None if number is None else number.spread for number in there])
            yield change_of(f"links.{name}", what, [ratio], told)
        elif any(values):
            apart.append(f"links.{name}: {what}: none in the {'second' if values[0] else 'first'}")
    yield from _compare_loads(name, one, other, apart)


def _compare_loads(name: str, one: LinkType, other: LinkType, apart: list[str]) -> Iterator[Change]:
    """What links do while messages fill them: how long others wait, and what a byte costs the cores at its ends."""
    loads = [one.load, other.load]
    known = [load for load in loads if load is not None]
    if len(known) < 2:
        apart += [f"links.{name}: load: none in the {'second' if loads[0] else 'first'}"] * len(known)
        return
    rates = [link.bandwidth.value for link in (one, other)]
    spreads = both_spreads([load.spread for load in known])
    values = {
        f"wait behind {count}": [load.queued_bytes(count) / rate for load, rate in zip(known, rates, strict=True)]
        for count in sorted({queue.messages for load in known for queue in load.queues})
    }
    values["core a byte"] = [load.processor or 0.0 for load in known]
    for what, (before, after) in values.items():
        if before > 0 < after:
            yield change_of(f"links.{name}", what, [after / before], spreads)
        elif before != after:
            apart.append(f"links.{name}: {what}: none in the {'second' if before else 'first'}")


def _burst(*links: LinkType) -> float:
    """The larger of the bursts of two links."""
    return max(0.0 if link.burst is None else link.burst.value for link in links)


def furthest(changes: Sequence[Change]) -> list[Change]:
    """Those that differ by more than their spread, the largest first."""
    return sorted((change for change in changes if change.beyond), key=lambda change: -abs(log(change.median)))
