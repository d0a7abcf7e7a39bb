"""Scores of predictions as tables on a terminal, and a scoreboard as a self-contained HTML page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simgnn.report.page import paragraphs, scatter, table, write_page
from simgnn.report.terminal import print_table, terminal
from simgnn.study.collectives import CollectiveBoard
from simgnn.study.published.score import PublishedBoard
from simgnn.study.validate.scoreboard import SIMULATOR, CaseLine, Scoreboard, Verdict

ABSENT = "-"
Rows = list[list[str]]


def print_scoreboard(board: Scoreboard) -> None:
    """Print cases, scores of all predictors, parts, accuracy limits, sensitivity and drift."""
    for title, columns, rows in _tables(board):
        if rows:
            print_table(title, columns, rows)
    for line in closing_lines(board):
        terminal().print(line)


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
    """Write the scoreboard as an HTML page, atomically."""
    groups = {
        topology: _points([line for line in board.cases if line.case.topology == topology])
        for topology in dict.fromkeys(line.case.topology for line in board.cases)
    }
    figure = scatter(
        groups, "measured epoch, s (bars: half range of repeats)", "predicted epoch, s (bars: 90 % interval)"
    )
    tables = [table(columns, rows, title) for title, columns, rows in _tables(board) if rows]
    write_page(path, f"Validation: {board.suite}", [paragraphs(closing_lines(board)), figure, *tables])


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


def _tables(board: Scoreboard) -> list[tuple[str, list[str], Rows]]:
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
    scores = ["predictor", "cases", "n", "median", "mean", "p90", "max", "bias", "tau (pairs)", "regret (n)"]
    bars = ["cases", "bar", "limit", "figure, noise forgiven", "holds"]
    return [
        (
            "Median epoch of each experiment",
            ["experiment", "predicted", "measured", "spread", "error", "2 x noise", "drift"],
            cases,
        ),
        ("Score of each predictor", [*scores, "coverage"], _score_rows(board)),
        (
            "Parts of the simulator's epoch (errors as shares of the epoch; memory: of itself)",
            ["part", "cases", "n", "median error", "bias"],
            parts,
        ),
        (
            "Bars (errors and coverage with noise forgiven; raw in the score above)",
            bars,
            [_verdict_row(entry) for entry in board.verdicts],
        ),
        ("Bounds on the runs that are kept", bars, [_verdict_row(entry) for entry in board.guard]),
        (
            "Self-test: predicted again with a rate made wrong on purpose, the score must fail",
            ["variant", "median error", "fails", "noticed"],
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
    return [entry.group, entry.bar, " .. ".join(map(show, limits)), show(entry.figure), _word(entry.holds)]


def _word(holds: bool) -> str:
    return "yes" if holds else "NO"


def _percent(value: float | None, signed: bool = False) -> str:
    return ABSENT if value is None else f"{100 * value:{'+' if signed else ''}.1f} %"


def print_published(board: PublishedBoard) -> None:
    """Print predictions beside published results: every row, then figures of merit and assumptions."""
    columns = ["system", "graph", "model", "layers", "GPUs", "published", "predicted", "range", "factor"]
    columns += ["out of order", "memory"]
    rows = [
        [
            row.label,
            row.dataset,
            row.model,
            str(row.layers),
            str(row.ranks),
            "-" if row.published_s is None else f"{row.published_s:.3g} s",
            "-" if row.predicted_s is None else f"{row.predicted_s:.3g} s",
            "-" if row.low_s is None else f"{row.low_s:.3g} .. {row.high_s:.3g} s",
            _figure(row.factor),
            "-" if row.discordant is None else str(row.discordant),
            f"{row.verdict} ({'oom' if row.published_status == 'oom' else 'fits'})",
        ]
        for row in board.rows
    ]
    print_table("Published epoch times and memory verdicts", columns, rows, left=3)
    console = terminal()
    timed = sum(row.factor is not None for row in board.rows)
    console.print(f"median factor either way {_figure(board.median_factor)}; {board.inside} of {timed} in range")
    console.print(
        f"tau {_figure(board.tau)} over {board.tau_pairs} pairs of rows: {_figure(board.within.tau)} over "
        f"{board.within.pairs} of one table, {_figure(board.across.tau)} over {board.across.pairs} across tables"
    )
    console.print(f"memory verdicts: {board.right} right, {board.wrong} wrong, {board.undecided} undecided")
    console.print(f"rows of models that the suite does not map to one of ours: {board.left_out}")
    console.print(f"rows that ended otherwise than 'ok' or 'oom', which are not scored: {board.otherwise}")
    console.print("bars: " + ", ".join(f"{name} {'holds' if holds else 'FAILS'}" for name, holds in board.bars.items()))
    for line in board.assumptions:
        console.print(f"assumed: {line}")


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
