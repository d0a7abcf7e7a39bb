"""Errors of predictions on left-out groups, the standard deviations fitted to them, and how well intervals cover them.

Each group counts alike, however many errors it has. A fitted spread is the standard deviation whose 90 % interval holds
90 % of the errors. Coverage is nested: the constants that judge a group are fitted without it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, exp

import numpy as np
from numpy.typing import NDArray

from simgnn.hardware.profile.error_model import LEVEL, QUANTILE

Floats = NDArray[np.float64]
LEAST_OCTAVES = 0.25
"""Errors nearer to a measurement than this many doublings do not tell what a doubling adds."""


@dataclass(frozen=True, eq=False)
class Errors:
    """Errors of one left-out group: ``logs`` [n], log(measured / predicted); ``octaves`` [n], doublings between each
    and its nearest measurement that was kept; ``nbytes`` [n], message sizes (zeros where size does not matter); ``own``
    [n], standard deviations that the predictions state (zeros: none)."""

    group: str
    logs: Floats
    octaves: Floats
    nbytes: Floats
    own: Floats

    @classmethod
    def of(
        cls,
        group: str,
        logs: Floats,
        octaves: float | Floats = 1.0,
        nbytes: float | Floats = 0.0,
        own: float | Floats = 0.0,
    ) -> "Errors":
        """Build the errors of a group; a number counts for all of them."""
        columns = (np.broadcast_to(column, np.shape(logs)) for column in (octaves, nbytes, own))
        return cls(group, logs, *columns)

    def where(self, chosen: NDArray[np.bool_]) -> "Errors":
        columns = (column[chosen] for column in (self.logs, self.octaves, self.nbytes, self.own))
        return Errors(self.group, *columns)


Spreads = Callable[[Errors], Floats]
"""The standard deviation [n] that a model gives each error of a group."""
Fit = Callable[[Sequence[Errors]], Spreads]


@dataclass(frozen=True)
class Judged:
    """90 % intervals on groups that were left out: how many groups and errors, the share inside, the median width (high
    over low), and the width of the narrowest interval of constant factors that holds the same share."""

    groups: int
    errors: int
    coverage: float
    width: float
    narrowest: float

    @property
    def too_wide(self) -> float:
        """Ratio of the logarithms of the two widths."""
        return float(np.log(self.width) / np.log(self.narrowest))


def weights(groups: Sequence[Errors]) -> Floats:
    """Weights [n] of all errors, such that each name of a group counts alike."""
    names = [group.group for group in groups]
    rows = {name: sum(len(group.logs) for group in groups if group.group == name) for name in names}
    return np.concatenate([np.full(len(group.logs), 1.0 / rows[group.group]) for group in groups])


def quantile(values: Floats, weight: Floats, level: float = LEVEL) -> float:
    """Return the smallest value such that a share ``level`` of the weight lies at or below it."""
    order = np.argsort(values)
    reached = np.cumsum(weight[order]) / weight.sum()
    return float(values[order][min(int(np.searchsorted(reached, level - 1e-12)), len(values) - 1)])


def fitted_spread(groups: Sequence[Errors]) -> float:
    """Return the one spread whose 90 % interval holds 90 % of the errors."""
    return quantile(np.abs(np.concatenate([group.logs for group in groups])), weights(groups)) / QUANTILE


def fit_constant(groups: Sequence[Errors]) -> Spreads:
    """Fit :func:`fitted_spread` to groups."""
    spread = fitted_spread(groups)
    return lambda errors: np.full(len(errors.logs), spread)


def fitted_rest(groups: Sequence[Errors]) -> float:
    """Return the spread that, combined with their own, lets 90 % intervals hold 90 % of the errors."""
    missed = [np.maximum((group.logs / QUANTILE) ** 2 - group.own**2, 0.0) for group in groups]
    return quantile(np.sqrt(np.concatenate(missed)), weights(groups))


def fit_rest(groups: Sequence[Errors]) -> Spreads:
    """Fit :func:`fitted_rest` to groups."""
    rest = fitted_rest(groups)
    return lambda errors: np.hypot(errors.own, rest)


def fitted_steps(groups: Sequence[Errors], bands: Sequence[float]) -> list[tuple[float, float]]:
    """Fit what a doubling of the distance adds, by size: (bytes from, spread) of each of ``bands`` that has errors.

    It does not rise with size: large messages are missed by less, and bands of few sizes would say otherwise by chance.
    """
    found: list[tuple[float, float]] = []
    for low, high in zip(bands, (*bands[1:], np.inf), strict=True):
        parts = [group.where((group.nbytes >= low) & (group.nbytes < high)) for group in groups]
        parts = [part.where(part.octaves >= LEAST_OCTAVES) for part in parts]
        parts = [part for part in parts if len(part.logs)]
        if parts:
            scaled = np.concatenate([np.abs(part.logs) / np.sqrt(part.octaves) for part in parts])
            found.append((low, quantile(scaled, weights(parts)) / QUANTILE))
    shares = np.maximum.accumulate([share for _, share in reversed(found)])[::-1]
    return [(low, float(share)) for (low, _), share in zip(found, shares, strict=True)]


def fit_steps(bands: Sequence[float]) -> Fit:
    """Return a fit of :func:`fitted_steps`."""

    def fit(groups: Sequence[Errors]) -> Spreads:
        steps = fitted_steps(groups, bands)
        sizes, shares = (np.array(column) for column in zip(*steps, strict=True))

        def spreads(errors: Errors) -> Floats:
            place = np.maximum(np.searchsorted(sizes, errors.nbytes, side="right") - 1, 0)
            return np.asarray(shares[place] * np.sqrt(errors.octaves))

        return spreads

    return fit


def judge(groups: Sequence[Errors], fit: Fit) -> Judged:
    """Judge the intervals of a fit on each group that was left out of it. Groups of one name are left out together."""
    names = list(dict.fromkeys(group.group for group in groups))
    logs, halves, weight = [], [], []
    for name in names:
        spreads = fit([group for group in groups if group.group != name])
        mine = [group for group in groups if group.group == name]
        logs += [group.logs for group in mine]
        halves += [QUANTILE * spreads(group) for group in mine]
        weight.append(weights(mine))
    return judged(np.concatenate(logs), np.concatenate(halves), np.concatenate(weight), len(names))


def judged(logs: Floats, halves: Floats, weight: Floats, groups: int) -> Judged:
    """Judge intervals of ``halves`` [n] in the logarithm on either side of predictions that miss by ``logs`` [n]."""
    coverage = float(weight[np.abs(logs) <= halves].sum() / weight.sum())
    width = float(np.exp(2.0 * quantile(halves, weight, 0.5)))
    return Judged(groups, len(logs), coverage, width, exp(shortest(logs, weight, coverage)))


def shortest(logs: Floats, weight: Floats, share: float) -> float:
    """Return the length of the shortest interval that holds a share of the weight of ``logs`` [n]."""
    order = np.argsort(logs)
    points, reached = logs[order], np.cumsum(weight[order]) / weight.sum()
    before = np.append(0.0, reached[:-1])
    ends = np.searchsorted(reached, before + share - 1e-9)
    fits = ends < len(points)
    return float(np.min(points[ends[fits]] - points[fits])) if fits.any() else float(points[-1] - points[0])


def rounded_up(number: float, digits: int = 2) -> float:
    """Round a positive number up to so many significant digits: a stated interval is never narrower than the fit."""
    scale = 10.0 ** (digits - 1 - int(np.floor(np.log10(number))))
    return ceil(number * scale - 1e-9) / scale
