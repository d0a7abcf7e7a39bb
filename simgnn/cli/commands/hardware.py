"""``simgnn hardware``: the hardware profiles that predictions are made for."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simgnn.cli.commands import hardware_diff, hardware_time
from simgnn.errors import HardwareError

if TYPE_CHECKING:
    from rich.tree import Tree

    from simgnn.hardware.profile.profile import Profile
    from simgnn.hardware.show.describe import Node

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="List, show, check and compare hardware profiles, and time single ops on them.\n\n"
    "A profile is a TOML file that says what a machine or a cluster is made of: devices, links, topology, and how long "
    "each primitive and each collective takes there. Every number carries its unit and its source: measured (by "
    "[bold]simgnn calibrate[/bold]), published, datasheet, or assumed.\n\n"
    "Profiles are found by path, then in the folders of SIMGNN_HWPROFILES, then among the shipped ones. "
    "Example: [bold]simgnn hardware show a800-pcie-ib-2x8[/bold]",
)
AsJson = Annotated[bool, typer.Option("--json", help="Print machine-readable output, numbers in SI units.")]
WIDTH = 160
"""Width of what goes into a pipe or a file."""

app.command("time")(hardware_time.command)
app.command("diff")(hardware_diff.command)


@app.command("list")
def list_profiles(json: AsJson = False) -> None:
    """List the profiles that have a name, and this machine's last calibration.

    Example: [bold]simgnn hardware list[/bold]
    """
    # loaded when the command runs: its help starts fast
    from simgnn.cli.tables.console import print_json
    from simgnn.hardware.profile.library import calibration_path, known_profiles
    from simgnn.hardware.profile.profile import load_profile
    from simgnn.hardware.show.describe import counts
    from simgnn.report.terminal import print_table

    found = dict(sorted(known_profiles().items()))
    if calibration_path().is_file():
        found["(last calibration)"] = calibration_path()
    rows: list[dict[str, Any]] = []
    for name, path in found.items():
        try:
            profile = load_profile(path)
        except HardwareError:
            fault = f"broken: simgnn hardware check {path}"
            rows.append({"profile": name, "hosts": None, "devices": None, "sources": {}, "about": fault})
            continue
        about = profile.meta.description
        numbers = {source: count for source, count in profile.source_counts().items() if count}
        rows.append({"profile": name, **counts(profile), "sources": numbers, "about": about, "path": str(path)})
    if json:
        print_json(rows)
        return
    table = []
    for row in rows:
        numbers_told = ", ".join(f"{count} {source}" for source, count in row["sources"].items())
        shown = ["" if row[key] is None else str(row[key]) for key in ("hosts", "devices")]
        table.append([row["profile"], row["about"], *shown, numbers_told])
    print_table("", ["profile", "about", "hosts", "devices", "numbers"], table, left=2)


@app.command("show")
def show_profile(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A profile's name, or a TOML file.")],
    json: AsJson = False,
) -> None:
    """Show a profile as a tree, and the bandwidth between its devices.

    The matrix gives what one large message reaches from the device of its row to that of its column when nothing else
    is sent; the diagonal is the link among ranks on one device. Example: [bold]simgnn hardware show cpu-100gbe-8[/bold]
    """
    # loaded when the command runs: its help starts fast
    from simgnn.cli.tables.console import print_json
    from simgnn.hardware.profile.profile import load_profile
    from simgnn.hardware.show.describe import as_json, bandwidth_matrix, counts, tree

    profile = load_profile(name)
    names, matrix = bandwidth_matrix(profile)
    if json:
        between = {"devices": names, "bytes_per_s": matrix.tolist()}
        print_json({"counts": counts(profile), "bandwidth": between, "profile": as_json(profile)})
        return
    _console().print(_rich_tree(tree(profile)))
    _print_matrix(profile, names, matrix.tolist())


@app.command("check")
def check_profile(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A TOML file, or a profile's name.")],
    json: AsJson = False,
) -> None:
    """Check a profile and tell every fault of it at once; exit status 2 when there are any.

    Looked for: keys, units and values; names that nothing bears; devices that nothing reaches; bandwidths of zero;
    curves and collectives that training is priced from, and that there is one of each: regimes of sizes of a collective
    meet but do not overlap, and of its algorithms a choice tells which. Example: [bold]simgnn hardware check
    mine.toml[/bold]
    """
    # loaded when the command runs: its help starts fast
    from simgnn.cli.tables.console import print_json
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


def _console() -> Any:
    # loaded when the command runs: its help starts fast
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDTH, markup=False, highlight=False)


def _rich_tree(node: "Node") -> "Tree":
    # loaded when the command runs: its help starts fast
    from rich.text import Text
    from rich.tree import Tree

    branch = Tree(Text(node.text))
    for child in node.children:
        branch.add(_rich_tree(child))
    return branch


def _print_matrix(profile: "Profile", names: list[str], matrix: list[list[float]]) -> None:
    # loaded when the command runs: its help starts fast
    from simgnn.hardware.show.describe import counts
    from simgnn.report.terminal import print_table

    total = counts(profile)["devices"]
    part = f", {len(names)} of {total} devices" if total > len(names) else ""
    numbered = [f"{index} {name}" for index, name in enumerate(names)]
    rows = [
        [name, *("-" if rate != rate else f"{rate / 1e9:.2f}" for rate in row)]
        for name, row in zip(numbered, matrix, strict=True)
    ]
    print_table(f"Bandwidth, GB/s{part}", ["from \\ to", *map(str, range(len(names)))], rows)
