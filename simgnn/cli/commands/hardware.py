"""``simgnn hardware``: the hardware profiles that predictions are made for."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simgnn.cli.commands import hardware_time
from simgnn.cli.options import command_group
from simgnn.cli.tables.console import note, print_json
from simgnn.report.terminal import print_table, terminal

if TYPE_CHECKING:
    from rich.tree import Tree

    from simgnn.hardware.show.describe import Node

app = command_group(
    "List, show, check and compare hardware profiles, and time single ops on them.\n\n"
    "A profile is a TOML file that says what a machine or a cluster is made of: devices, links, topology, and how long "
    "each primitive and each collective takes there. Every number carries its unit and its source: measured (by "
    "[bold]simgnn calibrate[/bold]), published, datasheet, or assumed.\n\n"
    "Profiles are found by path, then in the folders of SIMGNN_HWPROFILES, then among the shipped ones. "
    "Example: [bold]simgnn hardware show a800-pcie-ib-2x8[/bold]",
)
AsJson = Annotated[bool, typer.Option("--json", help="Print machine-readable output, numbers in SI units.")]
app.command("time")(hardware_time.command)


@app.command("list")
def list_profiles(json: AsJson = False) -> None:
    """List the profiles that have a name, and this machine's last calibration.

    Example: [bold]simgnn hardware list[/bold]
    """
    # loaded when the command runs: its help starts fast
    from simgnn.api.listings import list_hardware

    rows = list_hardware().rows
    if json:
        print_json(rows)
        return
    table = []
    for row in rows:
        numbers = ", ".join(f"{count} {source}" for source, count in row["sources"].items())
        shown = ["" if row[key] is None else str(row[key]) for key in ("hosts", "devices")]
        table.append([row["profile"], row["about"], *shown, numbers])
    print_table("", ["profile", "about", "hosts", "devices", "numbers"], table, left=2)


@app.command("show")
def show_profile(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A profile's name, or a TOML file.")],
    json: AsJson = False,
) -> None:
    """Show a profile as a tree, and the bandwidth between its devices.

    The matrix gives the rate of one large message from the row's device to the column's when nothing else is sent; the
    diagonal is between ranks on one device. Example: [bold]simgnn hardware show cpu-100gbe-8[/bold]
    """
    # loaded when the command runs: its help starts fast
    from simgnn.hardware.profile.profile import load_profile
    from simgnn.hardware.show.describe import as_json, bandwidth_matrix, counts, tree

    profile = load_profile(name)
    names, matrix = bandwidth_matrix(profile)
    if json:
        between = {"devices": names, "bytes_per_s": matrix.tolist()}
        print_json({"counts": counts(profile), "bandwidth": between, "profile": as_json(profile)})
        return
    terminal().print(_rich_tree(tree(profile)))
    total = counts(profile)["devices"]
    part = f", {len(names)} of {total} devices" if total > len(names) else ""
    rows = [
        [f"{index} {name}", *("-" if rate != rate else f"{rate / 1e9:.2f}" for rate in row)]
        for index, (name, row) in enumerate(zip(names, matrix.tolist(), strict=True))
    ]
    print_table(f"Bandwidth, GB/s{part}", ["from \\ to", *map(str, range(len(names)))], rows)


@app.command("check")
def check_profile(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A TOML file, or a profile's name.")],
    json: AsJson = False,
) -> None:
    """Check a profile and report all its faults at once; exit status 2 when there are any.

    Checks keys, units and values; names of things that do not exist; devices that nothing reaches; bandwidths of zero;
    and that each curve and collective that predictions use exists exactly once: size ranges of a collective have no
    gap or overlap, and if it has several algorithms, an entry says which is used. Example: [bold]simgnn hardware check
    mine.toml[/bold]
    """
    # loaded when the command runs: its help starts fast
    from simgnn.hardware.profile.check import price_problems, table_price_problems
    from simgnn.hardware.profile.library import find_profile
    from simgnn.hardware.profile.profile import find_problems, load_table

    path = find_profile(file)
    table = load_table(path)
    profile, problems = find_problems(table)
    problems = problems + table_price_problems(table) if profile is None else price_problems(profile)
    if json:
        print_json({"file": str(path), "ok": not problems, "problems": problems})
    elif problems:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        typer.echo("\n".join([f"{path}: {count}", *(f"  {problem}" for problem in problems)]), err=True)
    else:
        typer.echo(f"{Path(path).name}: no faults found")
    if problems:
        raise typer.Exit(2)


@app.command("diff")
def diff_profiles(
    first: Annotated[str, typer.Argument(metavar="A", help="A profile's name, or a TOML file.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The same, of the same machine.")],
    json: AsJson = False,
) -> None:
    """Compare two calibrations of a machine: times predicted by B over those by A, wherever both were measured.

    Work by primitive and level (ranks at once x threads), links, and collectives by group size and regime of sizes;
    median and worst over a fixed grid of sizes. 'beyond' marks medians that differ by more than the spreads of both
    together (root of the sum of squares) and by more than 1 %. What is not compared is listed with the reason, such as
    collectives at rank counts that were not measured. Example: [bold]simgnn hardware diff
    before.toml after.toml[/bold]
    """
    # loaded when the command runs: its help starts fast
    from simgnn.hardware.profile.library import find_profile
    from simgnn.hardware.profile.profile import load_profile
    from simgnn.hardware.show.difference import compare_profiles, furthest

    profiles = [load_profile(name) for name in (first, second)]
    difference = compare_profiles(*profiles)
    names = [profile.meta.name for profile in profiles]
    if names[0] == names[1]:  # calibrations of one machine are called after it
        names = [f"{name} ({find_profile(given)})" for name, given in zip(names, (first, second), strict=True)]
    beyond = furthest(difference.changes)
    if json:
        print_json(
            {
                "first": names[0],
                "second": names[1],
                "changes": [asdict(change) for change in difference.changes],
                "beyond_spread": [f"{change.what}, {change.level}" for change in beyond],
                "not_compared": list(difference.apart),
            }
        )
        return
    rows = [
        [
            change.what,
            change.level,
            f"{change.median:.3f}",
            f"{change.worst:.3f}",
            str(change.sizes),
            "-" if change.spread is None else f"± {change.spread:.1%}",
            "beyond" if change.beyond else "",
        ]
        for change in difference.changes
    ]
    columns = ["", "level", "median B/A", "worst B/A", "sizes", "spread", ""]
    print_table(f"Times of {names[1]} over {names[0]}", columns, rows, left=2)
    for text in difference.apart:
        note(f"not compared: {text}")
    if beyond:
        names = [f"{change.what} ({change.level}) x {change.median:.2f}" for change in beyond]
        note(f"{len(beyond)} of {len(difference.changes)} differ by more than their spread: {', '.join(names)}")
    else:
        note(f"none of {len(difference.changes)} differs by more than its spread")


def _rich_tree(node: "Node") -> "Tree":
    # loaded when the command runs: its help starts fast
    from rich.text import Text
    from rich.tree import Tree

    branch = Tree(Text(node.text))
    for child in node.children:
        branch.add(_rich_tree(child))
    return branch
