"""A scoreboard as tables on a terminal, and as a self-contained HTML page."""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simgnn.report.terminal import print_table, terminal
from simgnn.study.validate.results import Scoreboard, Verdict
from simgnn.study.validate.scoreboard import SIMULATOR
from simgnn.tomlfile import write_atomically

if TYPE_CHECKING:
    import plotly.graph_objects as go

ABSENT = "-"
Rows = list[list[str]]


def print_scoreboard(board: Scoreboard) -> None:
    """Cases, score of every predictor, parts, bars, sensitivity and drift."""
    for title, columns, rows in _tables(board):
        if rows:
            print_table(title, columns, rows)
    for line in closing_lines(board):
        terminal().print(line)


def closing_lines(board: Scoreboard) -> list[str]:
    """What a reader must know, in sentences."""
    overall = next(line.score for line in board.lines if line.predictor == SIMULATOR and line.group == "all")
    drift = board.drift
    lines = [
        f"median absolute error {_percent(overall.median_error)}, largest {_percent(overall.max_error)}, "
        f"n = {overall.n}",
        f"reference work took {drift.least:.2f} to {drift.most:.2f} (median {drift.median:.2f}) times as long beside "
        "the runs as beside the calibration; no prediction is corrected by it",
        *board.notes,
        *(f"not noticed: {entry.variant}: {entry.why}" for entry in board.sensitivity if entry.why is not None),
    ]
    if overall.coverage is None:
        lines.append("no prediction interval was given: coverage cannot be told")
    else:
        lines.append(
            f"{_percent(overall.coverage)} of the measured medians lie inside the 90 % interval; "
            f"{_percent(overall.coverage_certain)} to {_percent(overall.coverage_possible)} allowing each two standard "
            "errors"
        )
    return lines


def write_report(board: Scoreboard, path: Path) -> None:
    """Write the page, whole or not at all; it needs no network."""
    figure = _scatter(board).to_html(full_html=False, include_plotlyjs=True)
    tables = "\n".join(_html_table(*table) for table in _tables(board) if table[2])
    words = "\n".join(f"<p>{html.escape(line)}</p>" for line in closing_lines(board))
    title = f"Validation: {html.escape(board.suite)}"
    style = (
        "body{font-family:sans-serif;margin:2em;max-width:80em}table{border-collapse:collapse;margin:1em 0}"
        "td,th{border:1px solid #ccc;padding:.2em .6em;text-align:right}td:first-child,th:first-child{text-align:left}"
        "caption{text-align:left;font-weight:bold}"
    )
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{style}</style></head><body><h1>{title}</h1>{words}{figure}{tables}</body></html>\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page)


def _scatter(board: Scoreboard) -> "go.Figure":
    """Measured against predicted epoch, a colour a topology; across: run-to-run spread, upright: 90 % interval."""
    # plotly: loaded when a report is written
    import plotly.graph_objects as go

    figure = go.Figure()
    for topology in dict.fromkeys(line.case.topology for line in board.cases):
        lines = [line for line in board.cases if line.case.topology == topology]
        figure.add_trace(
            go.Scatter(
                x=[line.measured_s for line in lines],
                y=[line.predicted_s for line in lines],
                error_x={"type": "data", "array": [line.measured_s * (line.spread or 0.0) for line in lines]},
                error_y={
                    "type": "data",
                    "symmetric": False,
                    "array": [max((line.high_s or line.predicted_s) - line.predicted_s, 0.0) for line in lines],
                    "arrayminus": [max(line.predicted_s - (line.low_s or line.predicted_s), 0.0) for line in lines],
                },
                mode="markers",
                name=topology,
                text=[f"{line.case.name}: {_percent(line.error, signed=True)}" for line in lines],
            )
        )
    times = [value for line in board.cases for value in (line.predicted_s, line.measured_s)]
    ends = [min(times), max(times)]
    figure.add_trace(go.Scatter(x=ends, y=ends, mode="lines", name="equal", line={"dash": "dot", "color": "grey"}))
    figure.update_xaxes(type="log", title="measured epoch, s (bars: half range of repeats)")
    figure.update_yaxes(type="log", title="predicted epoch, s (bars: 90 % interval)")
    return figure


def _tables(board: Scoreboard) -> list[tuple[str, list[str], Rows]]:
    return [
        (
            "Median epoch of each experiment",
            ["experiment", "predicted", "measured", "spread", "error", "2 x noise", "drift"],
            [
                [
                    line.case.name,
                    f"{line.predicted_s:.4f} s",
                    f"{line.measured_s:.4f} s",
                    _percent(line.spread),
                    _percent(line.error, signed=True),
                    _percent(None if line.noise is None else 2 * line.noise),
                    f"{line.drift:.2f}",
                ]
                for line in board.cases
            ],
        ),
        (
            "Score of each predictor",
            [
                "predictor",
                "cases",
                "n",
                "median",
                "mean",
                "p90",
                "max",
                "bias",
                "tau (pairs)",
                "regret (n)",
                "coverage",
            ],
            _score_rows(board),
        ),
        (
            "Parts of the simulator's epoch (errors as shares of the epoch; memory: of itself)",
            ["part", "cases", "n", "median error", "bias"],
            [
                [part.part, part.group, str(part.n), _percent(part.error), _percent(part.bias, signed=True)]
                for part in board.parts
            ],
        ),
        (
            "Bars (errors and coverage with noise forgiven; as they stand, in the score above)",
            ["cases", "bar", "limit", "figure, noise forgiven", "holds"],
            [_verdict_row(entry) for entry in board.verdicts],
        ),
        (
            "Bounds on the runs that are kept",
            ["cases", "bar", "limit", "figure, noise forgiven", "holds"],
            [_verdict_row(entry) for entry in board.guard],
        ),
        (
            "Sensitivity: each rate that is cut down must make the score fail",
            ["variant", "median error", "fails", "noticed"],
            [
                [entry.variant, _percent(entry.score.median_error), ", ".join(entry.fails), _word(entry.worse)]
                for entry in board.sensitivity
            ],
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
        rows.append(
            [line.predictor, line.group, str(score.n), *map(_percent, errors), _percent(score.bias, signed=True), tau,
             regret, _percent(score.coverage)]
        )  # fmt: skip
    return rows


def _verdict_row(entry: Verdict) -> list[str]:
    limits = entry.limit if isinstance(entry.limit, tuple) else (entry.limit,)
    show: Any = (lambda value: ABSENT if value is None else f"{value:.2f}") if _is_plain(entry) else _percent
    return [
        entry.group,
        entry.bar,
        " .. ".join(show(limit) for limit in limits),
        show(entry.figure),
        _word(entry.holds),
    ]


def _is_plain(entry: Verdict) -> bool:
    """Whether a figure is no share: tau, and how many times better."""
    return entry.bar == "tau" or entry.bar.startswith("better")


def _word(holds: bool) -> str:
    return "yes" if holds else "NO"


def _percent(value: float | None, signed: bool = False) -> str:
    return ABSENT if value is None else f"{100 * value:{'+' if signed else ''}.1f} %"


def _html_table(title: str, columns: Sequence[str], rows: Rows) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><caption>{html.escape(title)}</caption><tr>{head}</tr>{body}</table>"
