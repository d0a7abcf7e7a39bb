"""Standard deviations of prices beyond the stated spreads: assumed numbers, and work outside of what was measured.

Assumed rates and delays have the spread of their family in the error model. A price outside the measured range of its
curve gains what the family adds per doubling of the distance.
"""

from collections.abc import Mapping
from math import hypot, log2
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from simgnn.hardware.price.collectives import bus_seconds
from simgnn.hardware.primitives import PRIMITIVES, FloatArray
from simgnn.hardware.profile.communication import Collective
from simgnn.hardware.profile.devices import Curve
from simgnn.hardware.profile.error_model import combined, error_model
from simgnn.hardware.profile.quantities import Bandwidth, Duration

Effect = Literal["delay", "rate", "distance"]
"""What a spread is of: the time before bytes flow, how fast they do, or (distance from measurements) all of it."""
BEYOND: Mapping[str, str] = MappingProxyType(
    {row.name: "spmm" for row in PRIMITIVES.values() if "missed_bytes" in row.per_cache}
)
"""Primitives whose sizes miss as those of sums over edges do; all others as those of dense products."""
PASSES = "matmul"
MOST_OCTAVES_BELOW = 1.0
"""Most doublings that count below the measured sizes of a call: small calls take their latency, whatever their size."""
GPU_LIBRARY = "nccl"
"""Library whose delays stand for those of copies between a GPU and its host, which nobody measured here."""


def effect_of(number: Any) -> Effect | None:
    """Return what a number of a profile determines; None: neither a delay nor a rate."""
    return "delay" if isinstance(number, Duration) else "rate" if isinstance(number, Bandwidth) else None


def assumed_spread(number: Any, key: str, library: str | None) -> float | None:
    """Return the spread of an assumed delay or rate without a stated one; None for all other numbers.

    ``key``: of the number in the profile; ``library``: of the messages (None: copies between host and device).
    """
    effect = effect_of(number)
    if effect is None or number.source != "assumed" or number.spread is not None or number.value == 0:
        return None
    if effect == "rate" and key.startswith("links."):
        return error_model().of("rate/link").spread
    return error_model().of(f"{effect}/{library or GPU_LIBRARY}").spread


def curve_spread(kind: str, curve: Curve, found: Mapping[str, FloatArray], sizes: Mapping[str, ArrayLike]) -> float:
    """Return the spread of a curve for work with these features and sizes, on a device of this kind ("cpu", "gpu").

    It is the stated spread, else that of the curve's family, and what sizes beyond the measured range add: the range of
    the curve, or of an assumed curve the sizes of the measurements behind its family.
    """
    family = error_model().of_work(kind, curve.primitive)
    spread = family.spread if curve.spread is None else curve.spread
    octaves = octaves_beyond(curve.range or (family.range if curve.source == "assumed" else {}), found, sizes)
    beyond = error_model().of(f"work beyond its sizes/{BEYOND.get(curve.primitive, PASSES)}").beyond(octaves)
    return combined(spread, beyond) or 0.0


def stand_in_spread(kind: str, primitive: str) -> float:
    """Return the spread of a price of other work that stands in for a primitive on a device of this kind."""
    return error_model().of_work(kind, primitive).spread or 0.0


def octaves_beyond(
    ranges: Mapping[str, tuple[float, float]], found: Mapping[str, FloatArray], sizes: Mapping[str, ArrayLike]
) -> float:
    """Return the most doublings by which work with these features and sizes lies outside of the measured ranges."""
    most = 0.0
    for name, (low, high) in ranges.items():
        value = found[name] if name in found else sizes.get(name)
        if value is not None:
            values, ends = np.asarray(value, dtype=np.float64), (max(low, 1.0), max(high, 1.0))
            most = max(most, *(_octaves(float(end), ends) for end in (values.min(), values.max())))
    return most


class CallSpread(NamedTuple):
    """Spread of a call of a group: at a measured group (None: unknown, or that of its parts), and what the distance
    from what was measured adds (0.0: nothing)."""

    measured: float | None
    beyond: float


def call_spread(entry: Collective, library: str, ranks: int, ranks_per_host: int, nbytes: float) -> CallSpread:
    """Return the spread of a call that an entry of the profile prices, for ``ranks_per_host`` ranks on the host with
    the fewest.

    Distances in ranks, ranks a host and hosts were not measured apart: the largest counts, and errors at that distance
    hold all causes, so the spread at measured groups is not added. What doublings beyond the measured sizes add is.
    """
    model = error_model()
    octaves, octaves_per_host = _rank_octaves(entry, ranks, ranks_per_host)
    exact = octaves == octaves_per_host == 0.0
    by_ranks = model.of(f"collectives by ranks/{library}").beyond(octaves, nbytes)
    if octaves_per_host:
        by_host = model.of(f"collectives by ranks a host/{library}").beyond(octaves_per_host, nbytes)
        by_ranks = max(by_ranks, by_host)
    carried = None if exact or entry.carried_spread is None else entry.spread_at(nbytes, exact=False)
    limits = None if entry.bus_bandwidth is None else entry.bus_bandwidth.range
    further = 0.0 if limits is None else _octaves(nbytes, (max(limits[0], 1.0), max(limits[1], 1.0)))
    if limits is not None and nbytes < limits[0]:
        further = min(further, MOST_OCTAVES_BELOW)
    by_size = model.of("collectives by size").beyond(further, nbytes)
    measured = entry.spread_at(nbytes, exact) if exact and entry.own_spread is not None else None
    return CallSpread(measured, hypot(max(by_ranks, carried or 0.0), by_size))


def saturation(entry: Collective, ranks: int, ranks_per_host: int, nbytes: float) -> float:
    """Return how many seconds longer a call takes if more ranks a host than were measured get no more network cards."""
    measured = max(entry.ranks_per_host or (ranks_per_host,))
    if entry.ranks_per_rail is None or entry.bus_bandwidth is None or ranks_per_host <= measured:
        return 0.0
    alone, shared = (bus_seconds(entry, ranks, each, nbytes) for each in (ranks_per_host, measured))
    return max(shared - alone, 0.0)


def _rank_octaves(entry: Collective, ranks: int, ranks_per_host: int) -> tuple[float, float]:
    """Doublings from the nearest measured group, in ranks or hosts, and in ranks a host (groups across hosts only)."""
    if entry.ranks is None:
        return 0.0, 0.0
    octaves = min(abs(log2(ranks / count)) for count in entry.ranks)
    if entry.ranks_per_host is None:
        return octaves, 0.0
    each = min(abs(log2(ranks_per_host / count)) for count in entry.ranks_per_host)
    pairs = zip(entry.ranks, entry.ranks_per_host, strict=False)
    hosts = min(abs(log2((ranks / ranks_per_host) / (count / per_host))) for count, per_host in pairs)
    return max(octaves, hosts), each


def _octaves(value: float, ends: tuple[float, float]) -> float:
    """Doublings by which a positive value lies outside of a range."""
    return max(log2(max(value, 1.0) / ends[1]), log2(ends[0] / max(value, 1.0)), 0.0)
