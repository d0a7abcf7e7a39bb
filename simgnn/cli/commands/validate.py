"""``simgnn validate``: score predictions against measured runs."""

from pathlib import Path
from typing import Annotated

import typer

from simgnn.cli.options import JsonOption, path_option
from simgnn.cli.tables.console import Reporter, note, print_json

INCONCLUSIVE = 4
"""Exit status of a validation on a machine too noisy to judge predictions."""


def command(
    suite: Annotated[
        str, typer.Argument(metavar="SUITE", help="A TOML file, or quick, testbed, issue2, nccl, published.",
                            show_default=False)
    ],
    out: Annotated[
        Path | None,
        path_option(
            "--out", "DIR", "Folder of the validation; default runs/validate/SUITE. An interrupted one goes on there."
        ),
    ] = None,
    rescore: Annotated[
        bool, typer.Option("--rescore", help="Run nothing: score today's simulator against the runs kept of the "
                           "suite, or of the folder that --out names.")
    ] = False,
    keep: Annotated[
        Path | None,
        path_option("--keep", "DIR", "Afterwards, copy the ground truth (small files) to a new folder."),
    ] = None,
    report: Annotated[Path | None, path_option("--report", "FILE", "Write a self-contained HTML report.")] = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Predict the experiments of a suite, run them, and say how good the predictions were.

    Drawing, calibrating and predicting come before the first run and are frozen. Exit status 1: a score misses its bar;
    4: inconclusive, the machine was too noisy to judge.
    Example: [bold]simgnn validate quick --report quick.html[/bold]
    """
    # loaded when the command runs: its help starts fast
    from simgnn.api.validation import validate
    from simgnn.report import validation as shown
    from simgnn.study.published.score import PublishedBoard
    from simgnn.study.validate.scoreboard import Scoreboard

    scored = validate(suite, out, rescore, keep, report, Reporter(quiet=as_json))
    board, folder = scored.board, scored.folder
    if as_json:
        print_json({**board.as_dict(), **({} if folder is None else {"folder": str(folder)})})
    elif isinstance(board, Scoreboard):
        shown.print_scoreboard(board)
        note(f"validation in {folder}" + ("" if report is None else f", report in {report}"))
    elif isinstance(board, PublishedBoard):
        shown.print_published(board)
    else:
        shown.print_collectives(board)
    if isinstance(board, Scoreboard) and board.outcome == "inconclusive":
        raise typer.Exit(INCONCLUSIVE)
    if not scored.holds:
        raise typer.Exit(1)
