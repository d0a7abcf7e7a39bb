"""``simgnn demo``: the whole tool on one small experiment, in a minute."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from simgnn.cli.options import JsonOption, path_option
from simgnn.errors import ConfigError
from simgnn.outputs import check_output_file, check_output_folder

if TYPE_CHECKING:
    from simgnn.record.result import Result

DEMO_FOLDER = Path("runs/demo")


def command(
    out: Annotated[
        Path, path_option("--out", "DIR", "Folder for both run directories and the trace.", show_default=True)
    ] = DEMO_FOLDER,
    as_json: JsonOption = False,
) -> None:
    """Calibrate this machine quickly, predict a small experiment, train it with 2 ranks, and compare.

    Writes DIR/sim, DIR/run and DIR/trace.perfetto.json (open it at ui.perfetto.dev). Example:
    [bold]simgnn demo --out runs/demo[/bold]
    """
    # loaded when the command runs: its help starts fast
    from simgnn.analysis.compare import compare_runs
    from simgnn.cli.commands.calibrate import calibrate
    from simgnn.cli.predict import TRACE_EPOCHS, predict, write_prediction
    from simgnn.cli.tables.console import Reporter, note, print_json
    from simgnn.cli.tables.results import qualifications, seconds
    from simgnn.cli.train import carry_out, write_run
    from simgnn.experiment.load import load_experiment
    from simgnn.report.perfetto import write_perfetto
    from simgnn.report.terminal import print_table

    simulated, trained = out / "sim", out / "run"
    profile, timelines = out / "hardware.toml", out / "trace.perfetto.json"
    _check_folder(out, (simulated, trained), (profile, timelines))
    reporter = Reporter(quiet=as_json)
    out.mkdir(parents=True, exist_ok=True)
    reporter.stage("calibrating this machine, quickly")
    calibrate(profile, quick=True, reporter=reporter)
    experiment = load_experiment("default", hardware=str(profile))
    prediction = predict(experiment, reporter)
    write_prediction(prediction, simulated, force=True)
    # the prediction's own preparation: one graph, one partition, one program for both
    write_run(prediction.prepared, prediction.chosen.profile, trained, reporter, force=True)
    measured = carry_out(trained, experiment.train.epochs, reporter)
    comparison = compare_runs(simulated, trained)
    both = {"predicted": simulated, "measured": trained}
    write_perfetto(both, timelines, TRACE_EPOCHS, predictions=["predicted"])
    if as_json:
        print_json({**comparison.as_dict(), "table": _rows(prediction.result, measured)})
        return
    rows = [
        [row["quantity"], row["predicted_text"], row["measured_text"], row["error_text"]]
        for row in _rows(prediction.result, measured)
    ]
    print_table(
        f"{experiment.name}: GCN on {measured.ranks} ranks, {measured.epochs} epochs",
        ["", "predicted", "measured", "error"],
        rows,
    )
    for text in dict.fromkeys([*qualifications(prediction.result), *qualifications(measured)]):
        note(text)
    interval, inside = comparison.interval, comparison.inside
    if interval is not None:
        place = "inside" if inside else "outside"
        note(
            f"90 % interval of the predicted epoch: {seconds(interval[0])} .. {seconds(interval[1])}; the measured "
            f"median lies {place}"
        )
    note("memory: allocated by a rank at most; what does not grow with the graph (threads, libraries) is not predicted")
    note(f"run directories {simulated} and {trained}; where they differ: simgnn compare {simulated} {trained}")
    note(f"both timelines side by side: open {timelines} at https://ui.perfetto.dev")


def _check_folder(out: Path, runs: Sequence[Path], files: Sequence[Path]) -> None:
    """Raise :class:`ConfigError` unless ``out`` is new, or holds nothing but what an earlier demo has put there."""
    # loaded when the command runs: its help starts fast
    from simgnn.planner.directory import check_free

    check_output_folder(out, "--out")
    mine = {path.name for path in (*runs, *files)}
    foreign = sorted(path.name for path in out.iterdir() if path.name not in mine) if out.is_dir() else []
    if foreign:
        raise ConfigError(
            f"--out: got {out}, which holds {foreign[0]}; expected a folder that is new, empty or of an earlier demo: "
            "name another"
        )
    for path in runs:
        check_free(path, force=True)
    for path in files:
        check_output_file(path, "--out")


def _rows(predicted: "Result", measured: "Result") -> list[dict[str, Any]]:
    """The quantities that the table compares, with their error relative to what was measured."""
    # loaded when the command runs: its help starts fast
    from simgnn.cli.tables.results import (
        UNMEASURED,
        amount,
        bytes_per_epoch,
        communication_s,
        last_accuracy,
        memory_bytes,
        metric_name,
        payload_name,
        percent,
        seconds,
    )

    rows = []
    for quantity, of, text in (
        ("epoch, median", lambda result: result.epoch_s_median, seconds),
        ("communication not hidden, slowest rank", communication_s, seconds),
        (payload_name(measured), bytes_per_epoch, amount),
        ("memory, fullest rank", memory_bytes, amount),
        (f"test {metric_name(measured)} reached", lambda result: last_accuracy(result)[1], percent),
    ):
        one, two = of(predicted), of(measured)
        error = (one - two) / two if one is not None and two else None
        rows.append(
            {
                "quantity": quantity,
                "predicted": one,
                "measured": two,
                "error": error,
                "predicted_text": text(one),
                "measured_text": text(two),
                "error_text": UNMEASURED if error is None else f"{100 * error:+.1f} %",
            }
        )
    return rows
