"""The ``simgnn`` command. Sub-commands are loaded when they are called, so that help starts fast."""

import importlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from types import FrameType, MappingProxyType
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from simgnn import __version__
from simgnn.closed_output import READER_GONE, ended_quietly
from simgnn.errors import SimgnnError
from simgnn.outputs import PATH_FAULTS
from simgnn.spelling import nearest

STATUSES = (0, 1, 2, 3)
"""Ok, anything else, bad input, out of memory predicted."""
INTERRUPTED = 130
"""Exit status by which typer ends a command at Ctrl-C."""


class Entry(NamedTuple):
    """Where a sub-command lives (its module exports ``command``, a function, or ``app``, a Typer) and its help line."""

    module: str
    help: str


COMMANDS: Mapping[str, Entry] = MappingProxyType(
    {
        "demo": Entry(
            "simgnn.cli.commands.demo", "Calibrate, simulate and train a small experiment, and compare: one minute."
        ),
        "simulate": Entry(
            "simgnn.cli.commands.simulate", "Predict how long an experiment takes on a hardware profile."
        ),
        "run": Entry("simgnn.cli.commands.run", "Train an experiment for real, with one process a rank."),
        "calibrate": Entry("simgnn.cli.commands.calibrate", "Measure this machine and write its hardware profile."),
        "compare": Entry("simgnn.cli.commands.compare", "Show, op by op, where a prediction and a run differ."),
        "validate": Entry(
            "simgnn.cli.commands.validate", "Predict and run a suite of experiments, and score the predictions."
        ),
        "partition": Entry(
            "simgnn.cli.commands.partition", "Partition an experiment's graph and tell how good the partition is."
        ),
        "sample": Entry(
            "simgnn.cli.commands.sample", "Sample an experiment's mini-batches ahead of time, and tell their sizes."
        ),
        "hardware": Entry("simgnn.cli.commands.hardware", "List, show and check hardware profiles."),
        "systems": Entry("simgnn.cli.commands.systems", "List and show the shipped systems."),
    }
)


class LazyGroup(TyperGroup):
    """Knows the names and help lines of all sub-commands, and imports only the one that is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = COMMANDS.get(cmd_name)
        return None if entry is None else TyperCommand(cmd_name, help=entry.help)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0] if args else ""
        if name in COMMANDS:
            return name, _load(name), args[1:]
        ctx.fail(f"No such command '{name}'{nearest(name, tuple(COMMANDS))}; commands: {', '.join(COMMANDS)}.")
        return None


def _load(name: str) -> Any:
    module = importlib.import_module(COMMANDS[name].module)
    command: Any
    if hasattr(module, "app"):
        command = typer.main.get_group(module.app)
    else:
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
        alone.command(name)(module.command)
        command = typer.main.get_command(alone)
    command.name = name
    return command


app = typer.Typer(
    cls=LazyGroup,
    name="simgnn",
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Predict and run distributed training of graph neural networks from one experiment file.\n\n"
    "Start with [bold]simgnn demo[/bold]. Every command explains itself: [bold]simgnn simulate --help[/bold].",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"simgnn {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options before the sub-command."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 ok, 2 bad input, 3 out of memory predicted, 141 where nobody reads on what it
    prints, 1 anything else."""
    signal.signal(signal.SIGTERM, _terminated)
    sys.exit(ended_quietly(lambda: invoke(sys.argv[1:] if arguments is None else arguments)))


def _terminated(number: int, frame: FrameType | None) -> None:
    """A polite end unwinds like Ctrl-C, so that ranks end too and nothing half-written stays."""
    raise KeyboardInterrupt


def invoke(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status; faults are told on standard error, never as a traceback."""
    try:
        typer.main.get_command(app).main(list(arguments), prog_name="simgnn", standalone_mode=True)
    except SystemExit as stop:
        code = 0 if stop.code is None else stop.code
        if isinstance(stop.__context__, BrokenPipeError):  # which typer has caught
            return READER_GONE
        if code == INTERRUPTED:  # so typer ends a command, without a word
            _tell("interrupted")
        return code if code in STATUSES and isinstance(code, int) else 1
    except SimgnnError as error:
        _tell(*getattr(error, "problems", (str(error),)))
        return error.exit_status
    except KeyboardInterrupt:
        _tell("interrupted")
        return 1
    except OSError as error:
        if os.environ.get("SIMGNN_DEBUG"):
            raise
        return _path_fault(error)
    except Exception as error:
        if os.environ.get("SIMGNN_DEBUG"):
            raise
        _tell(
            f"a fault of simgnn itself: {type(error).__name__}: {error}\n"
            "Please report it; SIMGNN_DEBUG=1 shows where it happened."
        )
        return 1
    return 0


def _path_fault(error: OSError) -> int:
    """Tell what the system says of a path; 2 where another path would mend it."""
    if error.filename is None or error.errno not in PATH_FAULTS:
        _tell(str(error))
        return 1
    path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(error.filename)
    _tell(f"{path}: cannot be used ({error.strerror}); expected a path that can be read and written: name another")
    return 2


def _tell(*problems: str) -> None:
    head = f"simgnn: {len(problems)} problems:\n  " if len(problems) > 1 else "simgnn: "
    print(head + "\n  ".join(problems), file=sys.stderr)


if __name__ == "__main__":
    main()
