"""Curves and lines through measured times, by the least sum of relative errors."""

import numpy as np

from simgnn.analysis.fit_nccl_tables import Floats

KNOTS_PER_OCTAVE = 3
SMOOTHING = 0.02
"""Weight of the residual's curvature against the relative errors of the rows of one knot."""
SWEEPS = 25
LEAST_MISS = 1e-3
"""Relative errors below it count alike: times have a resolution."""


def smooth_curve(x: Floats, flowing: Floats, seconds: Floats) -> tuple[Floats, Floats]:
    """Knots [k] of x in bytes and seconds a byte at each, with the least sum of relative errors of ``seconds`` [n].

    Between knots the seconds a byte are linear in log(1 + x), as :class:`Points` reads them; a weak penalty on their
    curvature fills knots that no size is near. x [n] ascends.
    """
    place = np.log1p(x)
    count = max(2, int(np.ceil((place[-1] - place[0]) / np.log(2.0) * KNOTS_PER_OCTAVE)) + 1)
    if len(x) == 1:
        return x, flowing / x
    knots = np.linspace(place[0], place[-1], min(count, len(x)))
    if len(knots) < 2 or knots[0] == knots[-1]:
        return x[-1:], np.array([float(np.median(flowing / x))])
    hats = np.array([np.interp(place, knots, row) for row in np.eye(len(knots))]).T
    scale = np.interp(knots, place, flowing / x)
    columns = hats * scale * (x / seconds)[:, None]
    bend = np.diff(np.eye(len(knots)), 2, axis=0) * SMOOTHING * np.sqrt(len(x) / len(knots))
    shares = _least_sum(columns, flowing / seconds, bend)
    return np.expm1(knots), np.maximum(shares, LEAST_MISS) * scale


def read(knots: Floats, values: Floats, x: Floats) -> Floats:
    """A curve of :func:`smooth_curve` at x [n]."""
    return np.asarray(np.interp(np.log1p(x), np.log1p(knots), values))


def straight_line(x: Floats, flowing: Floats, seconds: Floats) -> tuple[float, float]:
    """Seconds at no bytes and seconds a byte of the line through ``flowing`` [n] with the least sum of relative errors
    of ``seconds`` [n]."""
    columns = np.column_stack([np.ones(len(x)), x / x[-1]]) / seconds[:, None]
    start, slope = _least_sum(columns, flowing / seconds, np.zeros((0, 2)))
    return float(start), float(slope / x[-1])


def _least_sum(columns: Floats, wanted: Floats, bend: Floats) -> Floats:
    """Iteratively reweighted least squares: the sum of absolute errors, by normal equations, as the columns are few."""
    weights: Floats = np.ones(len(wanted))
    found: Floats = np.zeros(columns.shape[1])
    for _ in range(SWEEPS):
        weighted = columns * weights[:, None]
        found = np.asarray(np.linalg.solve(weighted.T @ columns + bend.T @ bend, weighted.T @ wanted), dtype=np.float64)
        weights = 1.0 / np.maximum(np.abs(columns @ found - wanted), LEAST_MISS)
    return found
