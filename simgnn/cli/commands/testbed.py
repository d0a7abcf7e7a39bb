"""``simgnn testbed``: train inside a cluster of network namespaces on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from simgnn.cli import options as opt
from simgnn.cli.tables.console import Reporter
from simgnn.record.logs import check_log

app = opt.command_group(
    "Train inside a testbed: a cluster of network namespaces on this Linux machine, with links of a stated rate and "
    "slow ranks.\n\nWhat a testbed file holds, and commands to keep one up (up, status, exec, profile, down): "
    "[bold]python -m executor testbed --help[/bold]. Example:\n"
    "[bold]simgnn testbed run bed.toml DIR[/bold]"
)


@app.callback()
def _commands() -> None:
    """Keep ``run`` a command of its own, although it is the only one."""


@app.command()
def run(
    testbed: Annotated[Path, opt.path_argument("TESTBED.toml", "The file that declares the testbed.")],
    directory: Annotated[Path, opt.path_argument("DIR", "What simgnn run --prepare --out DIR wrote.")],
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the testbed, in place of the one in the file.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in DIR.")] = False,
    log: Annotated[
        str | None, typer.Option("--log", help="tensorboard: also write event files into DIR/tensorboard.")
    ] = None,
    verbose: opt.VerboseOption = False,
    as_json: opt.JsonOption = False,
) -> None:
    """Train a prepared run inside a testbed (root and iproute2), which is brought up if it is not up, and taken down
    again. Example:
    [bold]simgnn testbed run bed.toml DIR[/bold]
    """
    check_log(log)
    # loaded when the command runs: its help starts fast
    from simgnn.api.train import run_in_testbed
    from simgnn.cli.tables.one_result import show_result

    result = run_in_testbed(testbed, directory, name, resume, log, Reporter(quiet=as_json))
    show_result(result, as_json, directory, verbose)
    if result.status != "ok":
        raise typer.Exit(1)
