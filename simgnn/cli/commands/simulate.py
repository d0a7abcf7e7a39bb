"""``simgnn simulate``: predict an experiment on a hardware profile, without loading torch."""

from collections.abc import Sequence

import typer

from simgnn.cli import options as opt
from simgnn.cli.tables.console import Reporter

RECORDING_RANKS = 2
"""Ranks of a run that records decisions, where the command states none: any machine can start as many."""


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
    from simgnn.api.simulate import simulate_loaded
    from simgnn.cli.tables.one_result import show_result

    record = _recording(experiment, overrides or (), ranks, epochs)
    prediction = simulate_loaded(loaded, activity, out, force, verbose, Reporter(quiet=as_json), record)
    show_result(prediction.result, as_json, prediction.directory, verbose)
    if prediction.result.status == "oom":
        raise typer.Exit(3)


def _recording(experiment: str, overrides: Sequence[str], ranks: int | None, epochs: int | None) -> list[str]:
    """Return the words of the command that trains the same experiment on this machine, whatever the hardware."""
    kept = [given for given in overrides if not given.strip().startswith(("cluster.", "hardware."))]
    words = ["simgnn", "run", experiment, "--ranks", str(ranks or RECORDING_RANKS)]
    words += [word for given in kept for word in ("--set", given)]
    return words + ([] if epochs is None else ["--epochs", str(epochs)])
