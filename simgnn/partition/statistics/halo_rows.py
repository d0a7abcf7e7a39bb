"""Tables of an edge-cut with a number for each halo row, and the statistics of a partition without some of these rows.

Rows of all ranks, rank after rank; those of a rank by owner, and of one owner in the order in which it sends them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.partition.partition import digest_of
from simgnn.partition.statistics.partition_stats import (
    DEGREES,
    DROPPED_BETWEEN,
    DROPPED_EDGES,
    DROPPED_ROWS,
    PartitionStats,
)
from simgnn.program.sizes import IntArray, Route

HALO_VERTICES = "halo_vertices"
"""Table int64 [halo rows of all ranks]: the vertex of each halo row. Which rows several ranks share, and so every
choice of rows for every capacity, follows from it. Numbers that are equal and in order as the vertices are serve as
well."""
ROW_EDGES = "halo_row_edges"
"""Table int64 [halo rows of all ranks]: local edges from each halo row."""
ROW_NONZEROS = "halo_row_nonzeros"
"""Table int64 [halo rows of all ranks]: stored values of the sparse features of each halo row."""
ROW_ORDER = "halo_row_order"
"""Table int64 [halo rows of all ranks]: the place of each halo row among those of its rank, in the order in which a
partitioner that suits devices drops them: 0 goes first."""
MOST_ROWS_IN_FILE = 2**27
"""Halo rows of all ranks above which a statistics file has none of these tables: each has 4 bytes a row before they are
compressed."""
OF_PAIRS = ("block_edges", "halo_feature_nonzeros")
"""Tables [P, P]; others than these, ``degrees`` and those of rows have a row for each rank."""


def ends_of_rows(halo: Route) -> tuple[IntArray, IntArray]:
    """Return owner and holder of each halo row, int64 [n] each, in the order of the tables."""
    order = np.lexsort((halo.source, halo.target))
    owner, holder = (np.repeat(ends[order].astype(np.int64), halo.rows[order]) for ends in (halo.source, halo.target))
    return owner, holder


def numbered(vertices: IntArray) -> NDArray[np.int32]:
    """Number the vertices of halo rows from 0 in ascending order, int32 [n]: the table ``HALO_VERTICES`` of a file,
    which names no vertex."""
    return np.unique(vertices, return_inverse=True)[1].astype(np.int32)


def rows_in_order(stats: PartitionStats, rank: int) -> tuple[IntArray, IntArray]:
    """Return the halo rows of a rank in the order in which they are dropped, as places in the tables, and the edges
    from each of them, int64 [h] each."""
    of_rank = np.flatnonzero(ends_of_rows(stats.halo)[1] == rank)
    rows = of_rank[np.argsort(stats.table(ROW_ORDER, "a partition for these devices")[of_rank])]
    return rows, np.asarray(stats.table(ROW_EDGES, "a partition for these devices")[rows], dtype=np.int64)


def without_rows(
    stats: PartitionStats, part_of: IntArray, dropped: NDArray[np.bool_], notes: Sequence[str]
) -> PartitionStats:
    """Return the statistics of parts that are given to ranks and lose some halo rows, with the edges from these.

    ``part_of`` int64 [P]: the part that each rank gets; ``dropped`` bool [n]: the halo rows of ``stats`` that are left
    out. The result has no table of their order. What cannot be counted without the graph stays that of the parts with
    all rows, and a note says so: locality of sums, and entries that sums of sparse features can have."""
    ranks, tables = stats.ranks, stats.tables
    rank_of = np.empty_like(part_of)
    rank_of[part_of] = np.arange(ranks)
    owner, holder = (rank_of[ends] for ends in ends_of_rows(stats.halo))
    pairs = owner * ranks + holder

    def by_pair(rows: NDArray[np.bool_], weights: NDArray[Any] | None = None) -> IntArray:
        found = np.bincount(pairs[rows], None if weights is None else weights[rows], minlength=ranks * ranks)
        return found.astype(np.int64).reshape(ranks, ranks)

    lost = by_pair(dropped, tables[ROW_EDGES])
    kept = np.flatnonzero(~dropped)
    kept = kept[np.lexsort((owner[kept], holder[kept]))]  # stable: rows of a pair stay in order
    of_rows = (HALO_VERTICES, ROW_EDGES, ROW_NONZEROS, ROW_ORDER)
    found: dict[str, NDArray[Any]] = {name: tables[name][kept] for name in of_rows[:2] if name in tables}
    for name, table in tables.items():
        if name in OF_PAIRS:
            found[name] = table[np.ix_(part_of, part_of)]
        elif name == DEGREES:
            found[name] = table
        elif name not in of_rows:
            found[name] = table[part_of]
    found["block_edges"] = found["block_edges"] - lost.T
    found["cut_edges"] = found["cut_edges"] - lost.sum(axis=0)
    gone = {DROPPED_EDGES: lost.sum(axis=0), DROPPED_ROWS: by_pair(dropped).sum(axis=0)}
    if len(np.unique(stats.hosts)) > 1:
        far = stats.hosts[:, None] != stats.hosts
        gone[DROPPED_BETWEEN] = np.where(far, lost, 0).sum(axis=0)
    found |= {name: found.get(name, 0) + counts for name, counts in gone.items()}
    if ROW_NONZEROS in tables:
        found["halo_feature_nonzeros"] = found["halo_feature_nonzeros"] - by_pair(dropped, tables[ROW_NONZEROS])
    estimated = [
        what
        for what, name in (
            ("locality of sums", "locality/forward"),
            ("entries of sums of sparse features", "aggregated_feature_nonzeros"),
        )
        if name in found and dropped.any()
    ]
    if estimated:
        notes = (*notes, f"counted before halo rows were dropped, as the graph is not here: {', '.join(estimated)}")
    digest = digest_of([stats.digest], [part_of, np.flatnonzero(dropped)])
    return replace(
        stats,
        rows=stats.rows[part_of],
        edges=stats.edges[part_of] - lost.sum(axis=0),
        halo=Route.from_matrix(by_pair(~dropped)),
        tables=found,
        notes=(*stats.notes, *notes),
        digest=digest,
        origin=None if stats.origin is None else replace(stats.origin, cut=digest, partition=None),
    )
