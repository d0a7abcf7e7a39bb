"""``simgnn systems``: the shipped systems and what they are made of."""

from typing import Annotated

import typer

from simgnn.cli.options import JsonOption, command_group
from simgnn.cli.tables.console import print_json
from simgnn.report.terminal import print_table

app = command_group(
    "List and show the shipped systems. Example: [bold]simgnn systems show vanilla[/bold]",
)


@app.command("list")
def list_systems(as_json: JsonOption = False) -> None:
    """List the shipped systems with the policy in each slot. Example: [bold]simgnn systems list[/bold]"""
    # loaded when the command runs: its help starts fast
    from simgnn.api import listings

    rows = listings.list_systems().rows
    if as_json:
        print_json(rows)
    else:
        print_table("", list(rows[0]), [list(row.values()) for row in rows])


@app.command("show")
def show_system(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A shipped system or an experiment file.")],
    as_json: JsonOption = False,
) -> None:
    """Print a system as a complete experiment, every default spelled out, each option explained.

    Save it, change it, run it. Example: [bold]simgnn systems show vanilla > mine.toml[/bold]
    """
    # loaded when the command runs: its help starts fast
    import tomli_w

    from simgnn.experiment.load import load_experiment
    from simgnn.experiment.problems import expected

    experiment = load_experiment(name)
    if as_json:
        print_json(experiment.to_table())
        return
    fields = {}
    for line in tomli_w.dumps(experiment.to_table()).splitlines():
        if line.startswith("["):
            fields = type(getattr(experiment, line.strip("[]"))).model_fields
        field = fields.get(line.partition(" = ")[0])
        if field is not None and field.description:
            typer.echo(f"# {field.description} ({expected(field)})")
        typer.echo(line)
