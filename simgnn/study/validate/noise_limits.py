"""Decides whether the machine was calm enough during a validation for its scores to say anything."""

from collections.abc import Iterator, Sequence

import numpy as np

from simgnn.study.error_measures import Floats
from simgnn.study.validate.scoreboard import CaseLine, Verdict
from simgnn.study.validate.suite import NoiseLimits

ERRORS = ("median_error", "mean_error", "p90_error", "max_error")
"""Bars on errors: noise may excuse what is above the bar by at most the share ``spread`` of it."""
MOST_BEYOND = 0.25
"""Share of runs, or of cases, that may lie beyond a limit."""


def reasons(
    limits: NoiseLimits, drift: Floats, lines: Sequence[CaseLine], verdicts: Sequence[Verdict]
) -> Iterator[str]:
    """Yield why a validation is inconclusive, a sentence each; nothing if it is conclusive. ``drift`` [runs]: seconds
    of the reference work at a run over those at calibration."""
    drifted = int((np.abs(np.log(drift)) > np.log1p(limits.drift)).sum())
    if drifted > MOST_BEYOND * len(drift):
        yield (
            f"beside {drifted} of {len(drift)} runs reference work was more than {_percent(limits.drift)} slower or "
            "faster than at calibration (at most a quarter may be)"
        )
    spread = [line.spread for line in lines if line.spread is not None]
    wide = sum(each > limits.spread for each in spread)
    if wide > MOST_BEYOND * len(spread):
        yield (
            f"in {wide} of {len(spread)} experiments repeats spread by more than +-{_percent(limits.spread)} "
            "(at most a quarter may)"
        )
    for verdict in verdicts:
        if verdict.bar in ERRORS and verdict.holds and verdict.raw is not None:
            assert isinstance(verdict.limit, float)
            if verdict.raw > verdict.limit * (1 + limits.spread):
                yield (
                    f"{verdict.group}: {verdict.bar} is {_percent(verdict.raw)}, and meets its bar of "
                    f"{_percent(verdict.limit)} only because so noisy runs excuse it"
                )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
