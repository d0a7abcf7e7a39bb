"""``simgnn hardware diff``: two calibrations of a machine compared."""

from dataclasses import asdict
from typing import Annotated

import typer


def command(
    first: Annotated[str, typer.Argument(metavar="A", help="A profile's name, or a TOML file.")],
    second: Annotated[str, typer.Argument(metavar="B", help="The same, of the same machine.")],
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Compare two calibrations of a machine: times predicted by B over those by A, wherever both were measured.

    Work by primitive and level (ranks at once x threads), links, and collectives by group size and regime of sizes;
    median and worst over a fixed grid of sizes. 'beyond' marks what differs, at the median, by more than the spreads of
    both together there (root of the sum of squares), and by more than 1 %. What is not compared is told with the
    reason, such as what collectives take at rank counts that were not measured. Example: [bold]simgnn hardware diff
    before.toml after.toml[/bold]
    """
    # loaded when the command runs: its help starts fast
    from simgnn.cli.tables.console import note, print_json
    from simgnn.hardware.profile.library import find_profile
    from simgnn.hardware.profile.profile import load_profile
    from simgnn.hardware.show.difference import compare_profiles, furthest
    from simgnn.report.terminal import print_table

    profiles = [load_profile(name) for name in (first, second)]
    difference = compare_profiles(*profiles)
    names = [profile.meta.name for profile in profiles]
    if names[0] == names[1]:  # calibrations of one machine are called after it
        names = [f"{name} ({find_profile(given)})" for name, given in zip(names, (first, second), strict=True)]
    beyond = furthest(difference.changes)
    if as_json:
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
        told = ", ".join(f"{change.what} ({change.level}) x {change.median:.2f}" for change in beyond)
        note(f"{len(beyond)} of {len(difference.changes)} differ by more than their spread: {told}")
    else:
        note(f"none of {len(difference.changes)} differs by more than its spread")
