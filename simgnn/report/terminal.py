"""Tables and lines on a terminal, or in a pipe at a fixed width."""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 160
"""Characters a line where standard output is no terminal: wide enough that no number is folded."""


def terminal() -> "Console":
    """A console on standard output that prints text as it is."""
    # rich is loaded for output only, so that help of a command starts fast
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, markup=False, highlight=False)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> None:
    """A table on standard output; the first ``left`` columns are left-aligned, the others right-aligned."""
    # rich is loaded for output only, so that help of a command starts fast
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", title_style="bold", header_style="bold")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    terminal().print(table)
