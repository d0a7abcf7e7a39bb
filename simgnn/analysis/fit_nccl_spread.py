"""How far measured times lie from predicted ones: the spread of a profile's numbers, at once and by size."""

from collections.abc import Sequence
from math import inf
from statistics import NormalDist

import numpy as np

from simgnn.analysis.fit_nccl_tables import Floats
from simgnn.units import format_quantity

QUANTILE = 0.9
BANDS = tuple(float(size) for size in (0, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24))
"""From so many bytes on, the spread is told apart: it falls with size."""
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
