"""One thing in two profiles: by how much its times differ, and whether that is more than their spreads."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, hypot, inf

import numpy as np

from simgnn.hardware.primitives import FloatArray
from simgnn.hardware.profile.quantities import Number

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
