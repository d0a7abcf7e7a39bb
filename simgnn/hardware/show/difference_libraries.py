"""Communication libraries of two profiles compared: floors of messages, and collectives regime by regime."""

from collections.abc import Callable, Sequence, Set
from math import inf

import numpy as np

from simgnn.errors import HardwareError
from simgnn.hardware.price.communication import find_collective
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.operations import spread_ranks
from simgnn.hardware.profile.libraries import Backend, Collective
from simgnn.hardware.profile.profile import Profile
from simgnn.hardware.show.change import MESSAGES, Change, both_spreads, change_of
from simgnn.units import format_quantity

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
