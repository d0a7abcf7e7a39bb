"""Scores of predictions as tables on a terminal, and a scoreboard as a self-contained HTML page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simgnn.report.page import definitions, paragraphs, scatter, table, write_page
from simgnn.report.terminal import print_table, terminal
from simgnn.study.collectives import CollectiveBoard
from simgnn.study.published.rows import PublishedRow
from simgnn.study.published.score import PublishedBoard
from simgnn.study.validate.scoreboard import SIMULATOR, CaseLine, Scoreboard, Verdict

ABSENT = "-"
Rows = list[list[str]]
CASE_COLUMNS: Mapping[str, str] = {
    "experiment": "graph, partition, ranks (P), topology and experiment of the suite",
    "predicted": "epoch time that the simulator predicted before the first run",
    "measured": "median epoch time of all repeats; of a run the median of all epochs after the first",
    "spread": "half the range of the repeats over their median: how far runs of the same experiment lie apart",
    "error": "predicted over measured, less 1: below 0 the prediction was too short",
    "2 x noise": "twice the standard error of the measured median: an error below it may be chance",
    "drift": "time of a fixed piece of reference work beside the runs over that at calibration: above 1 the machine "
    "was slower than when it was calibrated. Nothing is corrected for it",
}
"""Columns of each table and what they mean, as also in the tables below."""
SCORE_COLUMNS: Mapping[str, str] = {
    "predictor": "the simulator, a roofline with alpha-beta messages, or a regression on flops and bytes fitted to the "
    "other groups",
    "cases": "which experiments are scored",
    "n": "number of experiments",
    "median": "median of the absolute errors",
    "mean": "mean of the absolute errors",
    "p90": "ninth decile of the absolute errors",
    "max": "largest absolute error",
    "bias": "median of the signed errors: below 0 most predictions were too short",
    "tau (pairs)": "Kendall's tau: 1 if every pair of experiments is in the right order, -1 if none; pairs that differ "
    "by more than noise",
    "regret (n)": "how much slower than the best the predicted best was, mean over n decisions",
    "coverage": "share of measured medians inside the 90 % prediction interval",
}
PART_COLUMNS: Mapping[str, str] = {
    "part": "mean over ranks of computing, waiting and transfer; memory of the fullest rank",
    "cases": "which experiments are scored",
    "n": "number of experiments",
    "median error": "median absolute error as a share of the measured epoch (memory: of the measured memory)",
    "bias": "median signed error, as a share of the same",
}
BAR_COLUMNS: Mapping[str, str] = {
    "cases": "which experiments are judged",
    "bar": "the figure that is judged, as in the score",
    "limit": "what the suite demands of it: most of errors and regret, least of tau, both ends of coverage",
    "figure": "the figure as measured",
    "noise forgiven": "the figure that is compared with the limit: an error within two standard errors of its measured "
    "median counts as the limit at most, and coverage moves towards its limit as far as noise may explain",
    "holds": "whether the limit is met. A limit met because noisy runs excuse errors far beyond it makes a validation "
    "inconclusive",
}
SELF_TEST_COLUMNS: Mapping[str, str] = {
    "variant": "the rate of the profile that was made wrong before predicting again: a score that does not notice this "
    "would not notice a wrong simulator either",
    "median error": "median absolute error of these predictions",
    "fails": "bars that fail with them",
    "noticed": "whether a bar fails because of it",
}


@dataclass(frozen=True)
class Shown:
    """A table: ``columns`` and what each means, ``rows`` of cells."""

    title: str
    columns: Mapping[str, str]
    rows: Rows


def print_scoreboard(board: Scoreboard) -> None:
    """Print cases, scores of all predictors, parts, accuracy limits, sensitivity and drift, and the verdict last."""
    for shown in _tables(board):
        if shown.rows:
            print_table(shown.title, list(shown.columns), shown.rows)
    for line in (*closing_lines(board), verdict_line(board)):
        terminal().print(line)


def verdict_line(board: Scoreboard) -> str:
    """Say in a sentence whether the predictions passed, failed, or could not be judged, and why."""
    outcome = board.outcome
    if outcome == "inconclusive":
        return f"inconclusive: too noisy: {'; '.join(board.inconclusive)}. Repeat when nothing else runs."
    if outcome == "passed":
        return "passed: every bar holds, and every rate made wrong on purpose is noticed"
    failed = [f"{entry.group}: {entry.bar}" for entry in board.guard or board.verdicts if not entry.holds]
    failed += [f"self-test: {entry.variant} is not noticed" for entry in board.sensitivity if not entry.worse]
    return f"failed: {', '.join(failed)}"


def closing_lines(board: Scoreboard) -> list[str]:
    """Summary sentences below the tables: error, drift, notes, undetected variants and coverage."""
    overall = next(line.score for line in board.lines if line.predictor == SIMULATOR and line.group == "all")
    drift = board.drift
    lines = [
        f"median absolute error {_percent(overall.median_error)}, largest {_percent(overall.max_error)}, "
        f"n = {overall.n}",
        f"reference work took {drift.least:.2f} to {drift.most:.2f} (median {drift.median:.2f}) times as long during "
        "the runs as during calibration; predictions are not corrected for this drift",
        *board.notes,
        *(
            f"self-test: the score does not notice {entry.variant}: {entry.why}"
            for entry in board.sensitivity
            if entry.why is not None
        ),
    ]
    if overall.coverage is None:
        lines.append("no prediction has an interval, so coverage is unknown")
    else:
        lines.append(
            f"{_percent(overall.coverage)} of the measured medians lie inside the 90 % interval; "
            f"{_percent(overall.coverage_certain)} to {_percent(overall.coverage_possible)} allowing each two standard "
            "errors"
        )
    return lines


def write_report(board: Scoreboard, path: Path) -> None:
    """Write the scoreboard as an HTML page, atomically: verdict and origin first, each column explained."""
    groups = {
        topology: _points([line for line in board.cases if line.case.topology == topology])
        for topology in dict.fromkeys(line.case.topology for line in board.cases)
    }
    figure = scatter(
        groups, "measured epoch, s (bars: half range of repeats)", "predicted epoch, s (bars: 90 % interval)"
    )
    origin = board.origin
    made = [
        verdict_line(board),
        f"Predictions frozen on {origin.frozen}, before the first run. Machine: {origin.machine}. Versions: "
        f"{', '.join(f'{name} {version}' for name, version in origin.versions.items())}.",
    ]
    tables = [
        table(list(shown.columns), shown.rows, shown.title) + definitions(shown.columns)
        for shown in _tables(board)
        if shown.rows
    ]
    write_page(path, f"Validation: {board.suite}", [paragraphs([*made, *closing_lines(board)]), figure, *tables])


def _points(lines: Sequence[CaseLine]) -> dict[str, Any]:
    """Measured (x) and predicted (y) epoch times. Error bars in x: spread between runs, in y: 90 % interval."""
    return {
        "x": [line.measured_s for line in lines],
        "y": [line.predicted_s for line in lines],
        "error_x": {"type": "data", "array": [line.measured_s * (line.spread or 0.0) for line in lines]},
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [max((line.high_s or line.predicted_s) - line.predicted_s, 0.0) for line in lines],
            "arrayminus": [max(line.predicted_s - (line.low_s or line.predicted_s), 0.0) for line in lines],
        },
        "text": [f"{line.case.name}: {_percent(line.error, signed=True)}" for line in lines],
    }


def _tables(board: Scoreboard) -> list[Shown]:
    cases = [
        [line.case.name, f"{line.predicted_s:.4f} s", f"{line.measured_s:.4f} s", _percent(line.spread),
         _percent(line.error, signed=True), _percent(None if line.noise is None else 2 * line.noise),
         f"{line.drift:.2f}"]
        for line in board.cases
    ]  # fmt: skip
    parts = [
        [part.part, part.group, str(part.n), _percent(part.error), _percent(part.bias, signed=True)]
        for part in board.parts
    ]
    noticed = [
        [entry.variant, _percent(entry.score.median_error), ", ".join(entry.fails), _word(entry.worse)]
        for entry in board.sensitivity
    ]
    return [
        Shown("Median epoch of each experiment", CASE_COLUMNS, cases),
        Shown("Score of each predictor", SCORE_COLUMNS, _score_rows(board)),
        Shown("Parts of the simulator's epoch", PART_COLUMNS, parts),
        Shown("Bars", BAR_COLUMNS, [_verdict_row(entry) for entry in board.verdicts]),
        Shown("Bounds on the runs that are kept", BAR_COLUMNS, [_verdict_row(entry) for entry in board.guard]),
        Shown(
            "Self-test: predicted again with a rate made wrong on purpose, the score must fail",
            SELF_TEST_COLUMNS,
            noticed,
        ),
    ]


def _score_rows(board: Scoreboard) -> Rows:
    rows = []
    for line in board.lines:
        score = line.score
        if not score.n or (line.group != "all" and line.predictor != SIMULATOR):
            continue
        errors = [score.median_error, score.mean_error, score.p90_error, score.max_error]
        tau = ABSENT if score.tau is None else f"{score.tau:.2f} ({score.tau_pairs})"
        regret = ABSENT if score.regret is None else f"{_percent(score.regret)} ({score.regret_groups})"
        last = [_percent(score.bias, signed=True), tau, regret, _percent(score.coverage)]
        rows.append([line.predictor, line.group, str(score.n), *map(_percent, errors), *last])
    return rows


def _verdict_row(entry: Verdict) -> list[str]:
    limits = entry.limit if isinstance(entry.limit, tuple) else (entry.limit,)
    # tau and "better" (how many times better) are plain numbers, not shares
    show: Any = _figure if entry.bar == "tau" or entry.bar.startswith("better") else _percent
    return [
        entry.group,
        entry.bar,
        " .. ".join(map(show, limits)),
        show(entry.raw),
        show(entry.figure),
        _word(entry.holds),
    ]


def _word(holds: bool) -> str:
    return "yes" if holds else "NO"


def _percent(value: float | None, signed: bool = False) -> str:
    return ABSENT if value is None else f"{100 * value:{'+' if signed else ''}.1f} %"


def print_published(board: PublishedBoard) -> None:
    """Print predictions beside published results: every row, then figures of merit, then both of the tables that are
    scored apart, and all assumptions."""
    times = len({row.timed for row in board.rows}) > 1
    columns = ["system", "graph", "model", "layers", "GPUs", *(["time of"] if times else [])]
    columns += ["published", "predicted", "range", "factor", *(["ratio"] if board.ratio_rows else [])]
    columns += ["out of order", "memory", *(["communication"] if board.communication_rows else [])]
    rows = [
        [
            row.label,
            row.dataset,
            row.model,
            str(row.layers),
            str(row.ranks),
            *([row.timed] if times else []),
            "-" if row.published_s is None else f"{row.published_s:.3g} s",
            "-" if row.predicted_s is None else f"{row.predicted_s:.3g} s",
            "-" if row.low_s is None else f"{row.low_s:.3g} .. {row.high_s:.3g} s",
            _figure(row.factor),
            *([_ratio(row)] if board.ratio_rows else []),
            "-" if row.discordant is None else str(row.discordant),
            f"{row.verdict} ({'oom' if row.published_status == 'oom' else 'fits'})",
            *([_figure(row.communication_factor)] if board.communication_rows else []),
        ]
        for row in board.rows
    ]
    print_table(f"Published epoch times and memory verdicts: {board.suite}", columns, rows, left=3)
    console = terminal()
    timed = sum(row.factor is not None for row in board.rows)
    console.print(f"median factor either way {_figure(board.median_factor)}; {board.inside} of {timed} in range")
    console.print(
        f"tau {_figure(board.tau)} over {board.tau_pairs} pairs of rows: {_figure(board.within.tau)} over "
        f"{board.within.pairs} of one table, {_figure(board.across.tau)} over {board.across.pairs} across tables"
    )
    if board.communication_rows:
        figure, count = _figure(board.communication_factor), board.communication_rows
        console.print(
            f"of printed communication alone: median factor {figure} over {count} rows, which no bar is about"
        )
    if board.ratio_rows:
        console.print(
            f"ratios of a time to that without the last step (published, predicted, factor): median factor either way "
            f"{_figure(board.ratio_factor)} over {board.ratio_rows} rows"
        )
    console.print(f"memory verdicts: {board.right} right, {board.wrong} wrong, {board.undecided} undecided")
    console.print(f"rows of models that the suite does not map to one of ours: {board.left_out}")
    console.print(f"rows that ended otherwise than 'ok' or 'oom', which are not scored: {board.otherwise}")
    console.print("bars: " + ", ".join(f"{name} {'holds' if holds else 'FAILS'}" for name, holds in board.bars.items()))
    for group in board.apart:
        print_published(group)
    for line in board.assumptions:
        console.print(f"assumed: {line}")


def _ratio(row: PublishedRow) -> str:
    if row.ratio_factor is None:
        return ABSENT
    return f"{_figure(row.published_ratio)}, {_figure(row.predicted_ratio)}: {_figure(row.ratio_factor)}"


def _figure(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.2f}"


def print_collectives(board: CollectiveBoard) -> None:
    """Print the mean error of predicted collectives by table, then of all tables."""
    columns = ["held out", "table", "n", "mean error", "noise forgiven"]
    rows = [
        [line.held_out, line.table, str(line.n), f"{100 * line.mean:.1f} %", f"{100 * line.judged:.1f} %"]
        for line in board.lines
    ]
    print_table("Collectives, predicted without what is held out", columns, rows, left=2)
    console = terminal()
    for name, bar in board.bars.items():
        word = "holds" if board.means[name] <= bar else "FAILS"
        console.print(f"{name}: mean {100 * board.means[name]:.1f} %, bar {100 * bar:.0f} %: {word}")
