"""Tables and lines for a terminal, or for a pipe at a fixed width."""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 160
"""Line width when standard output is not a terminal: wide enough that numbers are not wrapped."""


def terminal() -> "Console":
    """Return a console on standard output that prints text without markup."""
    # rich is loaded for output only, so that help of a command starts fast
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, markup=False, highlight=False)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> None:
    """Print a table; the first ``left`` columns are left-aligned, the others right-aligned."""
    # rich is loaded for output only, so that help of a command starts fast
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", title_style="bold", header_style="bold")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    terminal().print(table)
