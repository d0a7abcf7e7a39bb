"""Whether the tables of statistics can be those of their partition: names, shapes, ranges, and sums that must agree."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain

import numpy as np

from simgnn.graph.locality import BINS
from simgnn.names import nearest
from simgnn.partition.degrees import DEGREES
from simgnn.partition.replicas import BY_HOSTS, BY_REPLICAS, LEVELS, SHARED
from simgnn.partition.stats import MASKS, PartitionStats
from simgnn.partition.statscheck import Fault, raise_faults, rows_of_a_rank
from simgnn.partition.statsmirrors import mirror_faults

FEATURES = ("feature_nonzeros", "neighbor_feature_nonzeros", "aggregated_feature_nonzeros")
HALO_FEATURES = "halo_feature_nonzeros"
ORDERS = ("locality/forward", "locality/backward")
FEATURE_ORDERS = ("locality/features/forward", "locality/features/backward")
SHARES = (*ORDERS, *FEATURE_ORDERS)
MOST = 2**46
"""No number of a table is greater, so that sums over ranks are whole numbers of 64 bits."""


def check_tables(stats: PartitionStats, path: str, *, spread: bool = False, counted: bool = False) -> PartitionStats:
    """``stats`` with its tables as int64, shares as float64. Raises :class:`ConfigError` with every fault of the
    tables, one line each; the base numbers were checked.

    ``spread``: rows, edges and halo rows are even shares of totals, so that tables, which may be counted, are compared
    with totals in place of each rank or pair, and no rank has more rows than the fullest. Totals agree exactly: they
    are whole numbers, as are shares, and rounding only moves a row from one rank to another. ``counted``: the file says
    what it was counted from, so that no table may be missing that is always counted.
    """
    raise_faults(path, _shapes(stats))
    tables = {name: table.astype(np.float64 if name in SHARES else np.int64) for name, table in stats.tables.items()}
    stats = replace(stats, tables=tables)
    raise_faults(path, _ranges(stats))
    if counted:
        raise_faults(path, _missing(stats))
    raise_faults(path, chain(_masks(stats, spread), _degrees(stats), mirror_faults(stats, spread)))
    edges = (_edge_totals(stats),) if spread else (_labelled(stats), _edges(stats))
    raise_faults(path, chain(*edges, _features(stats, spread)))
    return stats


def _expected(ranks: int) -> Mapping[str, tuple[int | None, ...]]:
    """Shape of every table that there may be; None: any length."""
    by_rank = (*(f"{name}_rows" for name in MASKS), *FEATURES, "cut_edges", SHARED)
    return {
        **dict.fromkeys(by_rank, (ranks,)),
        **dict.fromkeys((HALO_FEATURES, "block_edges"), (ranks, ranks)),
        **dict.fromkeys(SHARES, (ranks, None)),
        DEGREES: (None, 2),
        BY_REPLICAS: (None, 3),
        **dict.fromkeys(LEVELS, (None, 3)),
        BY_HOSTS: (None, 4),
    }


def _shapes(stats: PartitionStats) -> Iterator[Fault]:
    expected = _expected(stats.ranks)
    for name, table in stats.tables.items():
        if name not in expected:
            yield f"tables.{name}", f"unknown table{nearest(name, tuple(expected))}; there are {', '.join(expected)}"
            continue
        shape = expected[name]
        fits = table.ndim == len(shape) and all(
            want in (None, got) for want, got in zip(shape, table.shape, strict=True)
        )
        if not fits:
            wanted = ", ".join("any" if length is None else str(length) for length in shape)
            yield f"tables.{name}", f"got numbers of shape {list(table.shape)}, expected [{wanted}]"
        elif name in SHARES:
            if table.dtype.kind not in "fiu" or not table.shape[1]:
                yield f"tables.{name}", "expected shares in 0..1, at least one a rank"
        elif table.dtype.kind not in "iu":
            yield f"tables.{name}", f"got {table.dtype} numbers, expected whole ones"


def _ranges(stats: PartitionStats) -> Iterator[Fault]:
    for name, table in stats.tables.items():
        if name in SHARES:
            # written so that what is no number fails, too
            if not (np.all((table >= 0) & (table <= 1)) and np.all(np.diff(table, axis=1) >= 0)):
                yield f"tables.{name}", "expected for each rank shares in 0..1 that do not decrease"
        elif np.any((table < 0) | (table > MOST)):
            yield f"tables.{name}", f"got {table.min()}..{table.max()}, expected numbers in 0..{MOST}"


def _missing(stats: PartitionStats) -> Iterator[Fault]:
    sparse = stats.facts.feature_nonzeros is not None
    needed = [*(f"{name}_rows" for name in MASKS), *ORDERS]
    if sparse:
        needed += [FEATURES[0], HALO_FEATURES, *FEATURE_ORDERS]
    if stats.kind == "edge-cut":
        needed += ["cut_edges", "block_edges", *(FEATURES[1:] if sparse else ())]
    else:
        needed += [SHARED, BY_REPLICAS, *((*LEVELS, BY_HOSTS) if len(np.unique(stats.hosts)) > 1 else ())]
    for name in needed:
        if name not in stats.tables:
            yield f"tables.{name}", "missing, though counted_from says that the file was counted from a graph"
        elif name in SHARES and stats.tables[name].shape[1] != BINS:
            yield (
                f"tables.{name}",
                f"got {stats.tables[name].shape[1]} shares a rank, expected {BINS}, as they are counted",
            )


def _masks(stats: PartitionStats, spread: bool) -> Iterator[Fault]:
    most, words = rows_of_a_rank(stats, spread)
    for name in MASKS:
        table, total = stats.tables.get(f"{name}_rows"), getattr(stats.facts, f"{name}_vertices")
        if table is None:
            continue
        if np.any(table > most):
            yield f"tables.{name}_rows", f"a rank has more labelled rows than {words}"
        elif int(table.sum()) != total:
            message = f"must be {stats.ranks} numbers that add up to graph.{name}_vertices = {total}"
            yield f"tables.{name}_rows", message


def _labelled(stats: PartitionStats) -> Iterator[Fault]:
    held = [stats.tables[f"{name}_rows"] for name in MASKS if f"{name}_rows" in stats.tables]
    if held and np.any(np.sum(held, axis=0) > stats.rows):
        yield "tables", "a rank has more labelled rows than rows"


def _edges(stats: PartitionStats) -> Iterator[Fault]:
    halo, blocks, cut = stats.halo, stats.tables.get("block_edges"), stats.tables.get("cut_edges")
    if cut is not None:
        copies = stats.halo_rows()
        if np.any((cut > stats.edges) | (cut < copies) | ((copies == 0) & (cut > 0))):
            yield (
                "tables.cut_edges",
                "expected at most the edges of each rank, at least its halo rows, and 0 without any",
            )
    if blocks is not None:
        own = np.diagonal(blocks)
        if not np.array_equal(blocks.sum(axis=1), stats.edges):
            yield "tables.block_edges", "expected numbers that add up to the edges of each rank"
        elif cut is not None and not np.array_equal(own, stats.edges - cut):
            yield "tables.block_edges", "a rank's edges from its own rows are not its edges less cut_edges"
        elif stats.kind == "edge-cut":
            named = halo.rows > 0
            pairs = np.count_nonzero(blocks) - np.count_nonzero(own)
            reached = blocks[halo.target[named], halo.source[named]] >= halo.rows[named]
            if pairs != np.count_nonzero(named) or not np.all(reached):
                yield "tables.block_edges", "expected an edge at least of every halo row, and none without"


def _edge_totals(stats: PartitionStats) -> Iterator[Fault]:
    edges, blocks, cut = stats.facts.edges, stats.tables.get("block_edges"), stats.tables.get("cut_edges")
    if blocks is not None:
        found = sum(blocks.sum(axis=1).tolist())  # of all pairs of ranks it may be no whole number of 64 bits
        if found != edges:
            yield "tables.block_edges", f"add up to {found}, but graph.edges = {edges}"
    if cut is not None and int(cut.sum()) > edges:
        yield "tables.cut_edges", f"add up to {int(cut.sum())}, expected at most graph.edges = {edges}"


def _degrees(stats: PartitionStats) -> Iterator[Fault]:
    if DEGREES not in stats.tables:
        return
    degrees, counts = stats.tables[DEGREES].T
    facts = stats.facts
    if np.any(counts > facts.vertices) or np.any(
        degrees * np.minimum(counts, 1) > facts.edges // np.maximum(counts, 1)
    ):
        yield f"tables.{DEGREES}", f"more than the {facts.vertices} vertices or {facts.edges} edges of graph"
    elif np.any(np.diff(degrees) <= 0):
        yield f"tables.{DEGREES}", "degrees must ascend, each told once"
    else:
        found = int(counts.sum()), int((degrees * counts).sum())
        if found != (facts.vertices, facts.edges):
            message = (
                f"add up to {found[0]} vertices and {found[1]} edges, but graph has {facts.vertices} and {facts.edges}"
            )
            yield f"tables.{DEGREES}", message


def _features(stats: PartitionStats, spread: bool) -> Iterator[Fault]:
    facts, tables, halo = stats.facts, stats.tables, stats.halo
    if facts.feature_nonzeros is None:
        for name in (*FEATURES, HALO_FEATURES, *FEATURE_ORDERS):
            if name in tables:
                yield f"tables.{name}", "is of sparse features, but graph.feature_nonzeros is missing"
        return
    width = float(facts.feature_width + facts.centred_features)  # products may be too large for whole numbers
    rows = stats.rows.sum(keepdims=True) if spread else stats.rows
    held = {name: tables[name].sum(keepdims=True) if spread else tables[name] for name in FEATURES if name in tables}
    own, near, summed = (held.get(name) for name in FEATURES)
    for name, table in held.items():
        if np.any(table > rows * width):
            yield f"tables.{name}", "more stored values than rows have places"
    if own is not None and int(own.sum()) != facts.feature_nonzeros:
        yield (
            f"tables.{FEATURES[0]}",
            f"add up to {int(own.sum())}, but graph.feature_nonzeros = {facts.feature_nonzeros}",
        )
    if (
        near is not None
        and summed is not None
        and own is not None
        and np.any((summed < near) | (summed < own) | (summed > near + own))
    ):
        yield f"tables.{FEATURES[2]}", "expected at least each of the rows' own and their neighbours', at most both"
    if HALO_FEATURES in tables and not spread:
        table = tables[HALO_FEATURES]
        told = table[halo.source, halo.target]
        most = halo.rows * width if own is None else np.minimum(halo.rows * width, own[halo.source])
        if np.any(told > most) or int(told.sum()) != int(table.sum()):
            yield f"tables.{HALO_FEATURES}", "expected at most what the halo rows of a pair hold, and 0 without any"
