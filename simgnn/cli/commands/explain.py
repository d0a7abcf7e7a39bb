"""``simgnn explain``: where an epoch goes, and what would change it."""

from pathlib import Path
from typing import Annotated

import typer

from simgnn.cli import options as opt
from simgnn.cli.tables.console import Reporter, note, print_json


def command(
    target: Annotated[
        str,
        typer.Argument(
            metavar="EXPERIMENT|RUN",
            help="A TOML file, the name of a shipped system, or the directory of a finished run.",
            show_default=False,
        ),
    ],
    overrides: opt.SetOption = None,
    hardware: opt.HardwareOption = None,
    ranks: opt.RanksOption = None,
    epochs: opt.EpochsOption = None,
    activity: opt.ActivityOption = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Say where an epoch goes, for whom ranks wait, and how it changes if each number were twice or half as good.

    The critical path is the chain of work, messages and waits that makes the epoch as long as it is; its parts add up
    to the epoch. The table below it predicts the epoch again with each rate, latency, device and library of the
    hardware profile twice and half as good, and with twice and half of the cache rows, bits and windows that the
    experiment states. It answers "why are eight GPUs not faster than four" and "which knob is worth turning".

    Of a RUN the path is the measured one, and the table is that of the prediction on the run's own profile. At most 20
    epochs are predicted (--epochs: as many as you say). Example:
    [bold]simgnn explain vanilla --hardware a800-pcie-ib-2x8 --ranks 8[/bold]
    """
    # loaded when the command runs: its help starts fast
    from simgnn.api.reports.explain import explain_loaded, explain_run, run_directory, shortened
    from simgnn.errors import ConfigError
    from simgnn.report.explanation import print_explanation

    directory, reporter = run_directory(Path(target)), Reporter(quiet=as_json)
    if directory is None:
        loaded = opt.experiment_of(target, overrides, ranks=ranks, epochs=epochs, hardware=hardware)
        found = explain_loaded(loaded if epochs is not None else shortened(loaded), activity, reporter)
    else:
        given = {"--set": overrides, "--ranks": ranks, "--epochs": epochs, "--activity": activity}
        if named := [name for name, value in given.items() if value]:
            raise ConfigError(
                f"{', '.join(named)}: got it with the run {directory}, which has its own; expected the run alone, or "
                "the experiment in place of the run"
            )
        found = explain_run(directory, None if hardware is None else Path(hardware), reporter)
    if as_json:
        print_json(found.explanation.model_dump(mode="json"))
        return
    print_explanation(found.explanation)
    for one in found.explanation.effects:
        for text in one.refused:
            note(text)
    for text in found.explanation.notes:
        note(text)
