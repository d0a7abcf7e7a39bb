"""``simgnn report``: one page of a prediction, a run, both, several, or a validation."""

from pathlib import Path
from typing import Annotated

import typer

from simgnn.cli.options import path_argument, path_option
from simgnn.cli.tables.console import Reporter, note


def command(
    directories: Annotated[
        list[Path], path_argument("DIR...", "Run directories of predictions or runs, or one folder of a validation.")
    ],
    out: Annotated[Path | None, path_option("--out", "FILE.html", "Page to write; default report.html in DIR.")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also predict what would change the epoch, which needs the graph.")
    ] = False,
    epoch: Annotated[
        int | None,
        typer.Option("--epoch", metavar="N", min=1, help="Epoch of the timeline; default: 2.", show_default=False),
    ] = None,
) -> None:
    """Write one page that needs no network: verdict first, then timeline, ranks, traffic, memory, training.

    One DIR: a prediction, a run, or a validation. Two: a prediction and a run overlaid, with where they differ. More:
    their epochs side by side. Every figure has its numbers as a table. Example:
    [bold]simgnn report runs/demo/predicted runs/demo/measured --out both.html[/bold]
    """
    # loaded when the command runs: its help starts fast
    from simgnn.api.reports.write_report import write_report

    path = write_report(*directories, out=out, explain=explain, epoch=epoch, progress=Reporter())
    note(f"written to {path} ({path.stat().st_size / 1e6:.1f} MB)")
