"""``simgnn run``: train an experiment for real."""

from pathlib import Path
from typing import Annotated

import typer

from simgnn.cli import options as opt
from simgnn.cli.tables.console import Reporter, note, print_json


def command(
    experiment: opt.ExperimentArgument,
    overrides: opt.SetOption = None,
    hardware: opt.HardwareOption = None,
    ranks: opt.RanksOption = None,
    epochs: opt.EpochsOption = None,
    out: opt.OutOption = None,
    force: opt.ForceOption = False,
    prepare_only: Annotated[
        bool, typer.Option("--prepare", help="Only write the run directory, to be started with torchrun.")
    ] = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on from the last checkpoint in --out DIR, if wanted to more --epochs."),
    ] = False,
    verbose: opt.VerboseOption = False,
    as_json: opt.JsonOption = False,
) -> None:
    """Train an experiment for real: one process a rank, on this machine.

    Without --out: the next free folder under runs/. On a cluster: --prepare, then on every host
    torchrun --nproc-per-node P -m executor run DIR. Example:
    [bold]simgnn run vanilla --ranks 2 --epochs 20 --out runs/measured[/bold]
    """
    loaded = opt.experiment_of(experiment, overrides, ranks=ranks, epochs=epochs, hardware=hardware)
    # loaded when the command runs: its help starts fast
    from simgnn.cli.tables.results import show_result
    from simgnn.cli.train import carry_out, check_resumable, free_directory, prepare_run, torchrun_command

    reporter = Reporter(quiet=as_json)
    if resume:
        directory = check_resumable(loaded, out)
    else:
        directory = prepare_run(loaded, out or free_directory(Path("runs"), loaded.name), reporter, force)
    if prepare_only:
        start = torchrun_command(directory, resume)
        if as_json:
            print_json({"directory": str(directory), "start": start})
        else:
            note(f"{'going on in' if resume else 'written to'} {directory}; start it: {start}")
        return
    result = carry_out(directory, loaded.train.epochs, reporter, ["--resume"] if resume else [])
    show_result(result, as_json, directory, verbose)
    if result.status != "ok":
        raise typer.Exit(1)
