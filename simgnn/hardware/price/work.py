"""Prices of device work: features of the work, the curve that prices them, and whether the price is extrapolated.

:data:`simgnn.hardware.primitives.PRIMITIVES` defines the features of each primitive.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simgnn.errors import HardwareError
from simgnn.hardware.primitives import PRIMITIVES, FloatArray, Sizes, StandIn
from simgnn.hardware.profile.devices import Curve, Device
from simgnn.hardware.profile.quantities import Source
from simgnn.spelling import nearest

RANGE_SLACK = 1e-6
"""Relative tolerance at the ends of a measured range, for numbers that were rounded when they were written."""


@dataclass(frozen=True)
class Prices:
    """Prices of n pieces of work on one device: seconds float64 [n], extrapolated bool [n].

    ``spread``: relative standard deviation (None: not measured).
    """

    seconds: FloatArray
    spread: float | None
    extrapolated: NDArray[np.bool_]
    source: Source


class Level(NamedTuple):
    """The curve that prices work, a factor on its times, and whether it was measured at this concurrency."""

    curve: Curve
    factor: float
    exact: bool


def features(
    primitive: str,
    sizes: Mapping[str, ArrayLike],
    locality: ArrayLike | None = None,
    caches: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, FloatArray]:
    """Compute all features of n pieces of work, each float64 [n].

    ``sizes``: a number or an array [n] each; ``item_bytes`` defaults to 4. ``locality``: cumulative reuse profile
    [bins] or [n, bins] (``simgnn.graph.locality``); None: sources are read uniformly at random, and the first read of
    each is a miss. ``caches``: bytes of each cache that one rank has. Raises :class:`HardwareError` for an unknown
    primitive or a missing size.
    """
    if primitive not in PRIMITIVES:
        raise HardwareError(f"unknown primitive '{primitive}'; known: {', '.join(PRIMITIVES)}")
    row = PRIMITIVES[primitive]
    arrays = {name: np.atleast_1d(np.asarray(value, dtype=np.float64)) for name, value in sizes.items()}
    arrays.setdefault("item_bytes", np.array([4.0]))
    count = max(len(array) for array in arrays.values())
    arrays = {name: _long(array, count) for name, array in arrays.items()}
    try:
        result = {name: _long(value, count) for name, value in row.features(arrays).items()}
    except KeyError as error:
        raise HardwareError(
            f"primitive '{primitive}': the size '{error.args[0]}' is missing; got only: {', '.join(sorted(sizes))}"
        ) from None
    result["call"] = np.ones(count)
    for cache, size in caches.items():
        if "beyond_bytes" in row.per_cache:
            result[f"beyond_bytes/{cache}"] = np.maximum(result["bytes"] - size, 0.0)
        if "missed_bytes" in row.per_cache:
            row_bytes = arrays["width"] * arrays["item_bytes"]
            missed = result["edges"] * (1.0 - _hit_share(size / np.maximum(row_bytes, 1.0), arrays, locality))
            result[f"missed_rows/{cache}"] = missed
            result[f"missed_bytes/{cache}"] = missed * row_bytes
    return result


def _long(value: FloatArray, count: int) -> FloatArray:
    return value if np.shape(value) == (count,) else np.broadcast_to(value, (count,))


def _hit_share(capacity_rows: FloatArray, sizes: Sizes, locality: ArrayLike | None) -> FloatArray:
    """Fraction of the edges [n] whose source row is still among the ``capacity_rows`` [n] most recently read rows.

    Between the powers of two of the reuse profile, it is interpolated linearly in the logarithm of the capacity.
    """
    if locality is None:
        edges = np.maximum(sizes["edges"] if "edges" in sizes else sizes["nonzeros"], 1.0)
        sources = np.maximum(sizes.get("sources", edges), 1.0)
        first_reads = np.minimum(sources / edges, 1.0)
        return np.asarray((1.0 - first_reads) * np.minimum(capacity_rows / sources, 1.0))
    profile = np.atleast_2d(np.asarray(locality, dtype=np.float64))
    profile = np.broadcast_to(profile, (len(capacity_rows), profile.shape[1]))
    last = profile.shape[1] - 1
    place = np.clip(np.log2(np.maximum(capacity_rows, 1.0)), 0.0, last)
    low = np.minimum(place.astype(np.int64), max(last - 1, 0))
    high = np.minimum(low + 1, last)
    lane = np.arange(len(capacity_rows))
    share = profile[lane, low] + (place - low) * (profile[lane, high] - profile[lane, low])
    return np.asarray(np.where(capacity_rows < 1.0, 0.0, share))


def flops_and_bytes(primitive: str, sizes: Mapping[str, ArrayLike]) -> tuple[FloatArray, FloatArray]:
    """Count the flops of n pieces of work and the bytes that they read from and write to memory, each [n]. Every
    gathered row is read from memory."""
    found = features(primitive, sizes)
    names = ("bytes",) if "bytes" in found else ("gathered_bytes", "written_bytes", "index_bytes")
    touched = sum((found[name] for name in names if name in found), np.zeros(1))
    if PRIMITIVES[primitive].copies:
        touched = 2.0 * touched
    if "flops" in found:
        return found["flops"], touched
    if "gathered_bytes" in found:
        return 2.0 * found["edges"] * np.asarray(sizes["width"]), touched
    return found.get("elements", np.zeros(1)), touched


def choose_level(device: Device, name: str, primitive: str, concurrency: int, threads: int) -> Level:
    """Return the curve of a primitive for ``concurrency`` ranks at once, each with ``threads`` threads.

    If no curve was measured at this level, the nearest is used: first by thread count, then by concurrency (both by
    ratio; of two equally near, the larger concurrency). Its times are multiplied by the ratio of the cores per rank
    there to those here (on a GPU: of the fractions of the GPU). Raises :class:`HardwareError` when the device has no
    curve of the primitive.
    """
    curves = device.curves_of(primitive)
    if not curves:
        known = ", ".join(dict.fromkeys(curve.primitive for curve in device.curves)) or "none"
        hint = "" if primitive in PRIMITIVES else nearest(primitive, PRIMITIVES)
        raise HardwareError(
            f"devices.{name}.curves: the device has no curve of '{primitive}'{hint}, so this work has no price. "
            f"It has: {known}. Measure one with `simgnn calibrate`, or add [[devices.{name}.curves]]."
        )

    def distance(curve: Curve) -> tuple[float, float, int]:
        apart = abs(log(curve.threads / threads)), abs(log(curve.concurrency / concurrency))
        return round(apart[0], 9), round(apart[1], 9), -curve.concurrency

    def share(concurrency: int, threads: int) -> float:
        """Cores that one rank has, or the fraction of a GPU."""
        if device.cores is None:
            return 1.0 / concurrency
        return min(float(threads), device.cores.value / concurrency)

    curve = min(curves, key=distance)
    exact = curve.concurrency == concurrency and curve.threads == threads
    factor = 1.0 if exact else share(curve.concurrency, curve.threads) / share(concurrency, threads)
    return Level(curve, factor, exact)


def stand_in_of(device: Device, primitive: str) -> Callable[[Sizes], tuple[StandIn, ...]] | None:
    """Return the function that states the primitive as other work, if the device has no curve of it; else None."""
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
    """Return the seconds of n pieces of work on one device. ``sizes`` and ``locality`` are as in :func:`features`.

    Work of size zero still costs a call. A price is ``extrapolated`` at a concurrency that was not measured, outside a
    measured range, where cache misses have no locality profile, and where stand-in work is priced (source "assumed").
    """
    stand_in = stand_in_of(device, primitive)
    if stand_in is not None:
        table = dict(zip(sizes, np.broadcast_arrays(*map(np.atleast_1d, sizes.values())), strict=True))
        table.setdefault("item_bytes", np.array(4.0))
        prices = [price_work(device, name, *piece, locality, concurrency, threads) for piece in stand_in(table)]
        total = sum((price.seconds for price in prices), np.zeros(1))
        return Prices(total, None, np.ones(len(total), dtype=bool), "assumed")
    level = choose_level(device, name, primitive, concurrency, threads)
    curve = level.curve
    found = features(primitive, sizes, locality, device.cache_shares(curve.caches, concurrency))
    seconds = np.zeros_like(found["call"])
    for feature, cost in curve.costs.items():
        seconds = seconds + cost * found[feature]
    guessed = locality is None and any(feature.startswith("missed") for feature in curve.costs)
    extrapolated = np.full(len(seconds), not level.exact or guessed) | ~within_range(curve, found, sizes)
    return Prices(seconds * level.factor, curve.spread, extrapolated, curve.source)


def within_range(curve: Curve, found: Mapping[str, FloatArray], sizes: Mapping[str, ArrayLike]) -> NDArray[np.bool_]:
    """Return which pieces of work [n], with these features and sizes, are within the measured ranges of the curve."""
    inside = np.ones(len(found["call"]), dtype=bool)
    for name, (low, high) in curve.range.items():
        value = found[name] if name in found else sizes.get(name)
        if value is not None:
            measured = np.asarray(value, dtype=np.float64)
            inside &= (measured >= low * (1 - RANGE_SLACK)) & (measured <= high * (1 + RANGE_SLACK))
    return inside
