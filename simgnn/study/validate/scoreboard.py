"""Result of a validation: scores of simulator and baselines on the same cases, bars, parts, sensitivity, drift."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from simgnn.study.cases import Case
from simgnn.study.error_measures import Score

SIMULATOR, ROOFLINE = "simulator", "alpha-beta and roofline"
Outcome = Literal["passed", "failed", "inconclusive"]


@dataclass(frozen=True)
class CaseLine:
    """One case, predicted and measured (median over repeats). ``spread``: half the range of the repeats over their
    median. ``noise``: relative standard error of that median. ``drift``: median over repeats of the seconds of the
    reference work at the run over those at calibration (above 1: the machine was slower)."""

    case: Case
    predicted_s: float
    measured_s: float
    low_s: float | None
    high_s: float | None
    error: float
    spread: float | None
    noise: float | None
    repeats: int
    drift: float
    extrapolated: int


@dataclass(frozen=True)
class Line:
    """The score of one predictor on one group of cases."""

    predictor: str
    group: str
    score: Score


@dataclass(frozen=True)
class Part:
    """Errors of one part of an epoch, as shares of the measured epoch (memory: of the measured memory). ``error``:
    median absolute error. ``bias``: median signed error."""

    part: str
    group: str
    n: int
    error: float
    bias: float


@dataclass(frozen=True)
class Verdict:
    """One bar and whether it holds. ``figure``: the value that is compared with the bar; for errors and coverage noise
    is allowed for (:func:`simgnn.study.error_measures.judge`). ``raw``: the same without allowing for noise."""

    group: str
    bar: str
    limit: float | tuple[float, float]
    figure: float | None
    raw: float | None
    holds: bool


@dataclass(frozen=True)
class Sensitivity:
    """The score with one rate reduced on purpose, so that a bar should fail. ``why``: why none did, or None."""

    variant: str
    score: Score
    fails: tuple[str, ...]
    worse: bool
    why: str | None


@dataclass(frozen=True)
class Drift:
    """Seconds of the reference work at the runs over those at calibration: smallest, median and largest."""

    canary_s: float
    least: float
    median: float
    most: float


@dataclass(frozen=True)
class Origin:
    """When predictions were frozen (UTC), the calibrated machine, and the versions of libraries."""

    frozen: str
    machine: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Scoreboard:
    """Everything that a validation reports. ``guard``: verdicts on the worst accepted score (``bound.toml``).
    ``inconclusive``: why runs were too noisy to judge the predictions; empty if they were not."""

    suite: str
    origin: Origin
    inconclusive: tuple[str, ...]
    cases: tuple[CaseLine, ...]
    lines: tuple[Line, ...]
    parts: tuple[Part, ...]
    verdicts: tuple[Verdict, ...]
    sensitivity: tuple[Sensitivity, ...]
    drift: Drift
    guard: tuple[Verdict, ...]
    notes: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether every score meets its bar, and every deliberately reduced rate is noticed (:class:`Sensitivity`)."""
        return all(entry.holds for entry in self.verdicts) and all(entry.worse for entry in self.sensitivity)

    @property
    def guarded(self) -> bool | None:
        """Whether scores are within all stored bounds, and every reduced rate is noticed; None without bounds."""
        if not self.guard:
            return None
        return all(entry.holds for entry in self.guard) and all(entry.worse for entry in self.sensitivity)

    @property
    def outcome(self) -> Outcome:
        """The verdict: on the stored bounds if there are any, otherwise on the bars of the suite."""
        if self.inconclusive:
            return "inconclusive"
        return "passed" if (self.guarded if self.guard else self.holds) else "failed"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "outcome": self.outcome, "holds": self.holds, "guard_holds": self.guarded}
