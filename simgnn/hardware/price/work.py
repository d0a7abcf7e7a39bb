"""Seconds of work on a device, from its curves: which concurrency level is read, and when a price is extrapolated."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simgnn.errors import HardwareError
from simgnn.hardware.price.features import features
from simgnn.hardware.primitives import PRIMITIVES, FloatArray, Sizes, StandIn
from simgnn.hardware.profile.devices import Curve, Device
from simgnn.hardware.profile.quantities import Source
from simgnn.spelling import nearest

RANGE_SLACK = 1e-6
"""Relative distance by which a size may miss the measured range unflagged: rounding of written numbers."""


class Price(NamedTuple):
    """Seconds of one piece of work. ``spread``: standard deviation as a share (None: not measured)."""

    seconds: float
    spread: float | None
    extrapolated: bool
    source: Source


@dataclass(frozen=True)
class Prices:
    """Prices of n pieces of work on one device: seconds float64 [n], extrapolated bool [n]."""

    seconds: FloatArray
    spread: float | None
    extrapolated: NDArray[np.bool_]
    source: Source

    def at(self, index: int) -> Price:
        """One of them."""
        return Price(float(self.seconds[index]), self.spread, bool(self.extrapolated[index]), self.source)


class Level(NamedTuple):
    """The curve that is read, the factor on its times, and whether it was measured at just this concurrency."""

    curve: Curve
    factor: float
    exact: bool


def choose_level(device: Device, name: str, primitive: str, concurrency: int, threads: int) -> Level:
    """The curve of a primitive for ``concurrency`` ranks at once, each with ``threads`` threads.

    Rule: the exact level; else, among those with the nearest thread count, the nearest concurrency (both by ratio; of
    two equally near the more concurrent one), flagged, its times multiplied by how many times fewer cores a rank has
    (a GPU: by how many times more ranks share it). Raises :class:`HardwareError` when there is no curve at all.
    """
    curves = device.curves_of(primitive)
    if not curves:
        known = ", ".join(dict.fromkeys(curve.primitive for curve in device.curves)) or "none"
        hint = "" if primitive in PRIMITIVES else nearest(primitive, PRIMITIVES)
        raise HardwareError(
            f"devices.{name}.curves: the device has no curve of '{primitive}'{hint}, so this work has no price; "
            f"it has: {known}; measure one with `simgnn calibrate` or add [[devices.{name}.curves]]"
        )

    def distance(curve: Curve) -> tuple[float, float, int]:
        apart = abs(log(curve.threads / threads)), abs(log(curve.concurrency / concurrency))
        return round(apart[0], 9), round(apart[1], 9), -curve.concurrency

    curve = min(curves, key=distance)
    exact = curve.concurrency == concurrency and curve.threads == threads
    share = _share(device, concurrency, threads)
    return Level(curve, 1.0 if exact else _share(device, curve.concurrency, curve.threads) / share, exact)


def _share(device: Device, concurrency: int, threads: int) -> float:
    """Cores (of a GPU: its fraction) that one rank has."""
    if device.cores is None:
        return 1.0 / concurrency
    return min(float(threads), device.cores.value / concurrency)


def stand_in_of(device: Device, primitive: str) -> Callable[[Sizes], tuple[StandIn, ...]] | None:
    """What makes the work that stands in for a primitive on a device that has no measurement of it, if any does."""
    row = PRIMITIVES.get(primitive)
    return None if row is None or device.curves_of(primitive) else row.stand_in


def price_work(
    device: Device,
    name: str,
    primitive: str,
    sizes: Mapping[str, ArrayLike],
    locality: ArrayLike | None,
    concurrency: int,
    threads: int,
) -> Prices:
    """Seconds of n pieces of work on one device; sizes and locality as :func:`simgnn.hardware.price.features.features`.

    Work of no size (its features but ``call`` all zero) still costs a call. Flagged ``extrapolated``: a level that was
    not measured, a size or a feature outside its measured range, cache misses without a locality profile, and work
    for which another stands in (its source then is "assumed").
    """
    stand_in = stand_in_of(device, primitive)
    if stand_in is not None:
        return _price_stand_in(device, name, stand_in, sizes, locality, concurrency, threads)
    level = choose_level(device, name, primitive, concurrency, threads)
    curve = level.curve
    cores = None if device.cores is None else device.cores.value
    caches = {cache: device.caches[cache].bytes_each(cores, concurrency) for cache in curve.caches}
    found = features(primitive, sizes, locality, caches)
    seconds = np.zeros_like(found["call"])
    for feature, cost in curve.costs.items():
        seconds = seconds + cost * found[feature]
    guessed = locality is None and any(feature.startswith("missed") for feature in curve.costs)
    extrapolated = np.full(len(seconds), not level.exact or guessed)
    for key, (low, high) in curve.range.items():
        value = found[key] if key in found else sizes.get(key)
        if value is not None:
            measured = np.asarray(value, dtype=np.float64)
            outside = (measured < low * (1 - RANGE_SLACK)) | (measured > high * (1 + RANGE_SLACK))
            extrapolated = extrapolated | outside
    return Prices(seconds * level.factor, curve.spread, extrapolated, curve.source)


def _price_stand_in(
    device: Device,
    name: str,
    stand_in: Callable[[Sizes], tuple[StandIn, ...]],
    sizes: Mapping[str, ArrayLike],
    locality: ArrayLike | None,
    concurrency: int,
    threads: int,
) -> Prices:
    table = dict(zip(sizes, np.broadcast_arrays(*map(np.atleast_1d, sizes.values())), strict=True))
    table.setdefault("item_bytes", np.array(4.0))
    pieces = stand_in(table)
    prices = [price_work(device, name, *piece, locality, concurrency, threads) for piece in pieces]
    seconds = sum((price.seconds for price in prices), np.zeros(1))
    return Prices(seconds, None, np.ones(len(seconds), dtype=bool), "assumed")
