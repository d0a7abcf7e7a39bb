"""``simgnn run``: train an experiment for real."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simgnn.cli.options import (
    EpochsOption,
    ExperimentArgument,
    ForceOption,
    HardwareOption,
    JsonOption,
    OutOption,
    RanksOption,
    SetOption,
    experiment_of,
)
from simgnn.errors import ConfigError

if TYPE_CHECKING:
    from simgnn.experiment.schema import Experiment


def command(
    experiment: ExperimentArgument,
    overrides: SetOption = None,
    hardware: HardwareOption = None,
    ranks: RanksOption = None,
    epochs: EpochsOption = None,
    out: OutOption = None,
    force: ForceOption = False,
    prepare_only: Annotated[
        bool, typer.Option("--prepare", help="Only write the run directory, to be started with torchrun.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in --out DIR.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Train an experiment for real: one process a rank, on this machine.

    Without --out: the next free folder under runs/. On a cluster: --prepare, then on every host
    torchrun --nproc-per-node P -m executor run DIR. Example:
    [bold]simgnn run vanilla --ranks 2 --epochs 20 --out runs/measured[/bold]
    """
    loaded = experiment_of(experiment, overrides, ranks=ranks, epochs=epochs, hardware=hardware)
    # loaded when the command runs: its help starts fast
    from simgnn.cli.tables.console import Reporter, note, print_json
    from simgnn.cli.tables.results import show_result
    from simgnn.cli.train import carry_out, free_directory, prepare_run, torchrun_command

    reporter = Reporter(quiet=as_json)
    if resume:
        directory = _resumable(loaded, out)
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
    show_result(result, as_json, directory)
    if result.status != "ok":
        raise typer.Exit(1)


def _resumable(experiment: "Experiment", out: Path | None) -> Path:
    """The run directory to go on with: it must hold the same experiment."""
    # loaded when the command runs: its help starts fast
    from simgnn.planner.directory import EXPERIMENT_FILE, differences

    if out is None:
        raise ConfigError("--resume: got no --out, expected --out DIR with the run directory to go on with")
    if not (out / EXPERIMENT_FILE).is_file():
        raise ConfigError(
            f"--resume: got {out}, which is not a run directory; expected one that `simgnn run` has written"
        )
    different = differences(experiment, out)
    if different:
        raise ConfigError(
            [
                f"--resume: {path}: got {new}, expected {old} as in {out}; use --out for a new run"
                for path, old, new in different
            ]
        )
    return out.resolve()
