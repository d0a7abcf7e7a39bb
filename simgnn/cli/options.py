"""Arguments and options that several commands share, and the experiment that they describe."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simgnn.outputs import named_path

if TYPE_CHECKING:
    from simgnn.experiment.schema import Experiment


def command_group(help: str, **fields: Any) -> typer.Typer:
    """Create a group of commands that prints its help if no command is given."""
    return typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        rich_markup_mode="rich",
        help=help,
        **fields,
    )


def path_option(name: str, metavar: str, help: str, **fields: Any) -> Any:
    """Declare an option for ``Annotated[Path | None, ...]`` that names a file or folder; an empty path is an error."""
    fields = {"show_default": False, "parser": lambda given: named_path(str(given), name), **fields}
    return typer.Option(name, metavar=metavar, help=help, **fields)


def path_argument(metavar: str, help: str) -> Any:
    """Declare an argument that names a file or a folder; an empty path is an error."""
    return typer.Argument(metavar=metavar, help=help, parser=_path_of(metavar.strip("[]")), show_default=False)


def _path_of(name: str) -> Callable[[Any], Path]:
    return lambda given: named_path(str(given), name)


ExperimentArgument = Annotated[
    str,
    typer.Argument(
        metavar="EXPERIMENT",
        help="A TOML file, or the name of a shipped system. A policy of your own (kind = package.module:Class) may lie "
        "beside the file.",
        show_default=False,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a field, for example train.epochs=20. Repeatable."),
]
HardwareOption = Annotated[
    str | None,
    typer.Option("--hardware", metavar="PROFILE", help="Hardware profile: a name or a TOML file.", show_default=False),
]
RanksOption = Annotated[
    int | None,
    typer.Option(
        "--ranks",
        metavar="P",
        help="Total number of processes (ranks), over all hosts. They share the hosts of the "
        "experiment, which is one unless it, or --set cluster.hosts=H, says more.",
        show_default=False,
    ),
]
EpochsOption = Annotated[
    int | None, typer.Option("--epochs", metavar="N", help="Number of epochs.", show_default=False)
]
OutOption = Annotated[Path | None, path_option("--out", "DIR", "Run directory to write.")]
RunArgument = Annotated[Path, path_argument("RUN", "The directory of a finished run.")]
WeightsOption = Annotated[
    str,
    typer.Option(
        "--weights",
        metavar="last|best",
        help="Weights after the last epoch, or after the epoch with the best validation accuracy.",
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace an earlier run directory.")]
VerboseOption = Annotated[
    bool,
    typer.Option(
        "--verbose",
        help="Print the parts of memory; check what limits a prediction even where that takes long.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print machine-readable output.")]
ActivityOption = Annotated[
    Path | None, path_option("--activity", "RUNDIR", "A real run: its decisions are replayed, its accuracy is timed.")
]


def experiment_of(
    argument: str,
    overrides: list[str] | None,
    *,
    ranks: int | None = None,
    epochs: int | None = None,
    hardware: str | None = None,
    trains: bool = True,
) -> "Experiment":
    # loaded when the command runs: its help starts fast
    from simgnn.experiment.load import load_experiment

    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a user's own layer lies where the command is started; last, so it hides nothing
    return load_experiment(argument, overrides or (), ranks=ranks, epochs=epochs, hardware=hardware, trains=trains)
