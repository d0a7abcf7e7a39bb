"""``simgnn simulate``: predict an experiment on a hardware profile, without loading torch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from simgnn.cli import options as opt
from simgnn.cli.tables.console import Reporter

if TYPE_CHECKING:
    from simgnn.experiment.schema import Experiment

RECORDING_RANKS = 2
"""Ranks of a run that records decisions, where the experiment states none: any machine can start as many."""
MOST_RANKS = 8
"""More ranks of an experiment than these are not proposed for a run on this machine."""


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

    record = _recording(experiment, overrides or (), loaded, epochs)
    prediction = simulate_loaded(loaded, activity, out, force, verbose, Reporter(quiet=as_json), record)
    show_result(prediction.result, as_json, prediction.directory, verbose)
    if prediction.result.status == "oom":
        raise typer.Exit(3)


def _recording(experiment: str, overrides: Sequence[str], loaded: "Experiment", epochs: int | None) -> list[str]:
    """Return the words of the command that trains the same experiment on this machine, whatever the hardware: on as
    many ranks, if the experiment states how many and they are few. Statistics are left out, which cannot be trained
    on."""
    # loaded after the checks that are quick
    from simgnn.planner.from_statistics import STATISTICS

    elsewhere = ("cluster.", "hardware.", *(("graph.",) if loaded.graph.source.startswith(STATISTICS) else ()))
    kept = [given for given in overrides if not given.strip().startswith(elsewhere)]
    known = loaded.cluster.ranks_per_host is not None and loaded.ranks <= MOST_RANKS
    words = ["simgnn", "run", experiment, "--ranks", str(loaded.ranks if known else RECORDING_RANKS)]
    words += [word for given in kept for word in ("--set", given)]
    return words + ([] if epochs is None else ["--epochs", str(epochs)])
