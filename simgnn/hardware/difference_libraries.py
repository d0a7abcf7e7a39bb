"""Communication libraries of two profiles compared: floors of messages, and collectives regime by regime."""

from collections.abc import Callable, Sequence
from math import inf

import numpy as np

from simgnn.errors import HardwareError
from simgnn.hardware.change import MESSAGES, Change, both_spreads, change_of
from simgnn.hardware.communication import find_collective
from simgnn.hardware.links import Backend, Collective
from simgnn.hardware.machine import Machine
from simgnn.hardware.operations import spread_ranks
from simgnn.hardware.profile import Profile
from simgnn.units import format_quantity


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
    for key in sorted({*groups[0], *groups[1]}):
        kind, ranks, across = key
        level = f"{ranks} ranks{' across hosts' if across else ''}"
        where = f"backends.{library}: {kind}, {level}"
        if key not in groups[0] or key not in groups[1]:
            apart.append(f"{where}: only in the {'first' if key in groups[0] else 'second'}")
            continue
        try:
            machines = [_place(profile, ranks, across) for profile in (first, second)]
            limits = _measured_in_both([group[key] for group in groups])
            found = _compare_group(library, kind, level, machines, limits)
        except HardwareError as error:
            apart.append(f"{where}: {error}")
            continue
        changes += found
        if not found:
            apart.append(f"{where}: no size was measured in both")


def _place(profile: Profile, ranks: int, across_hosts: bool) -> Machine:
    """A group as entries of its scope are measured: host by host, or across hosts evenly."""
    count = len(profile.topology.host_names())
    if across_hosts and min(count, ranks) < 2:
        raise HardwareError(f"'{profile.meta.name}' has no two hosts for it")
    return Machine.place(profile, spread_ranks(profile, ranks, -(-ranks // count) if across_hosts else None))


def _compare_group(
    library: str, kind: str, level: str, machines: Sequence[Machine], limits: tuple[float, float]
) -> list[Change]:
    """One change for each regime of sizes: those between which neither profile goes over to another entry."""
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
        spread = both_spreads([_spread(entry, counted) for entry in entries])
        regimes.setdefault(tuple(map(id, entries)), []).append((size, after / before, spread))
    changes = []
    for rows in regimes.values():
        sizes, ratios, spreads = np.array(rows).T
        ends = [format_quantity(float(size), "bytes") for size in (sizes[0], sizes[-1])]
        told = f"{level}, {' to '.join(dict.fromkeys(ends))}" if len(regimes) > 1 else level
        changes.append(change_of(f"{library} {kind}", told, ratios, spreads))
    return changes


def _groups(backend: Backend) -> dict[tuple[str, int, bool], list[Collective]]:
    """Every collective by kind, group size (of any size: two ranks), and whether it is for groups across hosts alone;
    one entry for each regime of its sizes."""
    groups: dict[tuple[str, int, bool], list[Collective]] = {}
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
