"""``simgnn simulate``: predict an experiment on a hardware profile, without loading torch."""

import typer

from simgnn.cli import options as opt
from simgnn.cli.tables.console import Reporter


def command(
    experiment: opt.ExperimentArgument,
    overrides: opt.SetOption = None,
    hardware: opt.HardwareOption = None,
    ranks: opt.RanksOption = None,
    epochs: opt.EpochsOption = None,
    activity: opt.ActivityOption = None,
    out: opt.OutOption = None,
    force: opt.ForceOption = False,
    verbose: opt.VerboseOption = False,
    as_json: opt.JsonOption = False,
) -> None:
    """Predict how long an experiment takes, what it sends and how much memory it needs.

    Without --hardware: this machine's last calibration. Exit status 3: it runs out of memory. Example:
    [bold]simgnn simulate vanilla --hardware a800-pcie-ib-2x8 --ranks 8 --epochs 20 --out runs/predicted[/bold]
    """
    loaded = opt.experiment_of(experiment, overrides, ranks=ranks, epochs=epochs, hardware=hardware)
    # loaded after the checks that are quick
    from simgnn.cli.predict import predict, write_prediction
    from simgnn.cli.tables.results import show_result
    from simgnn.planner.directory import check_free

    if out is not None:
        check_free(out, force)
    prediction = predict(loaded, Reporter(quiet=as_json), activity=activity, thorough=verbose)
    written = None if out is None else write_prediction(prediction, out, force)
    show_result(prediction.result, as_json, written, verbose)
    if prediction.result.status == "oom":
        raise typer.Exit(3)
