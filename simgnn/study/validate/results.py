"""What a validation reports: errors by case, predictor, group and part; bars, sensitivity, drift."""

from dataclasses import asdict, dataclass
from typing import Any

from simgnn.study.cases import Case
from simgnn.study.error_measures import Score


@dataclass(frozen=True)
class CaseLine:
    """One case, predicted and measured (median over repeats). ``spread``: half the range of the repeats over their
    median; ``noise``: standard error of that median, both as shares; ``drift``: median over repeats of the reference
    work beside the run over that beside the calibration (above 1: the machine was slower)."""

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
    """One predictor on one group of cases."""

    predictor: str
    group: str
    score: Score


@dataclass(frozen=True)
class Part:
    """Errors of one part of an epoch, as shares of the measured epoch (of memory: of itself). ``error``: median of the
    absolute error, ``bias``: median signed error."""

    part: str
    group: str
    n: int
    error: float
    bias: float


@dataclass(frozen=True)
class Verdict:
    """One bar, the figure that it is held against, and whether it holds. ``figure``: of errors and coverage what is
    left when noise is forgiven (:func:`simgnn.study.error_measures.judge`), not the score as it stands."""

    group: str
    bar: str
    limit: float | tuple[float, float]
    figure: float | None
    holds: bool


@dataclass(frozen=True)
class Sensitivity:
    """What the score said with a rate cut down: it has to be noticed, by a bar that then fails. ``why``: why it was not
    noticed; None: it was."""

    variant: str
    score: Score
    fails: tuple[str, ...]
    worse: bool
    why: str | None


@dataclass(frozen=True)
class Drift:
    """Reference work beside the runs over that beside the calibration: smallest, median, largest over all runs."""

    canary_s: float
    least: float
    median: float
    most: float


@dataclass(frozen=True)
class Scoreboard:
    """Everything that a validation reports."""

    suite: str
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
        """Whether every bar holds and every rate that was cut down was noticed."""
        return all(verdict.holds for verdict in self.verdicts) and all(entry.worse for entry in self.sensitivity)

    @property
    def guarded(self) -> bool | None:
        """Whether the committed bounds hold, and every rate that was cut down was noticed; None: there is no bound, so
        nothing can be said."""
        if not self.guard:
            return None
        return all(verdict.holds for verdict in self.guard) and all(entry.worse for entry in self.sensitivity)

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {**asdict(self), "holds": self.holds, "guard_holds": self.guarded}
