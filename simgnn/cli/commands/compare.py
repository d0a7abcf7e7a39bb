"""``simgnn compare``: where a prediction and a run differ."""

from pathlib import Path
from typing import Annotated

from simgnn.cli.options import JsonOption, path_argument, path_option
from simgnn.cli.tables.console import print_json


def command(
    predicted: Annotated[Path, path_argument("A", "Run directory of a prediction, or of a run.")],
    measured: Annotated[Path, path_argument("B", "Run directory of a run, or of a prediction.")],
    trace: Annotated[
        Path | None,
        path_option("--trace", "FILE", "Write both timelines, side by side, for ui.perfetto.dev."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two run directories op by op: error of the epoch, of each op kind, and the ops that differ most.

    Example: [bold]simgnn compare runs/predicted runs/measured --trace both.json[/bold]
    """
    # loaded when the command runs: its help starts fast
    from simgnn.api.compare import compare
    from simgnn.report.text import print_comparison

    comparison = compare(predicted, measured, trace=trace).comparison
    if as_json:
        print_json(comparison.as_dict())
    else:
        print_comparison(comparison)
