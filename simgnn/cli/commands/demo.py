"""``simgnn demo``: the whole tool on one small experiment, in a minute."""

from pathlib import Path
from typing import Annotated

from simgnn.cli.options import JsonOption, path_option
from simgnn.cli.tables.console import Reporter, note, print_json
from simgnn.errors import ConfigError
from simgnn.outputs import check_output_file, check_output_folder
from simgnn.report.terminal import print_table

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
    from simgnn.api.calibrate import calibrate
    from simgnn.api.compare import compare
    from simgnn.api.simulate import simulate
    from simgnn.api.train import carry_out, write_run
    from simgnn.planner.directory import check_free
    from simgnn.report.results import compared_quantities, qualifications, seconds

    simulated, trained = out / "sim", out / "run"
    profile, timelines = out / "hardware.toml", out / "trace.perfetto.json"
    check_output_folder(out, "--out")
    mine = {path.name for path in (simulated, trained, profile, timelines)}
    foreign = sorted(path.name for path in out.iterdir() if path.name not in mine) if out.is_dir() else []
    if foreign:
        raise ConfigError(
            f"--out: got {out}, which holds {foreign[0]}; expected a folder that is new, empty or of an earlier demo: "
            "name another"
        )
    for path in (simulated, trained):
        check_free(path, force=True)
    for path in (profile, timelines):
        check_output_file(path, "--out")
    reporter = Reporter(quiet=as_json)
    out.mkdir(parents=True, exist_ok=True)
    reporter.stage("calibrating this machine, quickly")
    calibrated = calibrate(profile, quick=True, progress=reporter)
    prediction = simulate("default", hardware=calibrated, out=simulated, force=True, progress=reporter)
    # the prediction's own preparation: one graph, one partition, one program for both
    write_run(prediction.prepared, prediction.chosen.profile, trained, reporter, force=True)
    measured = carry_out(trained, prediction.result.epochs, reporter)
    comparison = compare(simulated, trained, trace=timelines).comparison
    table = compared_quantities(prediction.result, measured)
    if as_json:
        print_json({**comparison.as_dict(), "table": table})
        return
    title = f"{measured.name}: GCN on {measured.ranks} ranks, {measured.epochs} epochs"
    keys = ("quantity", "predicted_text", "measured_text", "error_text")
    print_table(title, ["", "predicted", "measured", "error"], [[row[key] for key in keys] for row in table])
    for text in dict.fromkeys([*qualifications(prediction.result), *qualifications(measured)]):
        note(text)
    if comparison.interval is not None:
        low, high = map(seconds, comparison.interval)
        place = "inside" if comparison.inside else "outside"
        note(f"90 % interval of the predicted epoch: {low} .. {high}; the measured median lies {place}")
    note("memory: allocated by a rank at most; what does not grow with the graph (threads, libraries) is not predicted")
    note(f"run directories {simulated} and {trained}; where they differ: simgnn compare {simulated} {trained}")
    note(f"both timelines side by side: open {timelines} at https://ui.perfetto.dev")
