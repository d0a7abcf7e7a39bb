"""Two profiles of one machine compared: predicted times of the second over the first, and what differs by more than
its spread.

Work is compared level by level (ranks at once x threads) on a fixed grid of sizes, as far as both curves were measured
there; where neither states a range, on the whole grid. Links and collectives likewise, over sizes of messages.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from math import exp, hypot, inf, log

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import HardwareError
from simgnn.hardware.price.collectives import find_collective
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.operations import spread_ranks
from simgnn.hardware.price.work import features, within_range
from simgnn.hardware.primitives import PRIMITIVES, FloatArray
from simgnn.hardware.profile.devices import Curve, Device
from simgnn.hardware.profile.libraries import Backend, Collective
from simgnn.hardware.profile.links import LinkType
from simgnn.hardware.profile.profile import Profile
from simgnn.hardware.profile.quantities import Duration, Number, Size
from simgnn.units import format_quantity

MESSAGES = tuple(float(1 << power) for power in range(6, 31, 2))
"""Sizes that are compared: the grid is part of the definition, so that two comparisons say the same."""
NOISE_FLOOR = 0.01
"""A difference below one percent is none, however small the spreads claim to be."""


@dataclass(frozen=True)
class Change:
    """One thing in both profiles. ``median``, ``worst``: ratio of times, second over first (of all sizes; the one
    furthest from 1). ``spread``: of both together, the median where it differs by size, None where neither was
    measured. ``sizes``: how many were compared. ``beyond``: whether the times differ, at the median size, by more than
    the spread there (without one: by more than one percent)."""

    what: str
    level: str
    median: float
    worst: float
    sizes: int
    spread: float | None
    beyond: bool


def change_of(what: str, level: str, ratios: Sequence[float] | FloatArray, spreads: float | FloatArray) -> Change:
    """What sizes' ``ratios`` [n] of times say. ``spreads``: of both profiles together (:func:`both_spreads`),
    of all sizes or [n] by size; NaN where none was measured."""
    logs = np.log(np.asarray(ratios, dtype=np.float64))
    there = np.broadcast_to(spreads, len(logs))
    apart = logs / np.maximum(np.nan_to_num(there), NOISE_FLOOR)
    known = there[~np.isnan(there)]
    spread = float(np.median(known)) if len(known) else None
    worst = float(logs[np.argmax(np.abs(logs))])
    beyond = bool(abs(np.median(apart)) > 1.0)
    return Change(what, level, exp(float(np.median(logs))), exp(worst), len(logs), spread, beyond)


def both_spreads(spreads: Sequence[float | None]) -> float:
    """The spread of a ratio of numbers with these; NaN where none was measured."""
    known = [spread for spread in spreads if spread is not None]
    return hypot(*known) if known else float("nan")


def measured_in_both(numbers: Sequence[Number | None]) -> tuple[float, float]:
    """The sizes between which all numbers were measured; where none says, all sizes."""
    ranges = [number.range for number in numbers if number is not None and number.range is not None]
    return max((low for low, _ in ranges), default=0.0), min((high for _, high in ranges), default=inf)


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
    found = features(curve.primitive, sizes, None, device.cache_shares(curve.caches, curve.concurrency))
    seconds = sum((cost * found[name] for name, cost in curve.costs.items()), np.zeros_like(found["call"]))
    return seconds, within_range(curve, found, sizes) & (seconds > 0)


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


Key = tuple[str, int, bool]
"""A collective, its number of ranks, whether they are on several hosts."""
SCOPES = {"host": " inside a host", "cluster": " across hosts", "any": ""}


def compare_backend(library: str, first: Profile, second: Profile, changes: list[Change], apart: list[str]) -> None:
    """Add what a library of both profiles takes in each to ``changes``, and to ``apart`` what cannot be compared."""
    described = [dict(profile.backends)[library] for profile in (first, second)]  # type: ignore[index]
    floors = [backend.message.floor for backend in described]
    if all(floor.value > 0 for floor in floors):
        ratio = floors[1].value / floors[0].value
        changes.append(
            change_of(f"{library} message", "floor", [ratio], both_spreads([floor.spread for floor in floors]))
        )
    elif any(floor.value > 0 for floor in floors):
        apart.append(f"backends.{library}: message.floor: none in the {'second' if floors[0].value > 0 else 'first'}")
    groups = [_groups(backend) for backend in described]
    told: set[Key] = set()
    used: set[int] = set()
    for key in sorted({*groups[0], *groups[1]}):
        kind, ranks, across = key
        level = f"{ranks} ranks{' across hosts' if across else ''}"
        where = f"backends.{library}: {kind}, {level}"
        told.add(key)
        if key not in groups[0] or key not in groups[1]:
            apart.append(f"{where}: only in the {'first' if key in groups[0] else 'second'}")
            continue
        try:
            machines = [_place(profile, ranks, across) for profile in (first, second)]
            limits = _measured_in_both([group[key] for group in groups])
            found = _compare_group(library, kind, level, machines, limits, used)
        except HardwareError as error:
            apart.append(f"{where}: {error}")
            continue
        changes += found
        if found:
            told.remove(key)
        else:
            apart.append(f"{where}: no size was measured in both")
    apart += [f"backends.{library}: {text}" for text in _passed_over(described, used, told)]


def _place(profile: Profile, ranks: int, across_hosts: bool) -> Machine:
    """A group as entries of its scope are measured: host by host, or across hosts evenly."""
    count = len(profile.topology.host_names())
    if across_hosts and min(count, ranks) < 2:
        raise HardwareError(f"'{profile.meta.name}' has no two hosts for it")
    return Machine.place(profile, spread_ranks(profile, ranks, -(-ranks // count) if across_hosts else None))


def _compare_group(
    library: str, kind: str, level: str, machines: Sequence[Machine], limits: tuple[float, float], used: set[int]
) -> list[Change]:
    """One change for each regime of sizes: those between which neither profile goes over to another entry. ``used``:
    the entries that price one of them are added, by identity."""
    members = range(machines[0].ranks)
    seconds = [_group_seconds(machine, library, kind, members) for machine in machines]
    regimes: dict[tuple[int, ...], list[tuple[float, float, float]]] = {}
    for size in [0.0] if kind == "barrier" else [size for size in MESSAGES if limits[0] <= size <= limits[1]]:
        before, after = (each(size) for each in seconds)
        if before <= 0.0 or after <= 0.0:
            continue
        # the call of an exchange has no size: its bytes are messages
        counted = 0.0 if kind == "exchange" else size
        entries = [find_collective(machine, kind, library, members, counted)[0] for machine in machines]
        used.update(map(id, entries))
        spread = both_spreads([_spread(entry, counted) for entry in entries])
        regimes.setdefault(tuple(map(id, entries)), []).append((size, after / before, spread))
    changes = []
    for rows in regimes.values():
        sizes, ratios, spreads = np.array(rows).T
        ends = [_bytes(float(size)) for size in (sizes[0], sizes[-1])]
        told = f"{level}, {' to '.join(dict.fromkeys(ends))}" if len(regimes) > 1 else level
        changes.append(change_of(f"{library} {kind}", told, ratios, spreads))
    return changes


def _passed_over(backends: Sequence[Backend], used: Set[int], told: Set[Key]) -> list[str]:
    """A line for each collective of which entries price nothing that was compared, with the reason; none of ``told``
    groups, of which another line says so."""
    reasons: dict[str, list[list[Collective]]] = {}
    for side, backend in enumerate(backends):
        for entry in backend.collectives:
            if id(entry) in used:
                continue
            ranks = entry.ranks or (2,)
            where, counts = f"{entry.kind}{SCOPES[entry.scope]}, {entry.algorithm}", " or ".join(map(str, ranks))
            if _carries_over(entry, backend):
                reason = f"{where}, other than {counts} ranks: carried over from these, none was measured"
            elif all((entry.kind, count, entry.scope == "cluster") in told for count in ranks):
                continue
            else:
                sizes = "" if entry.sizes is None else f", {' to '.join(map(_bytes, entry.sizes))}"
                reason = f"{where}, {counts} ranks{sizes}: prices none of the sizes that are compared"
            reasons.setdefault(reason, [[], []])[side].append(entry)
    return [f"{reason} ({_sides(found)})" for reason, found in sorted(reasons.items())]


def _carries_over(entry: Collective, backend: Backend) -> bool:
    """Whether an entry serves rank counts that nobody measured alone: each of its own has another entry."""
    own = {
        ranks
        for one in backend.collectives
        if (one.kind, one.scope, one.algorithm) == (entry.kind, entry.scope, entry.algorithm) and one.ranks is not None
        for ranks in one.ranks
        if len(one.ranks) < len(entry.ranks or ())
    }
    return entry.ranks is not None and own.issuperset(entry.ranks)


def _sides(found: Sequence[Sequence[Collective]]) -> str:
    if not all(found):
        return f"only in the {'first' if found[0] else 'second'}"
    return "alike in both" if list(found[0]) == list(found[1]) else "different in the two"


def _bytes(size: float) -> str:
    return format_quantity(size, "bytes")


def _groups(backend: Backend) -> dict[Key, list[Collective]]:
    """Every collective by kind, group size (of any size: two ranks), and whether it is for groups across hosts alone;
    one entry for each regime of its sizes."""
    groups: dict[Key, list[Collective]] = {}
    for entry in backend.collectives:
        for ranks in entry.ranks or (2,):
            groups.setdefault((entry.kind, ranks, entry.scope == "cluster"), []).append(entry)
    return groups


def _group_seconds(machine: Machine, library: str, kind: str, members: Sequence[int]) -> Callable[[float], float]:
    """Seconds of a call by bytes: of an exchange its call and one message of that size for each rank."""
    ranks = len(members)
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


def _spread(entry: Collective, nbytes: float) -> float | None:
    """The spread of a collective at this size; where it is told for none, the largest of its numbers."""
    if entry.own_spread is not None:
        return entry.spread_at(nbytes, exact=True)
    numbers = [number for number in (entry.bus_bandwidth, entry.hop, entry.floor) if number is not None]
    return max((number.spread for number in numbers if number.spread is not None), default=None)
