"""Scores predictions, baselines and deliberately reduced rates against runs, and judges the bars of a suite."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from simgnn.study.cases import AXES, Case
from simgnn.study.error_measures import NOISE_FACTOR, Floats, Score, half_range, judge, median_noise, score
from simgnn.study.validate.baselines import held_out_regression
from simgnn.study.validate.ground_truth import AS_CALIBRATED, Measured, Prediction
from simgnn.study.validate.noise_limits import reasons
from simgnn.study.validate.scoreboard import (
    ROOFLINE,
    SIMULATOR,
    CaseLine,
    Drift,
    Line,
    Origin,
    Part,
    Scoreboard,
    Sensitivity,
    Verdict,
)
from simgnn.study.validate.suite import Bars, Suite

PARTS = ("compute_s", "wait_s", "transfer_s", "memory_bytes")
REASONS = {
    "tau": "no two of its measured medians differ by more than noise",
    "regret": "among no alternatives do the measured medians differ by more than noise",
    "coverage": "no prediction interval was given",
}
"""Why the figure of a bar cannot be computed, by name of the bar."""


@dataclass(frozen=True)
class _Table:
    """Measured cases as arrays [n], against which a predictor's times [n] are scored."""

    cases: tuple[Case, ...]
    measured: Floats
    noise: Floats
    choices: list[tuple[str, ...]]
    low: Floats
    high: Floats

    def score(self, predicted: Floats, kept: Sequence[bool], intervals: bool = False) -> Score:
        """Score a predictor on the cases that ``kept`` selects, without those that it cannot predict (NaN)."""
        at = np.flatnonzero(np.asarray(kept, dtype=bool) & np.isfinite(predicted))
        bounds = (self.low[at], self.high[at]) if intervals else (None, None)
        choices = [self.choices[place] for place in at]
        return score(predicted[at], self.measured[at], self.noise[at], choices, *bounds)


def build_scoreboard(
    suite: Suite,
    predictions: Sequence[Prediction],
    runs: Sequence[Measured],
    canary_s: float,
    origin: Origin,
    notes: Sequence[str] = (),
    bound: Bars | None = None,
) -> Scoreboard:
    """Score predictions (all variants) against runs. ``canary_s``: seconds of the reference work at calibration.
    ``bound``: the worst accepted score."""
    declared = {found.case: found for found in predictions if found.variant == AS_CALIBRATED}
    cases = tuple(case for case in suite.cases() if case in declared and any(run.case == case for run in runs))
    repeats = {case: [run for run in runs if run.case == case] for case in cases}
    lines = tuple(_case_line(declared[case], repeats[case], canary_s) for case in cases)
    table = _Table(
        cases=cases,
        measured=np.array([line.measured_s for line in lines]),
        noise=np.array([np.nan if line.noise is None else line.noise for line in lines]),
        choices=[case.without(suite.choose) for case in cases],
        low=np.array([np.nan if line.low_s is None else line.low_s for line in lines]),
        high=np.array([np.nan if line.high_s is None else line.high_s for line in lines]),
    )
    predictors = {
        SIMULATOR: np.array([line.predicted_s for line in lines]),
        ROOFLINE: np.array([declared[case].roofline_s for case in cases]),
    }
    rows = np.array([declared[case].features for case in cases])
    for axis in suite.hold_out:
        held = held_out_regression(rows, table.measured, [case.level(axis) for case in cases])
        predictors[f"regression, {axis} held out"] = held
    groups = _groups(suite, cases)
    scored = tuple(
        Line(name, group, table.score(values, kept, name == SIMULATOR))
        for group, kept in groups.items()
        for name, values in predictors.items()
    )
    simulated = predictors[SIMULATOR]
    drift = np.array([run.canary_s for run in runs]) / canary_s
    own, *others = _all_bars(suite, table, simulated)
    verdicts = [*own, *_better(suite, scored), *chain.from_iterable(others)]
    return Scoreboard(
        suite=suite.name,
        origin=origin,
        inconclusive=tuple(reasons(suite.noise, drift, lines, verdicts)),
        cases=lines,
        lines=scored,
        parts=tuple(_parts(groups, declared, repeats)),
        verdicts=tuple(verdicts),
        sensitivity=tuple(_sensitivity(suite, table, predictions, simulated)),
        drift=Drift(canary_s, float(drift.min()), float(np.median(drift)), float(drift.max())),
        guard=() if bound is None else tuple(_judge("all", bound, table, simulated, groups["all"])),
        notes=(*notes, *_notes(suite, lines, verdicts)),
    )


def _notes(suite: Suite, lines: Sequence[CaseLine], verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Describe what weakens the score, such as few repeats, missing intervals and noise."""
    few = [line.repeats for line in lines if line.repeats < suite.repeats]
    if few:
        yield f"{len(few)} of {len(lines)} cases have fewer than {suite.repeats} repeats, the fewest {min(few)}"
    beyond = sum(line.extrapolated > 0 for line in lines)
    if beyond:
        yield f"in {beyond} of {len(lines)} cases ops were priced beyond what was measured"
    without = sum(line.low_s is None for line in lines)
    if 0 < without < len(lines):
        yield f"{without} of {len(lines)} cases have no prediction interval: coverage is that of the others"
    bar = suite.bars.median_error
    noisy = sum(line.noise is not None and bar is not None and NOISE_FACTOR * line.noise > bar for line in lines)
    if noisy:
        yield (
            f"in {noisy} of {len(lines)} cases two standard errors of the measured median exceed the bar on errors, "
            "which then says little: repeat on a calmer machine, or more often"
        )
    for verdict in verdicts:
        if verdict.figure is None and verdict.bar in REASONS:
            yield f"{verdict.group}: {verdict.bar} cannot be told, so its bar does not hold: {REASONS[verdict.bar]}"


def _case_line(found: Prediction, repeats: Sequence[Measured], canary_s: float) -> CaseLine:
    epochs = [run.times.epoch_s for run in repeats]
    middle = float(np.median(epochs))
    noise = median_noise(epochs)
    return CaseLine(
        case=found.case,
        predicted_s=found.times.epoch_s,
        measured_s=middle,
        low_s=found.low_s,
        high_s=found.high_s,
        error=found.times.epoch_s / middle - 1.0,
        spread=half_range(epochs),
        noise=None if np.isnan(noise) else noise,
        repeats=len(epochs),
        drift=float(np.median([run.canary_s for run in repeats]) / canary_s),
        extrapolated=found.extrapolated,
    )


def _groups(suite: Suite, cases: Sequence[Case]) -> dict[str, list[bool]]:
    """Group the cases: all, then those of each level of every axis that has several."""
    groups = {"all": [True] * len(cases)}
    for axis in AXES:
        levels = suite.levels(axis)
        for level in levels if len(levels) > 1 else ():
            groups[f"{axis} {level}"] = [case.level(axis) == level for case in cases]
    return {name: kept for name, kept in groups.items() if any(kept)}


def _judge(group: str, bars: Bars, table: _Table, predicted: Floats, kept: Sequence[bool]) -> list[Verdict]:
    stated = bars.stated()
    at = np.flatnonzero(kept)
    found = table.score(predicted, kept, intervals=True)
    errors = predicted[at] / table.measured[at] - 1.0
    return [
        Verdict(group=group, bar=name, limit=stated[name], figure=figure, raw=getattr(found, name), holds=holds)
        for name, figure, holds in judge(stated, found, errors, table.noise[at])
    ]


def _all_bars(suite: Suite, table: _Table, predicted: Floats, coverage: bool = True) -> Iterator[list[Verdict]]:
    """Judge the bars on all cases, then those on each group of ``group_bars``. ``coverage``: False for reduced rates,
    whose predictions have no intervals."""
    groups: list[tuple[str, Bars, list[bool]]] = [("all", suite.bars, [True] * len(table.cases))]
    for entry in suite.group_bars:
        groups.append((entry.name, entry.bars, [case.level(entry.axis) in entry.levels for case in table.cases]))
    for name, bars, kept in groups:
        yield _judge(name, bars if coverage else bars.model_copy(update={"coverage": None}), table, predicted, kept)


def _better(suite: Suite, lines: Sequence[Line]) -> list[Verdict]:
    """Judge how many times smaller the simulator's median error is than that of each baseline."""
    bar = suite.bars.better_than_baselines
    if bar is None:
        return []
    overall = {line.predictor: line.score.median_error for line in lines if line.group == "all"}
    own = overall.pop(SIMULATOR)
    ratios = {name: theirs / own if own and theirs is not None else None for name, theirs in overall.items()}
    return [
        Verdict(
            "all", f"better than {name}", limit=bar, figure=ratio, raw=ratio, holds=ratio is not None and ratio >= bar
        )
        for name, ratio in ratios.items()
    ]


def _parts(
    groups: Mapping[str, Sequence[bool]],
    declared: Mapping[Case, Prediction],
    repeats: Mapping[Case, Sequence[Measured]],
) -> Iterator[Part]:
    """Compute the errors of each part of an epoch, over all cases and over those of each topology."""
    for part in PARTS:
        errors = np.full(len(repeats), np.nan)
        for at, (case, runs) in enumerate(repeats.items()):
            predicted = getattr(declared[case].times, part)
            values = [getattr(run.times, part) for run in runs]
            if predicted is None or None in values:
                continue
            middle = float(np.median(values))
            whole = middle if part == "memory_bytes" else float(np.median([run.times.epoch_s for run in runs]))
            errors[at] = (predicted - middle) / whole
        for group, kept in groups.items():
            known = errors[np.asarray(kept) & np.isfinite(errors)]
            if len(known) and (group == "all" or group.startswith("topology ")):
                error, bias = float(np.median(np.abs(known))), float(np.median(known))
                yield Part(part=part, group=group, n=len(known), error=error, bias=bias)


def _sensitivity(
    suite: Suite, table: _Table, predictions: Sequence[Prediction], simulated: Floats
) -> list[Sensitivity]:
    before = {(v.group, v.bar) for v in chain(*_all_bars(suite, table, simulated, coverage=False)) if not v.holds}
    found = []
    for what in suite.sensitivity:
        times = {entry.case: entry.times.epoch_s for entry in predictions if entry.variant == what.label}
        predicted = np.array([times[case] for case in table.cases])
        touched = np.abs(predicted / simulated - 1.0) > 1e-9
        slowed = table.score(predicted, [True] * len(table.cases))
        fails = [v for v in chain(*_all_bars(suite, table, predicted, coverage=False)) if not v.holds]
        whole, cut = (table.score(values, touched.tolist()) for values in (simulated, predicted))
        # a suite that fails already cannot fail anew: then what the rate touches must be off by more, noise apart
        newly = any((v.group, v.bar) not in before for v in fails)
        grown = (cut.median_error or 0.0) - (whole.median_error or 0.0) > NOISE_FACTOR * (cut.noise or 0.0)
        why = None
        if not touched.any():
            why = "it changes no prediction"
        elif not fails:
            why = "every bar on times holds with it too: the bars are too wide, or the cases use it too little"
        elif not (newly or grown):
            why = (
                "bars that fail with it fail without it too, and errors of the cases that it changes grow within noise"
            )
        names = tuple(f"{v.group}: {v.bar}" for v in fails)
        found.append(Sensitivity(variant=what.label, score=slowed, fails=names, worse=why is None, why=why))
    return found
