"""Mean and variance of the greatest of independent normal times.

C. E. Clark, The greatest of a finite set of random variables, Operations Research 9(2), 1961: exact for two; of more,
the greatest so far is taken for normal and joined by the next, the surest first. Against numerical integration the mean
of n equal ones is off by at most 0.022 standard deviations up to n = 1,024 (tests); it is exact where they lie apart.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
INVERSE_ROOT_TWO_PI = 1.0 / np.sqrt(2.0 * np.pi)


def greater_of_two(mean: Floats, variance: Floats, other_mean: Floats, other_variance: Floats) -> tuple[Floats, Floats]:
    """Mean and variance of max(X, Y), elementwise, of independent normals. Without any variance: the larger one."""
    from scipy.special import ndtr

    width = np.sqrt(variance + other_variance)
    certain = width == 0.0
    gap = np.divide(mean - other_mean, width, out=np.zeros_like(width), where=~certain)
    first, second = ndtr(gap), ndtr(-gap)
    density = INVERSE_ROOT_TWO_PI * np.exp(-0.5 * gap * gap)
    # moments about the larger mean: seconds of a long run squared would cancel the microseconds that matter
    base = np.maximum(mean, other_mean)
    one, two = mean - base, other_mean - base
    above = one * first + two * second + width * density
    square = (one**2 + variance) * first + (two**2 + other_variance) * second + (one + two) * width * density
    above = np.maximum(np.where(certain, 0.0, above), 0.0)
    known = np.where(mean >= other_mean, variance, other_variance)
    spread = np.where(certain, known, np.maximum(square - above**2, 0.0))
    return base + above, spread


def greatest(mean: Floats, variance: Floats, present: NDArray[np.bool_] | None = None) -> tuple[Floats, Floats]:
    """Mean and variance of the greatest along the last axis. ``present``: which take part (default: all; at least one
    of each line must)."""
    there = np.ones(mean.shape, dtype=np.bool_) if present is None else present
    # those that take part first, of them the surest first: what is certain is joined exactly
    order = np.lexsort((mean, variance, ~there), axis=-1)
    mean, variance = np.take_along_axis(mean, order, -1), np.take_along_axis(variance, order, -1)
    there = np.take_along_axis(there, order, -1)
    found, spread = mean[..., 0], variance[..., 0]
    for place in range(1, int(there.sum(axis=-1).max(initial=1))):
        joined, width = greater_of_two(found, spread, mean[..., place], variance[..., place])
        found = np.where(there[..., place], joined, found)
        spread = np.where(there[..., place], width, spread)
    return found, spread
