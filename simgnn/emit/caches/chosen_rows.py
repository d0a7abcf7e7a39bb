"""What tells receivers which rows of a stage travel: bits over all that may, or the places of those that do."""

from collections.abc import Callable

import numpy as np

from simgnn.program.builder import ProgramBuilder
from simgnn.program.sizes import IntArray, Route, reverse_of

COUNT_BYTES = 8
"""How many rows travel to a peer: int64."""
ID_BYTES = 4
"""A row's place in the list of its pair: int32."""


def add_mask_route(builder: ProgramBuilder, route: str) -> str:
    """The route of the masks over a route's rows: a bit a row, each pair's padded to whole bytes; with its reverse.

    Adds the columns ``NAME/leaving`` and ``NAME/arriving`` of the direction that is asked for, bytes of each rank.
    """
    return _beside(builder, route, "mask", lambda rows: (rows + 7) // 8)


def add_count_route(builder: ProgramBuilder, route: str) -> str:
    """The route of one number for each pair that has rows; with its reverse and its columns, numbers of each rank."""
    return _beside(builder, route, "count", lambda rows: (rows > 0).astype(np.int64))


def _beside(builder: ProgramBuilder, route: str, what: str, rows_of: Callable[[IntArray], IntArray]) -> str:
    forward = builder.forward_routes.get(route, route)
    beside = f"{forward}/{what}"
    name = beside if forward == route else reverse_of(beside)
    if beside not in builder.routes:
        rows = builder.routes[forward]
        builder.route(beside, Route(rows.source, rows.target, rows_of(rows.rows)))
    found, ranks = builder.routes[name], len(builder.hosts)
    for column, ends in (("leaving", found.source), ("arriving", found.target)):
        total: IntArray = np.bincount(ends, found.rows, minlength=ranks).astype(np.int64)
        builder.column(f"{name}/{column}", total)
    return name
