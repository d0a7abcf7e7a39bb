"""``simgnn validate``: score predictions against measured runs."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simgnn.cli.options import JsonOption, path_option
from simgnn.cli.tables.console import Reporter, note, print_json
from simgnn.errors import ConfigError
from simgnn.outputs import check_output_file, make_parent

if TYPE_CHECKING:
    from simgnn.api.backend import CommandBackend


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

    Drawing, calibrating and predicting come before the first run and are frozen. Exit status 1: a score misses its bar.
    Example: [bold]simgnn validate quick --report quick.html[/bold]
    """
    # loaded when the command runs: its help starts fast
    from simgnn.api.backend import CommandBackend
    from simgnn.api.calibration import check_counts
    from simgnn.report.validation import print_scoreboard, write_report
    from simgnn.study.validate import suite_runs
    from simgnn.study.validate.ground_truth import TruthFolder
    from simgnn.study.validate.suite_file import find_suite, load_suite, truth_folder
    from simgnn.tomlfile import load_toml

    if keep is not None:
        suite_runs.check_keep(keep)
    if report is not None:
        check_output_file(report, "--report")
    backend = CommandBackend(Reporter(quiet=as_json))
    if rescore:
        folder = out or truth_folder(suite)
        if out is not None:
            suite_runs.check_stored(out, load_suite(find_suite(suite)))
        board = suite_runs.rescore(folder, backend)
        holds = bool(board.guarded) if out is None else board.holds
    else:
        path = find_suite(suite)
        kind = load_toml(path).get("kind", "runs")
        if kind in ("published", "collectives"):
            if out or keep or report:
                raise ConfigError(
                    "--out, --keep, --report: a suite of published results runs nothing; remove these options"
                )
            _score_others(kind, path, backend, as_json)
            return
        loaded = load_suite(path)
        folder = out or Path("runs") / "validate" / loaded.name
        if not TruthFolder(folder).profile.is_file():
            check_counts(loaded.calibration.ranks, "calibration.ranks")
        board = suite_runs.validate(loaded, folder, backend)
        holds = board.holds
    if keep is not None:
        suite_runs.keep(folder, keep)
    if report is not None:
        make_parent(report)
        write_report(board, report)
    if as_json:
        print_json({**board.as_dict(), "folder": str(folder)})
    else:
        print_scoreboard(board)
        note(f"validation in {folder}" + ("" if report is None else f", report in {report}"))
    if not holds:
        raise typer.Exit(1)


def _score_others(kind: str, path: Path, backend: "CommandBackend", as_json: bool) -> None:
    """Score predictions against results of others; nothing is run or written."""
    # loaded when the command runs: its help starts fast
    from simgnn.report.validation import print_collectives, print_published
    from simgnn.study.collectives import load_collectives, score_collectives
    from simgnn.study.published.score import score_published
    from simgnn.study.published.suite import load_published, published_folder

    if kind == "published":
        published = score_published(load_published(path), published_folder(), backend)
        table, show = published.as_dict(), partial(print_published, published)
    else:
        collectives = score_collectives(load_collectives(path))
        table, show = collectives.as_dict(), partial(print_collectives, collectives)
    if as_json:
        print_json(table)
    else:
        show()
    if not table["holds"]:
        raise typer.Exit(1)
