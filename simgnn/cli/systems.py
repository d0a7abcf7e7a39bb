"""``simgnn systems``: the shipped systems and what they are made of."""

from typing import Annotated

import typer

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="List and show the shipped systems. Example: [bold]simgnn systems show vanilla[/bold]",
)


@app.command("list")
def list_systems(
    as_json: Annotated[bool, typer.Option("--json", help="Print machine-readable output.")] = False,
) -> None:
    """List the shipped systems with the policy in each slot. Example: [bold]simgnn systems list[/bold]"""
    # loaded when the command runs: its help starts fast
    from simgnn.cli.console import print_json
    from simgnn.experiment.load import load_experiment, system_names
    from simgnn.experiment.slots import SLOTS
    from simgnn.report.terminal import print_table

    rows = []
    for name in system_names():
        table = load_experiment(name).to_table()
        rows.append({"system": name, **{slot: table[slot]["kind"] for slot in SLOTS}})
    if as_json:
        print_json(rows)
    else:
        print_table("", ["system", *SLOTS], [[row[key] for key in ("system", *SLOTS)] for row in rows])


@app.command("show")
def show_system(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A shipped system or an experiment file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print machine-readable output.")] = False,
) -> None:
    """Print a system as a complete experiment, every default spelled out; save it, change it, run it.

    Example: [bold]simgnn systems show vanilla > mine.toml[/bold]
    """
    # loaded when the command runs: its help starts fast
    import tomli_w

    from simgnn.cli.console import print_json
    from simgnn.experiment.load import load_experiment

    table = load_experiment(name).to_table()
    if as_json:
        print_json(table)
    else:
        typer.echo(tomli_w.dumps(table), nl=False)
