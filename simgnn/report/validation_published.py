"""Predictions beside results of others, as tables on a terminal."""

from simgnn.report.terminal import print_table, terminal
from simgnn.study.collectives import CollectiveBoard
from simgnn.study.published.score import PublishedBoard


def print_published(board: PublishedBoard) -> None:
    """Every row, then the figures of merit and the assumptions behind them."""
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
    return "-" if value is None else f"{value:.2f}"


def print_collectives(board: CollectiveBoard) -> None:
    """Mean error of every table, then of all."""
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
