"""What energy is read from: a gauge has one sensor or several, whose readings become joules since the first of them."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from simgnn.errors import BackendError
from simgnn.record.energy import Floats, Part


class Sensor(Protocol):
    """One thing that can be read again and again."""

    def read(self) -> float:
        """A reading; raises :class:`BackendError` with the reason where there is none."""
        ...

    def joules(self, times_s: Floats, readings: Floats) -> Floats:
        """Energy since the first reading, at each of them; raises :class:`BackendError` for readings that cannot be."""
        ...


@dataclass(frozen=True)
class Gauge:
    """Energy of one part of this host: the sum of its ``sensors``; none of them: ``reason`` tells why it is not known.

    ``name``: what it measures; ``source``: by what; ``ranks``: those that share it.
    """

    part: Part
    name: str
    source: str = ""
    sensors: tuple[Sensor, ...] = ()
    reason: str = ""
    ranks: tuple[int, ...] = ()


def counted_joules(readings: Floats, range_j: float | None) -> Floats:
    """Energy since the first reading of a counter of joules, which begins anew after ``range_j`` (None: never).

    Between two readings it may have begun anew once: they must follow one another faster than it runs through.
    """
    steps = np.diff(readings)
    if range_j is not None:
        steps = np.where(steps < 0, steps + range_j, steps)
    if len(steps) and float(steps.min()) < 0:
        raise BackendError(f"the counter went back by {-float(steps.min()):g} J: it was reset, or the device was")
    return np.concatenate(([0.0], np.cumsum(steps)))


def integrated_power(times_s: Floats, watts: Floats) -> Floats:
    """Energy since the first reading of power: the trapezoid over each two of them."""
    return np.concatenate(([0.0], np.cumsum(np.diff(times_s) * (watts[1:] + watts[:-1]) / 2)))
