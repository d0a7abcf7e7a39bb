"""Measures of how good predictions are, from arrays [n] of predicted and measured times of n cases.

``noise`` is the standard error of each measured median, divided by that median. It is NaN for a single repeat; no error
is then excused as noise.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MEDIAN_EFFICIENCY = float(np.sqrt(np.pi / 2))
"""Standard error of a median divided by that of a mean, for many normal samples."""
NOISE_FACTOR = 2.0
"""Differences of up to this many standard errors count as noise."""


@dataclass(frozen=True)
class Score:
    """Scores of a predictor on a group of cases. Errors are shares of the measured median; None: cannot be computed.

    ``bias``: median signed error. ``noise``: median standard error of measured medians. ``tau_pairs``,
    ``regret_groups``, ``coverage_n``: pairs, groups, cases judged. ``coverage_certain``, ``coverage_possible``:
    coverage when all cases within two standard errors of an edge of their interval count as outside, or as inside.
    """

    n: int
    median_error: float | None
    mean_error: float | None
    p90_error: float | None
    max_error: float | None
    bias: float | None
    noise: float | None
    tau: float | None
    tau_pairs: int
    regret: float | None
    regret_max: float | None
    regret_groups: int
    coverage: float | None
    coverage_certain: float | None
    coverage_possible: float | None
    coverage_n: int


def score(
    predicted: Floats,
    measured: Floats,
    noise: Floats,
    groups: Sequence[object] | None = None,
    low: Floats | None = None,
    high: Floats | None = None,
) -> Score:
    """Compute all scores of a predictor. ``groups`` [n]: cases of one group are alternatives of one decision (default:
    all). ``low``, ``high``: ends of the prediction intervals, NaN where there is none."""
    errors = predicted / measured - 1.0
    tau, pairs = kendall_tau(predicted, measured, noise)
    mean_regret, worst_regret, decisions = regret(predicted, measured, noise, groups or [0] * len(predicted))
    covered, certain, possible, judged = coverage(measured, noise, low, high)

    def figure(of: Callable[[Floats], Any], values: Floats) -> float | None:
        return float(of(values)) if len(values) else None

    sizes = np.abs(errors)
    return Score(
        n=len(sizes),
        median_error=figure(np.median, sizes),
        mean_error=figure(np.mean, sizes),
        p90_error=figure(lambda values: np.percentile(values, 90), sizes),
        max_error=figure(np.max, sizes),
        bias=figure(np.median, errors),
        noise=figure(np.median, noise[np.isfinite(noise)]),
        tau=tau,
        tau_pairs=pairs,
        regret=mean_regret,
        regret_max=worst_regret,
        regret_groups=decisions,
        coverage=covered,
        coverage_certain=certain,
        coverage_possible=possible,
        coverage_n=judged,
    )


def median_noise(repeats: Sequence[float]) -> float:
    """Return the standard error of the median of ``repeats``, divided by that median; NaN for one repeat. It is the
    sample standard deviation over the root of the count, times the factor of a median under normal noise. With few
    repeats a bootstrap of the median is no better, and not smooth."""
    if len(repeats) < 2:
        return float("nan")
    error = MEDIAN_EFFICIENCY * np.std(repeats, ddof=1) / np.sqrt(len(repeats))
    return float(error / np.median(repeats))


def half_range(repeats: Sequence[float]) -> float | None:
    """Return the run-to-run spread: half the range of ``repeats``, divided by their median; None for one repeat."""
    return None if len(repeats) < 2 else float((max(repeats) - min(repeats)) / 2 / np.median(repeats))


def forgiven(errors: Floats, noise: Floats, bar: float) -> Floats:
    """Return absolute errors [n]; an error above the bar counts as the bar if it is within two standard errors."""
    sizes = np.abs(errors)
    explained = sizes <= NOISE_FACTOR * np.nan_to_num(noise, nan=0.0)
    return np.asarray(np.where(explained, np.minimum(sizes, bar), sizes))


def ordered_pairs(measured: Floats, noise: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the pairs of cases, as two arrays of indices, whose measured times differ by more than noise."""
    i, j = np.triu_indices(len(measured), k=1)
    kept = _gap_exceeds(measured, noise, i, j)
    return i[kept], j[kept]


def kendall_tau(predicted: Floats, measured: Floats, noise: Floats) -> tuple[float | None, int]:
    """Return Kendall's tau over the pairs whose measured times differ by more than noise, and the number of pairs. It
    is (concordant - discordant) / pairs; equal predictions count as neither. Tau is None without pairs."""
    i, j = ordered_pairs(measured, noise)
    if not len(i):
        return None, 0
    agreement = np.sign(predicted[i] - predicted[j]) * np.sign(measured[i] - measured[j])
    return float(agreement.sum() / len(i)), len(i)


def regret(
    predicted: Floats, measured: Floats, noise: Floats, groups: Sequence[object]
) -> tuple[float | None, float | None, int]:
    """Return the mean and the largest cost of picking the predicted best, measured(picked) / measured(best) - 1, and
    the number of decisions. A decision is a group in which at least two cases differ by more than noise; a pick within
    noise of the best costs nothing. Among equal predictions the slowest case is picked."""
    members: dict[object, list[int]] = {}
    for place, group in enumerate(groups):
        members.setdefault(group, []).append(place)
    costs = []
    for group_members in members.values():
        places = np.array(group_members)
        i, j = np.triu_indices(len(places), k=1)
        if not _gap_exceeds(measured, noise, places[i], places[j]).any():
            continue
        picked = places[np.lexsort((-measured[places], predicted[places]))[0]]
        best = places[np.argmin(measured[places])]
        lost = bool(_gap_exceeds(measured, noise, np.array([picked]), np.array([best]))[0])
        costs.append(float(measured[picked] / measured[best] - 1.0) if lost else 0.0)
    return (float(np.mean(costs)), max(costs), len(costs)) if costs else (None, None, 0)


def coverage(
    measured: Floats, noise: Floats, low: Floats | None, high: Floats | None
) -> tuple[float | None, float | None, float | None, int]:
    """Return the share of measured times inside their prediction interval: as measured, with cases that noise could
    move across an edge counted as outside, and with them counted as inside; and the number of cases with an interval.
    The shares are None if no case has one."""
    if low is None or high is None or not (given := np.isfinite(low) & np.isfinite(high)).any():
        return None, None, None, 0
    low, high, times = low[given], high[given], measured[given]
    margin = NOISE_FACTOR * np.nan_to_num(noise[given], nan=0.0) * times

    def inside(inward: Floats | float) -> float:
        return float(((low + inward <= times) & (times <= high - inward)).mean())

    return inside(0.0), inside(margin), inside(-margin), int(given.sum())


def _gap_exceeds(measured: Floats, noise: Floats, i: NDArray[Any], j: NDArray[Any]) -> NDArray[np.bool_]:
    error = np.nan_to_num(noise, nan=0.0) * measured
    gap = np.abs(measured[i] - measured[j])
    return np.asarray(gap > NOISE_FACTOR * np.hypot(error[i], error[j]))


def judge(bars: Mapping[str, Any], found: Score, errors: Floats, noise: Floats) -> list[tuple[str, float | None, bool]]:
    """Return (bar, figure, holds) for each bar. Errors and coverage are judged with noise allowed for, tau and regret
    as they are. A bar does not hold if the figure cannot be computed.

    ``bars``: median_error, mean_error, p90_error, max_error, tau, regret, coverage = (least, most).
    """
    quantiles = {"median_error": 50, "p90_error": 90, "max_error": 100}
    verdicts: list[tuple[str, float | None, bool]] = []
    for name, bar in bars.items():
        least, most = -np.inf, bar
        if name == "tau":
            figure, least, most = found.tau, bar, np.inf
        elif name == "regret":
            figure = found.regret
        elif name == "coverage":
            figure, (least, most) = found.coverage, bar
            # moved towards the bar as far as noise may explain: within two standard errors, as errors are
            if figure is not None and found.coverage_certain is not None and found.coverage_possible is not None:
                low, high = max(figure, min(found.coverage_possible, least)), max(found.coverage_certain, most)
                figure = high if figure > most else low
        else:
            sizes = forgiven(errors, noise, bar)
            figure = None
            if len(sizes):
                figure = float(np.mean(sizes) if name == "mean_error" else np.percentile(sizes, quantiles[name]))
        verdicts.append((name, figure, figure is not None and least <= figure <= most))
    return verdicts
