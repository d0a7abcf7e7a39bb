"""Mean and variance of the greatest of independent normal times.

C. E. Clark, The greatest of a finite set of random variables, Operations Research 9(2), 1961: exact for two; of more,
the greatest so far is taken for normal and joined by the next, the surest first. Against numerical integration the mean
of n equal ones is off by at most 0.022 standard deviations up to n = 1,024 (tests); it is exact where they lie apart.
"""

from math import erfc, exp, pi, sqrt

import numba as nb
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
INVERSE_ROOT_TWO = 1.0 / sqrt(2.0)
INVERSE_ROOT_TWO_PI = 1.0 / sqrt(2.0 * pi)


@nb.njit(cache=True)
def _greater_of_two(mean: float, variance: float, other_mean: float, other_variance: float) -> tuple[float, float]:
    """Mean and variance of max(X, Y) of independent normals. Without any variance: the larger one."""
    width = sqrt(variance + other_variance)
    if width == 0.0:
        return (mean, variance) if mean >= other_mean else (other_mean, other_variance)
    gap = (mean - other_mean) / width
    first, second = 0.5 * erfc(-gap * INVERSE_ROOT_TWO), 0.5 * erfc(gap * INVERSE_ROOT_TWO)
    density = INVERSE_ROOT_TWO_PI * exp(-0.5 * gap * gap)
    # moments about the larger mean: seconds of a long run squared would cancel the microseconds that matter
    base = max(mean, other_mean)
    one, two = mean - base, other_mean - base
    above = max(one * first + two * second + width * density, 0.0)
    square = (one * one + variance) * first + (two * two + other_variance) * second + (one + two) * width * density
    return base + above, max(square - above * above, 0.0)


@nb.njit(cache=True)
def _fold(mean: Floats, variance: Floats, counts: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """The greatest of the first ``counts[i]`` members of each line i, joined in their order."""
    found, spread = mean[:, 0].copy(), variance[:, 0].copy()
    for line in range(mean.shape[0]):
        for place in range(1, counts[line]):
            found[line], spread[line] = _greater_of_two(
                found[line], spread[line], mean[line, place], variance[line, place]
            )
    return found, spread


def greatest(mean: Floats, variance: Floats, present: NDArray[np.bool_] | None = None) -> tuple[Floats, Floats]:
    """Mean and variance of the greatest along the last axis. ``present``: which take part (default: all; at least one
    of each line must)."""
    there = np.ones(mean.shape, dtype=np.bool_) if present is None else present
    # those that take part first, of them the surest first: what is certain is joined exactly
    order = np.lexsort((mean, variance, ~there), axis=-1)
    lines = (-1, mean.shape[-1])
    found, spread = _fold(
        np.take_along_axis(mean, order, -1).reshape(lines),
        np.take_along_axis(variance, order, -1).reshape(lines),
        there.sum(axis=-1).reshape(-1),
    )
    return found.reshape(mean.shape[:-1])[()], spread.reshape(mean.shape[:-1])[()]
