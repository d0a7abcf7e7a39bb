"""``simgnn run``: train an experiment for real."""

from typing import Annotated

import typer

from simgnn.cli import options as opt
from simgnn.cli.tables.console import Reporter, note, print_json
from simgnn.record.logs import check_log


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
    log: Annotated[
        str | None,
        typer.Option("--log", help="tensorboard: also write losses and accuracies as event files into the run."),
    ] = None,
    verbose: opt.VerboseOption = False,
    as_json: opt.JsonOption = False,
) -> None:
    """Train an experiment for real: one process a rank, on this machine.

    Without --out: the next free folder under runs/. On a cluster: --prepare, then on every host
    torchrun --nproc-per-node P -m executor run DIR. Example:
    [bold]simgnn run vanilla --ranks 2 --epochs 20 --out runs/measured[/bold]
    """
    check_log(log)
    loaded = opt.experiment_of(experiment, overrides, ranks=ranks, epochs=epochs, hardware=hardware)
    # loaded when the command runs: its help starts fast
    from simgnn.api.train import directory_for, executor_options, run, torchrun_command
    from simgnn.cli.tables.one_result import show_result

    reporter = Reporter(quiet=as_json)
    if prepare_only:
        directory = directory_for(loaded, out, reporter, force, resume)
        start = torchrun_command(directory, executor_options(resume, log))
        if as_json:
            print_json({"directory": str(directory), "start": start})
        else:
            note(f"{'going on in' if resume else 'written to'} {directory}; start it: {start}")
        return
    trained = run(loaded, out=out, force=force, resume=resume, log=log, progress=reporter)
    show_result(trained.result, as_json, trained.directory, verbose)
    if trained.result.status != "ok":
        raise typer.Exit(1)
