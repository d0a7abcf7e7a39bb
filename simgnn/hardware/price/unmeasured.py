"""Prices of work that a device has no curve of: other work stands in, or another machine's curve is carried over.

A curve of a CPU is carried from the reference machine: costs of bytes by the ratio of the two machines' copy rates, all
other costs by the ratio of their nominal clocks (1 where a clock is not stated). Such curves are "assumed", with the
error of leaving out one measured machine in turn.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from simgnn.hardware.price.work import choose_level, price_work, stand_in_of
from simgnn.hardware.primitives import COPY, PRIMITIVES, unit_of
from simgnn.hardware.profile.devices import Curve, Device
from simgnn.hardware.profile.error_model import error_model, reference_machine

CARRIED = "carried from another machine"
"""Family of the errors of carried curves."""
COPIED_BYTES = 1 << 26
"""Size at which the copy rates of two machines are compared: beyond the caches of a core."""

MISSING_ALL: Mapping[str, str] = MappingProxyType(
    {"beyond_bytes": "bytes", "missed_bytes": "gathered_bytes", "missed_rows": "edges"}
)
"""What a feature of a cache amounts to if every access misses it."""


class Worker(NamedTuple):
    """The device that prices a piece of work: its name in the profile, itself, and where curves were carried from
    ("": it has its own)."""

    name: str
    device: Device
    origin: str


def worker_of(
    device: Device, name: str, cpu: tuple[str, Device] | None, primitive: str, concurrency: int, threads: int
) -> Worker:
    """Return what prices a primitive for ranks on ``device``: the device if it has a curve or other work stands in,
    else the CPU of its host (``cpu``: name and device; None: not stated), with a curve of the reference machine.

    Without either the device is returned unchanged, and pricing the work raises an error that says what is missing.
    """
    row = PRIMITIVES.get(primitive)
    if row is None or device.curves_of(primitive) or stand_in_of(device, primitive) is not None:
        return Worker(name, device, "")
    if row.on_host and device.kind == "gpu":
        name, device = cpu or _unstated_cpu(primitive)
    if device.kind != "cpu" or device.curves_of(primitive):
        return Worker(name, device, "")
    curve = carried_curve(device, name, primitive, concurrency, threads)
    if curve is None:
        return Worker(name, device, "")
    return Worker(name, device.model_copy(update={"curves": (*device.curves, curve)}), reference_machine().meta.name)


def _unstated_cpu(primitive: str) -> tuple[str, Device]:
    """Return the reference machine's CPU without its own curve of a primitive: what a host's CPU may be like."""
    reference = reference_machine()
    (device,) = reference.devices.values()
    others = tuple(curve for curve in device.curves if curve.primitive != primitive)
    return reference.meta.name, device.model_copy(update={"curves": others})


def carried_curve(device: Device, name: str, primitive: str, concurrency: int, threads: int) -> Curve | None:
    """Return the reference machine's curve of a primitive, scaled to a CPU; None if that machine has none either.

    It is that of one rank with one thread. Work of a single thread takes as long at any concurrency.
    """
    reference = reference_machine()
    (other,) = reference.devices.values()
    found = scaled_curve(other, reference.meta.name, device, name, primitive)
    if found is None:
        return None
    level = {"concurrency": concurrency, "threads": threads} if PRIMITIVES[primitive].on_host else {}
    return found.model_copy(update={**level, "spread": error_model().of(CARRIED).spread})


def scaled_curve(source: Device, source_name: str, target: Device, target_name: str, primitive: str) -> Curve | None:
    """Scale the curve of one rank with one thread from one CPU to another; None if ``source`` has no such curve.

    Where ``target`` states no such cache, every access counts as a miss of it.
    """
    if not source.curves_of(primitive):
        return None
    curve = choose_level(source, source_name, primitive, 1, 1).curve
    clocks = [device.clock.value for device in (source, target) if device.clock is not None]
    by_clock = clocks[0] / clocks[1] if len(clocks) == 2 else 1.0
    rates = [_copy_rate(device, name) for device, name in ((source, source_name), (target, target_name))]
    by_rate = rates[0] / rates[1] if rates[0] is not None and rates[1] is not None else by_clock
    costs: dict[str, float] = {}
    for feature, cost in curve.costs.items():
        base, _, cache = feature.partition("/")
        there = feature if cache in ("", *target.caches) else MISSING_ALL[base]
        costs[there] = costs.get(there, 0.0) + cost * (by_rate if unit_of(feature) == "B" else by_clock)
    how = f"clock x {1 / by_clock:.3g}" if len(clocks) == 2 else "a clock is not stated: taken as equal"
    note = f"from {source_name}, one thread: {how}, copies x {1 / by_rate:.3g}"
    return Curve.of(primitive, costs, "assumed", spread=curve.spread, note=note)


def _copy_rate(device: Device, name: str) -> float | None:
    """Bytes a second that one rank with one thread copies; None: the device has no curve of copies."""
    if not device.curves_of(COPY.name):
        return None
    return COPIED_BYTES / float(price_work(device, name, COPY.name, {"bytes": COPIED_BYTES}, None, 1, 1).seconds[0])
