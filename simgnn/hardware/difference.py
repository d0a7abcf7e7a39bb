"""Two profiles of one machine compared: predicted times of the second over the first, and what differs by more than
its spread.

Work is compared level by level (ranks at once x threads) on a fixed grid of sizes, as far as both curves were measured
there; where neither states a range, on the whole grid. Links and collectives likewise, over sizes of messages.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import exp, hypot, inf, log
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import HardwareError
from simgnn.hardware.devices import Curve, Device
from simgnn.hardware.features import PRIMITIVES, FloatArray, features
from simgnn.hardware.links import Backend, Collective, LinkType
from simgnn.hardware.machine import Machine
from simgnn.hardware.operations import spread_ranks
from simgnn.hardware.profile import Profile
from simgnn.hardware.quantities import Duration, Number, Size

ROWS = (100.0, 1e3, 1e4, 1e5, 1e6)
WIDTHS = (8.0, 32.0, 128.0, 512.0)
DEGREES = (4.0, 16.0, 64.0)
MESSAGES = tuple(float(1 << power) for power in range(6, 31, 2))
"""Sizes that are compared: the grid is part of the definition, so that two comparisons say the same."""
NOISE_FLOOR = 0.01
"""A difference below one percent is none, however small the spreads claim to be."""

Grid = Mapping[str, FloatArray]


@dataclass(frozen=True)
class Change:
    """One thing in both profiles. ``median``, ``worst``: ratio of times, second over first (of all sizes; the one
    furthest from 1). ``spread``: of both together, None where neither was measured. ``sizes``: how many were compared.
    ``beyond``: whether the median differs by more than that (without a spread: by more than one percent)."""

    what: str
    level: str
    median: float
    worst: float
    sizes: int
    spread: float | None
    beyond: bool


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
        _compare_backend(str(library), first, second, changes, apart)
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
    keys = sorted({*levels[0], *levels[1]}, key=lambda key: (PRIMITIVES.index(key[0]), key[1:]))
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
        changes.append(_change(key[0], f"{key[1]} x {key[2]}", ratios, [curve.spread for curve in curves]))


def grid(primitive: str) -> Grid:
    """Sizes at which a primitive is compared, arrays of one length. Index streams are taken as uniformly random."""
    axes: dict[str, tuple[float, ...]] = {"rows": ROWS, "width": WIDTHS}
    if primitive == "matmul":
        axes = {"rows": ROWS, "inner": WIDTHS, "outer": WIDTHS}
    elif primitive in ("spmm", "sparse_matmul", "attention_maximum", "attention_sums", "attention_gradients"):
        axes["degree"] = DEGREES
    elif primitive == "optimizer":
        axes = {"elements": (*ROWS, 1e7)}
    elif primitive == "sample":
        axes = {"vertices": ROWS, "degree": DEGREES}
    columns = dict(zip(axes, np.array(list(product(*axes.values()))).T, strict=True))
    if "degree" in columns:
        edges = columns.pop("degree") * columns["vertices" if primitive == "sample" else "rows"]
        columns["nonzeros" if primitive == "sparse_matmul" else "edges"] = edges
        if primitive != "sample":
            columns["sources"] = columns["rows"]
    if primitive in ("elementwise", "attention_scores"):
        columns["passes"] = np.full(len(columns["rows"]), 2.0)
    if primitive.startswith("attention_"):
        columns["heads"] = columns["width"] if primitive == "attention_maximum" else np.full(len(columns["rows"]), 4.0)
    if primitive in ("encode", "decode"):
        columns["row_bytes"] = 8 + columns["width"]  # a header, and a byte an element
    return MappingProxyType(columns)


def _times(device: Device, curve: Curve) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Seconds of each size of the grid at the curve's own level, and which of the sizes it was measured for."""
    sizes = grid(curve.primitive)
    cores = None if device.cores is None else device.cores.value
    caches = {name: device.caches[name].bytes_each(cores, curve.concurrency) for name in curve.caches}
    found = features(curve.primitive, dict(sizes), None, caches)
    seconds = sum((cost * found[name] for name, cost in curve.costs.items()), np.zeros_like(found["call"]))
    inside = np.ones(len(seconds), dtype=bool)
    for name, (low, high) in curve.range.items():
        value = found[name] if name in found else sizes.get(name)
        if value is not None:
            inside &= (value >= low * (1 - 1e-6)) & (value <= high * (1 + 1e-6))
    return seconds, inside & (seconds > 0)


def _change(what: str, level: str, ratios: Sequence[float] | FloatArray, spreads: Sequence[float | None]) -> Change:
    logs = np.log(np.asarray(ratios, dtype=np.float64))
    known = [spread for spread in spreads if spread is not None]
    spread = hypot(*known) if known else None
    middle = float(np.median(logs))
    limit = max(spread or 0.0, NOISE_FLOOR)
    worst = float(logs[np.argmax(np.abs(logs))])
    return Change(what, level, exp(middle), exp(worst), len(logs), spread, abs(middle) > limit)


def _compare_link(name: str, one: LinkType, other: LinkType, apart: list[str]) -> Iterator[Change]:
    low, high = _common([one.bandwidth, other.bandwidth])
    sizes = [size for size in MESSAGES if low <= size <= high]
    spreads = [one.bandwidth.spread, other.bandwidth.spread]
    yield _change(f"links.{name}", "bandwidth", [one.bandwidth.value / other.bandwidth.value], spreads)
    # what passes a burst at once takes no time of its own
    ratios = [one.message_rate(size) / other.message_rate(size) for size in sizes if size > _burst(one, other)]
    if ratios:
        yield _change(f"links.{name}", "one message", ratios, spreads)
    numbers: Mapping[str, Sequence[Size | Duration | None]] = {
        "burst": [one.burst, other.burst],
        "latency": [one.latency, other.latency],
    }
    for what, there in numbers.items():
        values = [0.0 if number is None else number.value for number in there]
        if all(values):
            ratio = values[0] / values[1] if what == "burst" else values[1] / values[0]
            told = [None if number is None else number.spread for number in there]
            yield _change(f"links.{name}", what, [ratio], told)
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
    spreads = [load.spread for load in known]
    values = {
        f"wait behind {count}": [load.queued_bytes(count) / rate for load, rate in zip(known, rates, strict=True)]
        for count in sorted({queue.messages for load in known for queue in load.queues})
    }
    values["core a byte"] = [load.processor or 0.0 for load in known]
    for what, (before, after) in values.items():
        if before > 0 < after:
            yield _change(f"links.{name}", what, [after / before], spreads)
        elif before != after:
            apart.append(f"links.{name}: {what}: none in the {'second' if before else 'first'}")


def _burst(*links: LinkType) -> float:
    """The larger of the bursts of two links."""
    return max(0.0 if link.burst is None else link.burst.value for link in links)


def _common(numbers: Sequence[Number | None]) -> tuple[float, float]:
    """The sizes between which all numbers were measured; where none says, all sizes."""
    ranges = [number.range for number in numbers if number is not None and number.range is not None]
    return max((low for low, _ in ranges), default=0.0), min((high for _, high in ranges), default=inf)


def _compare_backend(library: str, first: Profile, second: Profile, changes: list[Change], apart: list[str]) -> None:
    described = [dict(profile.backends)[library] for profile in (first, second)]  # type: ignore[index]
    floors = [backend.message.floor for backend in described]
    if all(floor.value > 0 for floor in floors):
        ratio = floors[1].value / floors[0].value
        changes.append(_change(f"{library} message", "floor", [ratio], [floor.spread for floor in floors]))
    elif any(floor.value > 0 for floor in floors):
        apart.append(f"backends.{library}: message.floor: none in the {'second' if floors[0].value > 0 else 'first'}")
    groups = [_groups(backend) for backend in described]
    for kind, ranks in sorted({*groups[0], *groups[1]}):
        where = f"backends.{library}: {kind}, {ranks} ranks"
        if (kind, ranks) not in groups[0] or (kind, ranks) not in groups[1]:
            apart.append(f"{where}: only in the {'first' if (kind, ranks) in groups[0] else 'second'}")
            continue
        entries = [group[kind, ranks] for group in groups]
        try:
            machines = [Machine.place(profile, spread_ranks(profile, ranks)) for profile in (first, second)]
            seconds = [_group_seconds(machine, library, kind, ranks) for machine in machines]
        except HardwareError as error:
            apart.append(f"{where}: {error}")
            continue
        low, high = _measured_in_both(entries)
        sizes = [0.0] if kind == "barrier" else [size for size in MESSAGES if low <= size <= high]
        ratios = [seconds[1](size) / seconds[0](size) for size in sizes if seconds[0](size) > 0 < seconds[1](size)]
        if ratios:
            changes.append(
                _change(f"{library} {kind}", f"{ranks} ranks", ratios, [_spread(regimes) for regimes in entries])
            )
        else:
            apart.append(f"{where}: no size was measured in both")


def _groups(backend: Backend) -> dict[tuple[str, int], list[Collective]]:
    """Every collective by kind and group size (of any size: two ranks); one entry for each regime of its sizes."""
    groups: dict[tuple[str, int], list[Collective]] = {}
    for entry in backend.collectives:
        for ranks in entry.ranks or (2,):
            groups.setdefault((entry.kind, ranks), []).append(entry)
    return groups


def _group_seconds(machine: Machine, library: str, kind: str, ranks: int) -> Callable[[float], float]:
    """Seconds of a call by bytes: of an exchange its call and one message of that size for each rank."""
    members = range(ranks)
    if kind != "exchange":
        return lambda size: machine.collective(kind, library, size, members).seconds_alone

    def exchange(size: float) -> float:
        call = machine.call("exchange", library, members)
        message = machine.message(0, ranks - 1, size, library)
        return call.floor_s + call.hop_s * (ranks - 1) + message.latency_s + size / message.rate_bytes_per_s

    return exchange


def _measured_in_both(groups: Sequence[Sequence[Collective]]) -> tuple[float, float]:
    """The sizes between which each group was measured, over all its regimes; where none says, all sizes."""
    low, high = 0.0, inf
    for regimes in groups:
        ranges = [entry.bus_bandwidth.range for entry in regimes if entry.bus_bandwidth is not None]
        known = [limits for limits in ranges if limits is not None]
        if known and len(known) == len(ranges):
            low, high = max(low, min(limits[0] for limits in known)), min(high, max(limits[1] for limits in known))
    return low, high


def _spread(regimes: Sequence[Collective]) -> float | None:
    """The largest spread of a collective's numbers."""
    numbers = [number for entry in regimes for number in (entry.bus_bandwidth, entry.hop, entry.floor)]
    return max((number.spread for number in numbers if number is not None and number.spread is not None), default=None)


def furthest(changes: Sequence[Change]) -> list[Change]:
    """Those that differ by more than their spread, the largest first."""
    return sorted((change for change in changes if change.beyond), key=lambda change: -abs(log(change.median)))
