"""How good predictions are: formulas over arrays [n] of predicted and measured times of n cases, and nothing else.

``noise`` is the standard error of each measured median as a share of it; where there was one repeat only it is NaN,
and nothing is forgiven.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MEDIAN_EFFICIENCY = float(np.sqrt(np.pi / 2))
"""Standard error of a median over that of a mean, for many normal samples."""
NOISE_FACTOR = 2.0
"""Standard errors within which a difference is taken for noise."""


@dataclass(frozen=True)
class Score:
    """One predictor on one group of cases. Errors are shares of the measured median; None: cannot be told.

    ``bias``: median signed error. ``noise``: median standard error of the measured medians. ``tau_pairs``,
    ``regret_groups``, ``coverage_n``: how many were judged. ``coverage_certain``, ``coverage_possible``: coverage when
    every case whose edge of the interval lies within two standard errors of its measured median counts as outside, or
    as inside.
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

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return asdict(self)


def score(
    predicted: Floats,
    measured: Floats,
    noise: Floats,
    groups: Sequence[object] | None = None,
    low: Floats | None = None,
    high: Floats | None = None,
) -> Score:
    """All figures of a predictor. ``groups`` [n]: cases of one group are alternatives of one decision (default: all).
    ``low``, ``high``: prediction interval, NaN where none was given."""
    errors = relative_errors(predicted, measured)
    sizes = np.abs(errors)
    some = len(sizes) > 0
    tau, pairs = kendall_tau(predicted, measured, noise)
    mean_regret, worst_regret, decisions = regret(predicted, measured, noise, groups or [0] * len(predicted))
    covered = coverage(measured, noise, low, high)
    known = noise[np.isfinite(noise)]
    return Score(
        n=len(sizes),
        median_error=float(np.median(sizes)) if some else None,
        mean_error=float(np.mean(sizes)) if some else None,
        p90_error=float(np.percentile(sizes, 90)) if some else None,
        max_error=float(np.max(sizes)) if some else None,
        bias=float(np.median(errors)) if some else None,
        noise=float(np.median(known)) if len(known) else None,
        tau=tau,
        tau_pairs=pairs,
        regret=mean_regret,
        regret_max=worst_regret,
        regret_groups=decisions,
        coverage=covered.share,
        coverage_certain=covered.certain,
        coverage_possible=covered.possible,
        coverage_n=covered.n,
    )


def relative_errors(predicted: Floats, measured: Floats) -> Floats:
    """(predicted - measured) / measured, [n]; measured times are above zero."""
    return np.asarray(predicted / measured - 1.0)


def median_noise(repeats: Sequence[float]) -> float:
    """Standard error of the median of repeats as a share of it; NaN for a single one.

    The sample standard deviation over the root of the count, times the factor of a median under normal noise: with few
    repeats a bootstrap of the median is no better, and this one is smooth.
    """
    values = np.asarray(repeats, dtype=np.float64)
    if len(values) < 2:
        return float("nan")
    error = MEDIAN_EFFICIENCY * values.std(ddof=1) / np.sqrt(len(values))
    return float(error / np.median(values))


def half_range(repeats: Sequence[float]) -> float | None:
    """Half the range of repeats as a share of their median: the run-to-run spread that is printed; None for one."""
    values = np.asarray(repeats, dtype=np.float64)
    return None if len(values) < 2 else float((values.max() - values.min()) / 2 / np.median(values))


def forgiven(errors: Floats, noise: Floats, bar: float) -> Floats:
    """Sizes of errors, [n], with what noise may explain cut down to the bar.

    A bar on times holds within max(bar, 2 standard errors of the measured median), case by case: an error above the bar
    but within two standard errors of its own measurement counts as the bar.
    """
    sizes = np.abs(errors)
    explained = sizes <= NOISE_FACTOR * np.nan_to_num(noise, nan=0.0)
    return np.asarray(np.where(explained, np.minimum(sizes, bar), sizes))


def ordered_pairs(measured: Floats, noise: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Pairs of cases, as two arrays of places, whose measured gap exceeds the noise."""
    i, j = np.triu_indices(len(measured), k=1)
    kept = _gap_exceeds(measured, noise, i, j)
    return i[kept], j[kept]


def kendall_tau(predicted: Floats, measured: Floats, noise: Floats) -> tuple[float | None, int]:
    """Kendall's tau over the pairs whose measured gap exceeds the noise, and how many these are.

    (concordant - discordant) / pairs; a pair that is predicted to be equal is neither. None without a pair.
    """
    i, j = ordered_pairs(measured, noise)
    if not len(i):
        return None, 0
    agreement = np.sign(predicted[i] - predicted[j]) * np.sign(measured[i] - measured[j])
    return float(agreement.sum() / len(i)), len(i)


def regret(
    predicted: Floats, measured: Floats, noise: Floats, groups: Sequence[object]
) -> tuple[float | None, float | None, int]:
    """What picking the predicted best costs: mean and largest of measured(picked) / measured(best) - 1, and how many
    decisions there were.

    A decision is a group of at least two cases of which at least one pair differs by more than the noise; a pick whose
    gap to the best lies within the noise costs nothing. Of several predicted to be equal the slowest counts as picked.
    """
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


@dataclass(frozen=True)
class Coverage:
    """Share of measured times inside their prediction interval: as measured, when every case that noise could move
    across an edge is outside, and when it is inside. Of ``n`` cases; None where no interval was given."""

    share: float | None
    certain: float | None
    possible: float | None
    n: int


def coverage(measured: Floats, noise: Floats, low: Floats | None, high: Floats | None) -> Coverage:
    """Coverage over the cases that have an interval."""
    if low is None or high is None:
        return Coverage(share=None, certain=None, possible=None, n=0)
    given = np.isfinite(low) & np.isfinite(high)
    if not given.any():
        return Coverage(share=None, certain=None, possible=None, n=0)
    low, high, times = low[given], high[given], measured[given]
    margin = NOISE_FACTOR * np.nan_to_num(noise[given], nan=0.0) * times

    def inside(inward: Floats | float) -> float:
        return float(((low + inward <= times) & (times <= high - inward)).mean())

    return Coverage(share=inside(0.0), certain=inside(margin), possible=inside(-margin), n=int(given.sum()))


def _gap_exceeds(measured: Floats, noise: Floats, i: NDArray[Any], j: NDArray[Any]) -> NDArray[np.bool_]:
    error = np.nan_to_num(noise, nan=0.0) * measured
    gap = np.abs(measured[i] - measured[j])
    return np.asarray(gap > NOISE_FACTOR * np.hypot(error[i], error[j]))


def _forgiven_coverage(found: Score, bar: tuple[float, float]) -> float | None:
    """Coverage, moved towards the bar as far as noise may explain: as for errors, within two standard errors."""
    if found.coverage is None or found.coverage_certain is None or found.coverage_possible is None:
        return None
    if found.coverage > bar[1]:
        return max(found.coverage_certain, bar[1])
    return max(found.coverage, min(found.coverage_possible, bar[0]))


def judge(bars: Mapping[str, Any], found: Score, errors: Floats, noise: Floats) -> list[tuple[str, float | None, bool]]:
    """(bar, figure, holds) of each bar: error bars on forgiven errors, coverage on what noise may make of it.

    The others are held against the score as it is.

    ``bars``: median_error, mean_error, p90_error, max_error, tau, regret, coverage = (least, most). A figure that
    cannot be told does not hold.
    """
    quantiles = {"median_error": 50, "p90_error": 90, "max_error": 100}
    verdicts: list[tuple[str, float | None, bool]] = []
    for name, bar in bars.items():
        if name in (*quantiles, "mean_error"):
            sizes = forgiven(errors, noise, bar)
            figure = None
            if len(sizes):
                figure = float(np.mean(sizes) if name == "mean_error" else np.percentile(sizes, quantiles[name]))
            verdicts.append((name, figure, figure is not None and figure <= bar))
        elif name == "tau":
            verdicts.append((name, found.tau, found.tau is not None and found.tau >= bar))
        elif name == "regret":
            verdicts.append((name, found.regret, found.regret is not None and found.regret <= bar))
        else:
            assert name == "coverage", name
            figure = _forgiven_coverage(found, bar)
            verdicts.append((name, figure, figure is not None and bar[0] <= figure <= bar[1]))
    return verdicts
