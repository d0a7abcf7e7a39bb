"""What the time of a piece of work is made of: features, from its sizes and from the locality of its index stream.

The rows of :data:`simgnn.hardware.primitives.PRIMITIVES` define the features; this module computes them for many pieces
of work at once.
"""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike

from simgnn.errors import HardwareError
from simgnn.hardware.primitives import PRIMITIVES, UNITS, FloatArray, Primitive, Sizes


def feature_names(primitive: str, caches: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Every feature that a curve of this primitive may use on a device with these caches."""
    row = PRIMITIVES[primitive]
    return (*row.plain, *(f"{name}/{cache}" for name in row.per_cache for cache in caches))


def unit_of(feature: str) -> str:
    """Unit of a feature, without its cache: "B", "flop", "edges"... Raises ``KeyError`` for an unknown one."""
    return UNITS[feature.partition("/")[0]]


def features(
    primitive: str,
    sizes: Mapping[str, ArrayLike],
    locality: ArrayLike | None = None,
    caches: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, FloatArray]:
    """All features of n pieces of work, each float64 [n].

    ``sizes``: number or array [n] each; ``item_bytes`` defaults to 4. ``locality``: cumulative reuse profile [bins] or
    [n, bins] (``simgnn.graph.locality``); None: the stream is taken as uniformly random over its ``sources``, and the
    first read of each source is a miss. ``caches``: bytes of each cache that one rank has.
    """
    row = known(primitive)
    arrays = _arrays(sizes)
    try:
        result = row.features(arrays)
    except KeyError as error:
        raise HardwareError(
            f"work of primitive '{primitive}' lacks the size '{error.args[0]}'; got: {', '.join(sorted(sizes))}"
        ) from None
    count = len(next(iter(arrays.values())))
    result = {name: _long(value, count) for name, value in result.items()}
    result["call"] = np.ones(count)
    for cache, size in caches.items():
        if "beyond_bytes" in row.per_cache:
            result[f"beyond_bytes/{cache}"] = np.maximum(result["bytes"] - size, 0.0)
        if "missed_bytes" in row.per_cache:
            row_bytes = arrays["width"] * arrays["item_bytes"]
            missed = result["edges"] * (1.0 - hit_share(size / np.maximum(row_bytes, 1.0), arrays, locality))
            result[f"missed_rows/{cache}"] = missed
            result[f"missed_bytes/{cache}"] = missed * row_bytes
    return result


def hit_share(capacity_rows: FloatArray, sizes: Sizes, locality: ArrayLike | None) -> FloatArray:
    """Share of the edges [n] whose source row is still among the ``capacity_rows`` [n] rows that were read last.

    Between the profile's powers of two the share grows linearly with the logarithm of the capacity.
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
    """Flops and bytes to and from memory of pieces of work, each [n]; every gathered row is read from memory."""
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


def known(primitive: str) -> Primitive:
    """The row of a primitive. Raises :class:`HardwareError` for a name that no row has."""
    if primitive not in PRIMITIVES:
        raise HardwareError(f"unknown primitive '{primitive}'; known: {', '.join(PRIMITIVES)}")
    return PRIMITIVES[primitive]


def _arrays(sizes: Mapping[str, ArrayLike]) -> dict[str, FloatArray]:
    arrays = {name: np.atleast_1d(np.asarray(value, dtype=np.float64)) for name, value in sizes.items()}
    arrays.setdefault("item_bytes", np.array([4.0]))
    count = max(len(array) for array in arrays.values())
    return {name: _long(array, count) for name, array in arrays.items()}


def _long(value: FloatArray, count: int) -> FloatArray:
    """A value, one for all or of [count], as [count]."""
    return value if np.shape(value) == (count,) else np.broadcast_to(value, (count,))
