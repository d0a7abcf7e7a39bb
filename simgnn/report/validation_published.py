"""Predictions beside results of others, as tables on a terminal."""

from simgnn.study.collectives import CollectiveBoard
from simgnn.study.published_score import PublishedBoard


def print_published(board: PublishedBoard) -> None:
    """Every row, then the figures of merit and the assumptions behind them."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if Console().is_terminal else 160, markup=False, highlight=False)
    table = Table(title="Published epoch times and memory verdicts", title_justify="left", title_style="bold")
    columns = ["system", "graph", "model", "layers", "GPUs", "published", "predicted", "range", "factor"]
    columns += ["out of order", "memory"]
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < 3 else "right")
    for row in board.rows:
        table.add_row(
            row.label,
            row.dataset,
            row.model,
            str(row.layers),
            str(row.ranks),
            "-" if row.published_s is None else f"{row.published_s:.3g} s",
            "-" if row.predicted_s is None else f"{row.predicted_s:.3g} s",
            "-" if row.low_s is None else f"{row.low_s:.3g} .. {row.high_s:.3g} s",
            "-" if row.factor is None else f"{row.factor:.2f}",
            "-" if row.discordant is None else str(row.discordant),
            f"{row.verdict} ({'oom' if row.published_status == 'oom' else 'fits'})",
        )
    console.print(table)
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
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if Console().is_terminal else 160, markup=False, highlight=False)
    table = Table(title="Collectives, predicted without what is held out", title_justify="left", title_style="bold")
    for place, column in enumerate(["held out", "table", "n", "mean error", "noise forgiven"]):
        table.add_column(column, justify="left" if place < 2 else "right")
    for line in board.lines:
        figures = [f"{100 * figure:.1f} %" for figure in (line.mean, line.judged)]
        table.add_row(line.held_out, line.table, str(line.n), *figures)
    console.print(table)
    for name, bar in board.bars.items():
        word = "holds" if board.means[name] <= bar else "FAILS"
        console.print(f"{name}: mean {100 * board.means[name]:.1f} %, bar {100 * bar:.0f} %: {word}")
