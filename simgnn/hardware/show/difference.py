"""Compare two profiles of one machine: ratios of predicted times (second over first), and which exceed the spread.

Work is compared at each level (ranks at once x threads) on a fixed grid of sizes, where both curves were measured, or
on the whole grid if neither states a range. Links and collectives are compared over message sizes.
"""

from collections.abc import Collection, Iterator, Sequence, Set
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
from simgnn.hardware.profile.communication import Backend, Collective, LinkType
from simgnn.hardware.profile.devices import Curve, Device
from simgnn.hardware.profile.profile import Profile
from simgnn.hardware.profile.quantities import Number
from simgnn.hardware.show.describe import SCOPES
from simgnn.units import format_quantity

MESSAGES = tuple(float(1 << power) for power in range(6, 31, 2))
"""Message sizes that are compared. They are fixed, so that comparisons are comparable with each other."""
NOISE_FLOOR = 0.01
"""Differences below one percent are ignored, however small the stated spreads are."""


@dataclass(frozen=True)
class Change:
    """The comparison of one quantity. ``median``, ``worst``: ratio of times, second over first (over all sizes; the one
    furthest from 1). ``spread``: combined spread of both profiles (the median over sizes; None: not measured).
    ``sizes``: number of sizes compared. ``beyond``: whether the times differ at the median size by more than the spread
    there (without a spread: by more than one percent)."""

    what: str
    level: str
    median: float
    worst: float
    sizes: int
    spread: float | None
    beyond: bool


def change_of(what: str, level: str, ratios: Sequence[float] | FloatArray, spreads: float | FloatArray) -> Change:
    """Summarize ``ratios`` [n] of times over sizes as a change. ``spreads``: combined spread of both profiles
    (:func:`both_spreads`), one number or [n]; NaN: not measured."""
    logs = np.log(np.asarray(ratios, dtype=np.float64))
    there = np.broadcast_to(spreads, len(logs))
    apart = logs / np.maximum(np.nan_to_num(there), NOISE_FLOOR)
    known = there[~np.isnan(there)]
    spread = float(np.median(known)) if len(known) else None
    worst = float(logs[np.argmax(np.abs(logs))])
    beyond = bool(abs(np.median(apart)) > 1.0)
    return Change(what, level, exp(float(np.median(logs))), exp(worst), len(logs), spread, beyond)


def both_spreads(spreads: Sequence[float | None]) -> float:
    """Return the spread of a ratio of numbers with these spreads; NaN if none was measured."""
    known = [spread for spread in spreads if spread is not None]
    return hypot(*known) if known else float("nan")


@dataclass(frozen=True)
class Difference:
    """All changes between two profiles, and, with reasons, what is in only one of them or could not be compared."""

    changes: tuple[Change, ...]
    apart: tuple[str, ...]


Finding = Change | str
"""A comparison, or the reason why something was not compared."""


def compare_profiles(first: Profile, second: Profile) -> Difference:
    """Compare two profiles by the names of devices and links. Two single devices of one kind are always compared.

    Raises :class:`HardwareError` when the profiles have no device and no library in common.
    """
    found: list[Finding] = []
    one, other = next(iter(first.devices.items())), next(iter(second.devices.items()))
    if len(first.devices) == len(second.devices) == 1 and one[1].kind == other[1].kind:
        pairs = [(one[0], one[1], other[1])]  # a calibration names its one device by its kind
    else:
        names = _both("devices", first.devices, second.devices, found)
        pairs = [(name, first.devices[name], second.devices[name]) for name in names]
    for name, here, there in pairs:
        found += _compare_device(name, here, there)
    for name in _both("links", first.links, second.links, found):
        found += _compare_link(name, first.links[name], second.links[name])
    libraries = _both("backends", first.backends, second.backends, found)
    for library in libraries:
        found += _compare_backend(str(library), first, second)
    changes = tuple(one for one in found if isinstance(one, Change))
    unpaired = tuple(one for one in found if isinstance(one, str))
    if not (changes and (pairs or libraries)):  # links of equal names alone are no machine
        raise HardwareError(
            f"'{first.meta.name}' and '{second.meta.name}' have no device and no library in common: "
            f"{'; '.join(unpaired)}. Compare two profiles of one machine."
        )
    return Difference(changes, unpaired)


def _both(what: str, first: Collection[str], second: Collection[str], found: list[Finding]) -> list[str]:
    """Names in both collections. Names in only one of them are added to ``found``."""
    found += [f"{what}.{name}: only in the first" for name in first if name not in second]
    found += [f"{what}.{name}: only in the second" for name in second if name not in first]
    return [name for name in first if name in second]


def _compare_device(name: str, one: Device, other: Device) -> Iterator[Finding]:
    levels = [{(c.primitive, c.concurrency, c.threads): c for c in device.curves} for device in (one, other)]
    for key in sorted({*levels[0], *levels[1]}, key=lambda key: (list(PRIMITIVES).index(key[0]), key[1:])):
        level = f"{key[1]} x {key[2]}"
        where = f"devices.{name}: {key[0]}, {level}"
        if key not in levels[0] or key not in levels[1]:
            yield f"{where}: only in the {'first' if key in levels[0] else 'second'}"
            continue
        curves = levels[0][key], levels[1][key]
        found = [_times(device, curve) for device, curve in zip((one, other), curves, strict=True)]
        common = found[0][1] & found[1][1]
        if common.any():
            ratios = found[1][0][common] / found[0][0][common]
            yield change_of(key[0], level, ratios, both_spreads([curve.spread for curve in curves]))
        else:
            yield f"{where}: no size of the grid was measured in both"


def _times(device: Device, curve: Curve) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Seconds of each grid size at the concurrency of the curve, and whether the curve was measured for the size."""
    sizes = PRIMITIVES[curve.primitive].grid()
    found = features(curve.primitive, sizes, None, device.cache_shares(curve.caches, curve.concurrency))
    seconds = sum((cost * found[name] for name, cost in curve.costs.items()), np.zeros_like(found["call"]))
    return seconds, within_range(curve, found, sizes) & (seconds > 0)


def _compare_link(name: str, one: LinkType, other: LinkType) -> Iterator[Finding]:
    what = f"links.{name}"
    low, high = _measured_in_both([[rate.range] for rate in (*one.rates, *other.rates)])
    spreads = both_spreads([one.bandwidth.spread, other.bandwidth.spread])
    yield change_of(what, "bandwidth", [one.bandwidth.value / other.bandwidth.value], spreads)
    # what passes a burst at once takes no time of its own
    burst = max(0.0 if link.burst is None else link.burst.value for link in (one, other))
    sizes = [size for size in MESSAGES if low <= size <= high and size > burst]
    if sizes:
        ratios = [one.message_rate(size) / other.message_rate(size) for size in sizes]
        known = [[rate.spread for rate in link.rates if rate.spread is not None] for link in (one, other)]
        yield change_of(what, "one message", ratios, both_spreads([max(shares, default=None) for shares in known]))
    yield from _compare_numbers(what, "burst", one.burst, other.burst, longer_is_faster=True)
    yield from _compare_numbers(what, "latency", one.latency, other.latency)
    yield from _compare_loads(what, one, other)


def _compare_numbers(
    what: str, level: str, one: Number | None, other: Number | None, longer_is_faster: bool = False
) -> Iterator[Finding]:
    before, after = (0.0 if number is None else float(number.value) for number in (one, other))  # type: ignore[attr-defined]
    if before and after:
        ratio = before / after if longer_is_faster else after / before
        spreads = both_spreads([None if number is None else number.spread for number in (one, other)])
        yield change_of(what, level, [ratio], spreads)
    elif before or after:
        yield f"{what}: {level}: none in the {'second' if before else 'first'}"


def _compare_loads(what: str, one: LinkType, other: LinkType) -> Iterator[Finding]:
    """Compare the loads of two links: the wait of other messages, and the CPU time per byte."""
    if one.load is None or other.load is None:
        if one.load is not other.load:
            yield f"{what}: load: none in the {'second' if one.load else 'first'}"
        return
    loads, rates = (one.load, other.load), (one.bandwidth.value, other.bandwidth.value)
    spreads = both_spreads([load.spread for load in loads])
    values = {
        f"wait behind {count}": [load.queued_bytes(count) / rate for load, rate in zip(loads, rates, strict=True)]
        for count in sorted({queue.messages for load in loads for queue in load.queues})
    }
    values["core a byte"] = [load.processor or 0.0 for load in loads]
    for level, (before, after) in values.items():
        if before > 0 < after:
            yield change_of(what, level, [after / before], spreads)
        elif before != after:
            yield f"{what}: {level}: none in the {'second' if before else 'first'}"


def _measured_in_both(groups: Sequence[Sequence[tuple[float, float] | None]]) -> tuple[float, float]:
    """Range of sizes that every group of ranges covers. A group in which a range is missing covers all sizes."""
    low, high = 0.0, inf
    for ranges in groups:
        known = [limits for limits in ranges if limits is not None]
        if known and len(known) == len(ranges):
            low, high = max(low, min(limits[0] for limits in known)), min(high, max(limits[1] for limits in known))
    return low, high


def furthest(changes: Sequence[Change]) -> list[Change]:
    """Return the changes that exceed their spread, largest first."""
    return sorted((change for change in changes if change.beyond), key=lambda change: -abs(log(change.median)))


Key = tuple[str, int, bool]
"""A collective, its number of ranks, and whether they are on several hosts."""


def _compare_backend(library: str, first: Profile, second: Profile) -> Iterator[Finding]:
    described = [dict(profile.backends)[library] for profile in (first, second)]  # type: ignore[index]
    floors = [backend.message.floor for backend in described]
    if all(floor.value > 0 for floor in floors):
        spreads = both_spreads([floor.spread for floor in floors])
        yield change_of(f"{library} message", "floor", [floors[1].value / floors[0].value], spreads)
    elif any(floor.value > 0 for floor in floors):
        yield f"backends.{library}: message.floor: none in the {'second' if floors[0].value > 0 else 'first'}"
    groups = [_groups(backend) for backend in described]
    reported: set[Key] = set()
    used: set[int] = set()
    for key in sorted({*groups[0], *groups[1]}):
        kind, ranks, across = key
        level = f"{ranks} ranks{' across hosts' if across else ''}"
        where = f"backends.{library}: {kind}, {level}"
        reported.add(key)
        if key not in groups[0] or key not in groups[1]:
            yield f"{where}: only in the {'first' if key in groups[0] else 'second'}"
            continue
        try:
            machines = [_place(profile, ranks, across) for profile in (first, second)]
            ranges = [[e.bus_bandwidth.range for e in group[key] if e.bus_bandwidth is not None] for group in groups]
            found = _compare_group(library, kind, level, machines, _measured_in_both(ranges), used)
        except HardwareError as error:
            yield f"{where}: {error}"
            continue
        yield from found
        if found:
            reported.remove(key)
        else:
            yield f"{where}: no size was measured in both"
    for text in _passed_over(described, used, reported):
        yield f"backends.{library}: {text}"


def _place(profile: Profile, ranks: int, across_hosts: bool) -> Machine:
    """Place a group as in its calibration: hosts filled in order, or ranks spread evenly across all hosts."""
    count = len(profile.topology.host_names())
    if across_hosts and min(count, ranks) < 2:
        raise HardwareError(f"'{profile.meta.name}' needs two hosts or more for a group across hosts")
    return Machine.place(profile, spread_ranks(profile, ranks, -(-ranks // count) if across_hosts else None))


def _compare_group(
    library: str, kind: str, level: str, machines: Sequence[Machine], limits: tuple[float, float], used: set[int]
) -> list[Change]:
    """One change for each range of sizes in which both profiles use the same entry. Entries that price a size are added
    to ``used``, by identity."""
    members = range(machines[0].ranks)
    regimes: dict[tuple[int, ...], list[tuple[float, float, float]]] = {}
    for size in [0.0] if kind == "barrier" else [size for size in MESSAGES if limits[0] <= size <= limits[1]]:
        before, after = (_seconds(machine, library, kind, size) for machine in machines)
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
        ends = [format_quantity(float(size), "bytes") for size in (sizes[0], sizes[-1])]
        text = f"{level}, {' to '.join(dict.fromkeys(ends))}" if len(regimes) > 1 else level
        changes.append(change_of(f"{library} {kind}", text, ratios, spreads))
    return changes


def _passed_over(backends: Sequence[Backend], used: Set[int], reported: Set[Key]) -> list[str]:
    """Lines on collectives with entries not in ``used`` (not compared), and why; none on groups in ``reported``."""
    reasons: dict[str, list[list[Collective]]] = {}
    for side, backend in enumerate(backends):
        for entry in backend.collectives:
            if id(entry) in used:
                continue
            ranks = entry.ranks or (2,)
            where, counts = f"{entry.kind}{SCOPES[entry.scope]}, {entry.algorithm}", " or ".join(map(str, ranks))
            if _carries_over(entry, backend):
                reason = f"{where}, other than {counts} ranks: carried over from these, none was measured"
            elif all((entry.kind, count, entry.scope == "cluster") in reported for count in ranks):
                continue
            else:
                span = " to ".join(format_quantity(size, "bytes") for size in entry.sizes or ())
                sizes = f", {span}" if span else ""
                reason = f"{where}, {counts} ranks{sizes}: prices none of the sizes that are compared"
            reasons.setdefault(reason, [[], []])[side].append(entry)
    return [f"{reason} ({_sides(found)})" for reason, found in sorted(reasons.items())]


def _carries_over(entry: Collective, backend: Backend) -> bool:
    """Whether an entry only prices rank counts that were not measured: each of its own has an entry for fewer."""
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


def _groups(backend: Backend) -> dict[Key, list[Collective]]:
    """Entries of each collective by kind, group size (two ranks for an entry of any size), and whether they are only
    for groups across hosts."""
    groups: dict[Key, list[Collective]] = {}
    for entry in backend.collectives:
        for ranks in entry.ranks or (2,):
            groups.setdefault((entry.kind, ranks, entry.scope == "cluster"), []).append(entry)
    return groups


def _seconds(machine: Machine, library: str, kind: str, size: float) -> float:
    """Seconds of a call of all ranks. In an exchange, every rank sends one message of this size to every other rank."""
    members = range(machine.ranks)
    if kind != "exchange":
        return machine.collective(kind, library, size, members).seconds_alone
    call = machine.call("exchange", library, members)
    message = machine.message(0, machine.ranks - 1, size, library)
    return call.floor_s + call.hop_s * (machine.ranks - 1) + message.latency_s + size / message.rate_bytes_per_s


def _spread(entry: Collective, nbytes: float) -> float | None:
    """Spread of a collective at this size, or the largest spread of its numbers if none is stated by size."""
    if entry.own_spread is not None:
        return entry.spread_at(nbytes, exact=True)
    numbers = [number for number in (entry.bus_bandwidth, entry.hop, entry.floor) if number is not None]
    return max((number.spread for number in numbers if number.spread is not None), default=None)
