"""``simgnn compare``: where a prediction and a run differ."""

from pathlib import Path
from typing import Annotated

from simgnn.cli.options import JsonOption, path_argument, path_option
from simgnn.cli.tables.console import print_json
from simgnn.outputs import check_output_file, make_parent


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
    from simgnn.analysis.compare import compare_runs
    from simgnn.api.predict import TRACE_EPOCHS
    from simgnn.report.perfetto import write_perfetto
    from simgnn.report.text import print_comparison

    if trace is not None:
        check_output_file(trace, "--trace")
    comparison = compare_runs(predicted, measured)
    if trace is not None:
        make_parent(trace)
        sides = dict(zip(comparison.sides, (predicted, measured), strict=True))
        predictions = [side for side in sides if side.startswith("predicted")]
        write_perfetto(sides, trace, TRACE_EPOCHS, predictions=predictions)
    if as_json:
        print_json(comparison.as_dict())
    else:
        print_comparison(comparison)
