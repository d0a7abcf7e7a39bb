"""The ``simgnn`` command. Sub-commands are loaded when they are called, so that help starts fast."""

import importlib
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from types import FrameType, MappingProxyType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from simgnn import __version__
from simgnn.cli.options import command_group
from simgnn.errors import SimgnnError
from simgnn.outputs import PATH_FAULTS
from simgnn.process_end import READER_GONE, ended_quietly
from simgnn.spelling import nearest

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "demo": "Calibrate, simulate and train a small experiment, and compare: one minute.",
        "simulate": "Predict how long an experiment takes on a hardware profile.",
        "run": "Train an experiment for real, with one process a rank.",
        "testbed": "Train inside a cluster of network namespaces on this machine.",
        "calibrate": "Measure this machine and write its hardware profile.",
        "export": "Write the trained model of a run as a plain PyTorch module.",
        "infer": "Write scores and classes of all vertices, by the trained model of a run.",
        "explain": "Say where an epoch goes, and what would change it.",
        "report": "Write one page of figures of a prediction, a run, both, or a validation.",
        "compare": "Show, op by op, where a prediction and a run differ.",
        "validate": "Predict and run a suite of experiments, and score the predictions.",
        "partition": "Partition an experiment's graph and report how good the partition is.",
        "sample": "Sample an experiment's mini-batches ahead of time, and report their sizes.",
        "hardware": "List, show and check hardware profiles.",
        "systems": "List and show the shipped systems.",
    }
)
"""Help lines of the sub-commands: modules of ``simgnn.cli.commands`` with a function ``command`` or a Typer ``app``."""


class LazyGroup(TyperGroup):
    """Command group that knows the names and help lines of all sub-commands, and imports only the called one."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0] if args else ""
        if name in COMMANDS:
            return name, _load(name), args[1:]
        ctx.fail(f"No such command '{name}'{nearest(name, tuple(COMMANDS))}; commands: {', '.join(COMMANDS)}.")
        return None


def _load(name: str) -> Any:
    module = importlib.import_module(f"simgnn.cli.commands.{name}")
    command: Any
    if hasattr(module, "app"):
        command = typer.main.get_group(module.app)
    else:
        alone = command_group("")
        alone.command(name)(module.command)
        command = typer.main.get_command(alone)
    command.name = name
    for one in (command, *getattr(command, "commands", {}).values()):
        # paragraphs flow to the width of the terminal; a line that begins in bold stays a line
        one.help = re.sub(r"(?<!\n)\n(?!\n|\[bold\])", " ", one.help or "")
    return command


app = command_group(
    "Predict and run distributed training of graph neural networks from one experiment file.\n\n"
    "Start with [bold]simgnn demo[/bold]. Every command explains itself: [bold]simgnn simulate --help[/bold].",
    cls=LazyGroup,
    name="simgnn",
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
    """Handle the options before the sub-command."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with a status: 0 success, 2 bad input, 3 out of memory predicted, 4 a validation
    on a machine too noisy to judge, 141 nobody reads the output any more, 1 any other failure."""
    signal.signal(signal.SIGTERM, _terminated)
    sys.exit(ended_quietly(lambda: invoke(sys.argv[1:] if arguments is None else arguments)))


def _terminated(number: int, frame: FrameType | None) -> None:
    """Handle SIGTERM like Ctrl-C, so that ranks end too and no half-written file stays."""
    raise KeyboardInterrupt


def invoke(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status. Errors go to standard error, never as a traceback."""
    try:
        typer.main.get_command(app).main(list(arguments), prog_name="simgnn", standalone_mode=True)
    except SystemExit as stop:
        code = 0 if stop.code is None else stop.code
        if isinstance(stop.__context__, BrokenPipeError):  # which typer has caught
            return READER_GONE
        if code == 130:  # so typer ends a command at Ctrl-C, without a word
            _tell("interrupted")
        return code if isinstance(code, int) and 0 <= code <= 4 else 1
    except SimgnnError as error:
        _tell(*error.problems)
        return error.exit_status
    except KeyboardInterrupt:
        _tell("interrupted")
        return 1
    except Exception as error:
        if os.environ.get("SIMGNN_DEBUG"):
            raise
        if isinstance(error, OSError) and (error.filename is None or error.errno not in PATH_FAULTS):
            _tell(str(error))
            return 1
        if isinstance(error, OSError):
            path = os.fsdecode(error.filename) if isinstance(error.filename, bytes) else error.filename
            _tell(f"{path}: cannot be used ({error.strerror}); expected a path to read and write: name another")
            return 2
        _tell(
            f"internal error of simgnn: {type(error).__name__}: {error}\n"
            "Please report it; SIMGNN_DEBUG=1 shows where it happened."
        )
        return 1
    return 0


def _tell(*problems: str) -> None:
    head = f"simgnn: {len(problems)} problems:\n  " if len(problems) > 1 else "simgnn: "
    print(head + "\n  ".join(problems), file=sys.stderr)


if __name__ == "__main__":
    main()
