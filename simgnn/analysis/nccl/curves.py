"""Curves and lines through measured times, by the least sum of relative errors, and the spread of times around them.

No curve falls from knot to knot. Between two knots of equal times, where seconds a byte are linear in log(1 + x), it
sinks by up to 0.6 %.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from statistics import NormalDist

import numpy as np
from scipy.optimize import nnls

from simgnn.analysis.nccl.measured_tables import Floats
from simgnn.units import format_quantity

QUANTILE = 0.9
BANDS = tuple(float(size) for size in (0, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24))
"""Bytes of a message from which on its spread is fitted by size, since it falls with size."""
CARRIED_BANDS = tuple(size for size in BANDS if size != 1 << 16)
"""The same of what is carried over: below 64 KiB a table has eight sizes, too few to tell how others are missed."""
LEAST_SPREAD = 1e-6
"""A profile holds none of zero: invented times may follow their curve exactly."""
LEAST_ROWS = 5
"""A band of fewer sizes is not told apart from the one before it."""


def spread_of(logs: Floats) -> float:
    """The standard deviation whose 90 % interval holds 90 % of these logarithms of measured over predicted times."""
    return float(np.quantile(np.abs(logs), QUANTILE) / NormalDist().inv_cdf((1.0 + QUANTILE) / 2.0))


def spread_steps(
    sizes: Floats, logs: Floats, regime: Sequence[float] | None, bands: Sequence[float] = BANDS
) -> list[dict[str, str]] | None:
    """The spread of ``logs`` [n] by ``sizes`` [n], as a profile holds it, for the bands that a regime has a part of;
    None where there are too few."""
    begins, ends = regime or (0.0, inf)
    steps = []
    for low, high in zip(bands, (*bands[1:], inf), strict=True):
        band = (sizes >= low) & (sizes < high)
        if low < ends and high > begins and band.sum() >= LEAST_ROWS:
            spread = max(rounded(spread_of(logs[band]), 2), LEAST_SPREAD)
            steps.append(
                {"size": format_quantity(max(low, begins), "bytes"), "share": format_quantity(spread, "ratio")}
            )
    return steps or None


def rounded(number: float, digits: int = 4) -> float:
    """A number as a profile holds it."""
    return float(f"{number:.{digits}g}")


KNOTS_PER_OCTAVE = 3
SMOOTHING = 0.02
"""Weight of a curve's bend against the relative errors of the rows of one knot."""
SWEEPS = 25
FLOOR_SHARE = 0.8
"""The most of the shortest time that hops, or a floor, may be: the bytes' own seconds follow the rest."""
LEAST_MISS = 1e-3
"""Relative errors below it count alike: times have a resolution."""


@dataclass(frozen=True, eq=False)
class Curve:
    """Seconds of x bytes: ``floor`` and x times the seconds a byte that are read between ``knots`` [k] of x."""

    floor: float
    knots: Floats
    shares: Floats

    def at(self, x: Floats) -> Floats:
        """Seconds [n] at x [n]; beyond its ends a line."""
        return self.floor + x * read(self.knots, self.shares, x)


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """The mean of the seconds of several curves. An octave beyond its sizes a curve, a line there, counts half."""
    if len(curves) == 1:
        return curves[0]
    knots = _spaced(
        *np.log1p([min(curve.knots[0] for curve in curves), max(curve.knots[-1] for curve in curves)]).tolist()
    )
    beyond = [np.abs(np.log2(knots / np.clip(knots, curve.knots[0], curve.knots[-1]))) for curve in curves]
    seconds = np.average([curve.at(knots) for curve in curves], axis=0, weights=0.5 ** np.array(beyond))
    seconds = np.maximum.accumulate(seconds)
    floor = min(float(np.mean([curve.floor for curve in curves])), FLOOR_SHARE * float(seconds[0]))
    return Curve(floor, knots, (seconds - floor) / knots)


def smooth_curve(x: Floats, flowing: Floats, seconds: Floats) -> tuple[Floats, Floats]:
    """Knots [k] of x in bytes and seconds a byte at each, with the least sum of relative errors of ``seconds`` [n].

    Between knots the seconds a byte are linear in log(1 + x), as :class:`Points` reads them; a weak penalty on their
    bend from the straight line through all fills knots that no size is near. At no knot do more bytes take less time:
    what is measured to fall is what calls wait by chance. x [n] ascends.
    """
    if len(x) == 1:
        return x, flowing / x
    place = np.log1p(x)
    knots = _spaced(place[0], place[-1], len(x))
    if len(knots) < 2 or knots[0] == knots[-1]:
        return x[-1:], np.array([float(np.median(flowing / x))])
    start, slope = straight_line(x, flowing, seconds, sweeps=1)
    least = LEAST_MISS * float(flowing.min())
    scale = np.maximum(max(start, 0.0) + max(slope, 0.0) * knots, least)
    hats = np.array([np.interp(place, np.log1p(knots), row) for row in np.eye(len(knots))]).T
    columns = hats * (scale / knots) * (x / seconds)[:, None]
    bend = np.diff(np.eye(len(knots)), 2, axis=0) * SMOOTHING * np.sqrt(len(x) / len(knots))
    found = _least_sum(columns, flowing / seconds, bend) * scale
    if np.any(np.diff(found) < 0.0) or found[0] < least:
        # what each knot adds to the one before it
        added = np.tri(len(knots)) / scale[:, None]
        found = np.cumsum(_least_sum(columns @ added, flowing / seconds, bend @ added, falling=False))
    return knots, np.maximum(found, least) / knots


def _spaced(low: float, high: float, at_most: int | None = None) -> Floats:
    """Bytes between two logarithms, ``KNOTS_PER_OCTAVE``."""
    count = max(2, int(np.ceil((high - low) / np.log(2.0) * KNOTS_PER_OCTAVE)) + 1)
    return np.expm1(np.linspace(low, high, count if at_most is None else min(count, at_most)))


def read(knots: Floats, values: Floats, x: Floats) -> Floats:
    """A curve of :func:`smooth_curve` at x [n]."""
    return np.asarray(np.interp(np.log1p(x), np.log1p(knots), values))


def straight_line(x: Floats, flowing: Floats, seconds: Floats, sweeps: int = SWEEPS) -> tuple[float, float]:
    """Seconds at no bytes and seconds a byte of the line through ``flowing`` [n] with the least sum of relative errors
    of ``seconds`` [n]; of one sweep the least sum of their squares."""
    columns = np.column_stack([np.ones(len(x)), x / x[-1]]) / seconds[:, None]
    start, slope = _least_sum(columns, flowing / seconds, np.zeros((0, 2)), sweeps=sweeps)
    return float(start), float(slope / x[-1])


def _least_sum(columns: Floats, wanted: Floats, bend: Floats, *, falling: bool = True, sweeps: int = SWEEPS) -> Floats:
    """Iteratively reweighted least squares: the sum of absolute errors, by normal equations, as the columns are few.
    Not ``falling``: no number below zero."""
    weights: Floats = np.ones(len(wanted))
    found: Floats = np.zeros(columns.shape[1])
    size: Floats = np.ones(columns.shape[1]) if falling else np.linalg.norm(columns, axis=0)
    columns, bend = columns / size, bend / size
    for _ in range(sweeps):
        weighted = columns * weights[:, None]
        squares, sums = weighted.T @ columns + bend.T @ bend, weighted.T @ wanted
        if falling:
            found = np.asarray(np.linalg.solve(squares, sums), dtype=np.float64)
        else:
            root = np.linalg.cholesky(squares)
            found = np.asarray(nnls(root.T, np.linalg.solve(root, sums))[0], dtype=np.float64)
        weights = 1.0 / np.maximum(np.abs(columns @ found - wanted), LEAST_MISS)
    return found / size
