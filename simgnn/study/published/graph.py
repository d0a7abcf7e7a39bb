"""Builds statistics of the graph and partition behind a published result, under varied assumptions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.graph.locality import BINS
from simgnn.partition.statistics.file import even
from simgnn.partition.statistics.partition_stats import BASE, TABLE
from simgnn.program.sizes import IntArray, Route
from simgnn.study.published.chunks import chunk_totals
from simgnn.study.published.halo_rows import listed, nearest_degree
from simgnn.study.published.suite import Counted, Dataset, GraphReuse, Kept, PublishedSuite, PublishedTable, Reuse
from simgnn.tomlfile import Table


@dataclass(frozen=True)
class Variation:
    """Factors on assumptions: in-edges, halo rows, in-edges from halo rows (``cut``), cache hits of repeated reads
    (``reuse``), by how much the largest rank exceeds the mean (``balance``), rows that cross the host's link
    (``sharing``), needed memory. ``set``: one alternative of the settings that are left open."""

    edges: float = 1.0
    halo: float = 1.0
    cut: float = 1.0
    reuse: float = 1.0
    balance: float = 1.0
    sharing: float = 1.0
    memory: float = 1.0
    set: Table = field(default_factory=dict)


def variations(suite: PublishedSuite, table: PublishedTable, kind: str, ranks: int, counted: bool) -> list[Variation]:
    """List the variations to predict: no change, each assumption up and down, each open setting of the ``kind``."""
    cut = ranks > 1 and table.blocks is None  # all blocks arrive whole, and are equal
    names = ["edges", "memory", *(["halo"] if cut else []), *(["reuse"] if suite.reuse else [])]
    names += ["sharing"] if table.chunked and cut else []
    names += ["cut"] if table.listed and cut else []
    names += ["balance"] if suite.balance and cut and not counted else []
    ways = (1 - suite.vary, 1 + suite.vary) if suite.vary else ()
    factors: list[dict[str, Any]] = [{name: way} for name in names for way in ways]
    changed = [Variation(**factor) for factor in factors]
    return [Variation(), *changed, *(Variation(set=one.set) for one in table.open if kind in one.models)]


@dataclass(frozen=True)
class Division:
    """Rows, in-edges and received halo rows of each rank, int64 [P]. ``given``: the ``[partition]`` table of a
    statistics file that states them. ``sums``: the number of parts, one after the other, in which edges are summed."""

    rows: IntArray
    edges: IntArray
    halo: IntArray
    given: Table
    sums: int = 1


def divide(suite: PublishedSuite, dataset: Dataset, ranks: int, change: Variation, blocks: bool = False) -> Division:
    """Divide a graph among ranks, into ``blocks`` or by METIS, as counted or as assumed. Raises :class:`ConfigError` if
    the suite states neither."""
    if blocks:
        return _in_blocks(dataset, ranks, change)
    counted = dataset.counted.get(str(ranks))
    if counted is not None:
        return _as_counted(dataset, counted, change)
    total = round(dataset.edges * change.edges)
    rows = np.diff(np.arange(ranks + 1, dtype=np.int64) * dataset.vertices // ranks)
    if ranks == 1:
        alone = np.array([total], dtype=np.int64)
        return Division(rows=rows, edges=alone, halo=0 * alone, given={"ranks": 1, "replication_factor": 1.0})
    if str(ranks) not in dataset.halo:
        raise ConfigError(f"datasets: '{dataset.names[0]}' has no entry halo.{ranks}, which a table needs; add it")
    most_edges, most_halo = _imbalance(suite, ranks, change)
    edges = _loaded(total, ranks, most_edges)
    # the other ranks hold at least one row of their own that nobody needs
    most = dataset.vertices - int(rows.max()) - ranks
    halo = np.minimum(_loaded(round(dataset.halo[str(ranks)] * change.halo * dataset.vertices), ranks, most_halo), most)
    given: Table = {"ranks": ranks, "halo_rows": halo.tolist(), "edge_imbalance": most_edges}
    return Division(rows=rows, edges=edges, halo=halo, given=given)


def _in_blocks(dataset: Dataset, ranks: int, change: Variation) -> Division:
    """Divide into equal blocks of rows, which all reach every rank. Edges that are not counted spread over pairs of
    blocks by their rows."""
    rows = dataset.vertices // ranks + (np.arange(ranks) < dataset.vertices % ranks).astype(np.int64)
    counted = dataset.blocks.get(str(ranks))
    found = np.outer(rows, rows) * (dataset.edges / dataset.vertices**2) if counted is None else np.array(counted)
    # rounded running sums, so that blocks add up to all edges
    ends = np.round(np.cumsum(found * change.edges)).astype(np.int64)
    edges = np.diff(ends, prepend=0).reshape(ranks, ranks)
    halo = [[owner, rank, int(rows[owner])] for owner in range(ranks) for rank in range(ranks) if owner != rank]
    given: Table = {"rows": rows.tolist(), "edges": edges.sum(axis=1).tolist(), "halo": halo}
    tables = {"block_edges": edges.tolist(), "train_rows": _train_rows(dataset, rows)}
    received = dataset.vertices - rows
    return Division(rows=rows, edges=edges.sum(axis=1), halo=received, given={**given, "tables": tables}, sums=ranks)


def _train_rows(dataset: Dataset, rows: IntArray) -> list[int]:
    trained = int(dataset.vertices * dataset.train_share)
    found: list[int] = np.diff(trained * np.cumsum(rows) // rows.sum(), prepend=0).tolist()
    return found


def _as_counted(dataset: Dataset, counted: Counted, change: Variation) -> Division:
    rows = np.array(counted.rows, dtype=np.int64)
    edges = np.round(np.array(counted.edges) * change.edges).astype(np.int64)
    pairs = [[owner, rank, min(round(found * change.halo), counted.rows[owner])] for owner, rank, found in counted.halo]
    halo = np.zeros(len(rows), dtype=np.int64)
    for _, rank, found in pairs:
        halo[rank] += found
    given: Table = {"rows": rows.tolist(), "edges": edges.tolist(), "halo": pairs}
    tables = {"train_rows": _train_rows(dataset, rows)}
    return Division(rows=rows, edges=edges, halo=halo, given={**given, "tables": tables})


def _imbalance(suite: PublishedSuite, ranks: int, change: Variation) -> tuple[float, float]:
    """Return the imbalance (largest rank over mean rank) of edges, and of halo rows."""
    if suite.balance is None:
        return 1.0, 1.0
    found = []
    for name, table in (("edges", suite.balance.edges), ("halo", suite.balance.halo)):
        if str(ranks) not in table:
            raise ConfigError(f"balance.{name}: has no entry for {ranks} ranks, which a table needs; add it")
        found.append(min(1.0 + (table[str(ranks)] - 1.0) * change.balance, float(ranks)))
    return found[0], found[1]


def _loaded(total: int, ranks: int, imbalance: float) -> IntArray:
    """Split ``total`` among ranks: rank 0 gets ``imbalance`` times the mean, the others equal shares of the rest."""
    first = round(imbalance * total / ranks)
    rest = np.diff(np.arange(ranks, dtype=np.int64) * (total - first) // (ranks - 1))
    return np.concatenate((np.array([first], dtype=np.int64), rest))


def statistics(
    suite: PublishedSuite,
    dataset: Dataset,
    name: str,
    ranks: int,
    change: Variation,
    blocks: bool = False,
    chunked: bool = False,
) -> Table:
    """Build the table of a statistics file for a graph that is divided among ``ranks``, into ``blocks`` or by METIS,
    and then into chunks if ``chunked``."""
    division = divide(suite, dataset, ranks, change, blocks)
    partition = dict(division.given)
    # each sum reads the rows that one chunk needs
    chunks, needed = 1, division.rows + division.halo
    if chunked:
        whole = int(needed.sum()) / dataset.vertices
        stated = dataset.chunks.get(str(ranks))
        totals = chunk_totals(suite.chunks, ranks, stated, whole, change.sharing)
        partition["chunks"], chunks = totals, totals["chunks"]
        needed = np.round(needed * (totals["rho"] / whole / chunks)).astype(np.int64)
    if suite.reuse is not None:
        like = nearest_degree(suite.reuse.of, dataset.edges / dataset.vertices)
        # the sum over one block of several reads its rows alone, in both directions
        sources, reads = needed // division.sums, division.edges // (division.sums * chunks)
        backward = sources if division.sums > 1 else division.rows // chunks
        tables = {
            "locality/forward": _locality(suite.reuse, like, change.reuse, sources, reads),
            "locality/backward": _locality(suite.reuse, like, change.reuse, backward, reads),
        }
        partition["tables"] = {**partition.get("tables", {}), **tables}
    return {
        "graph": {
            "name": name,
            "vertices": dataset.vertices,
            "edges": int(division.edges.sum()),
            "feature_width": dataset.features,
            "classes": dataset.classes,
            "train_vertices": int(dataset.vertices * dataset.train_share),
        },
        "partition": partition,
    }


def halo_matrix(division: Division) -> IntArray:
    """Return the halo rows of each pair of ranks, int64 [owner, rank]: as stated, or from all owners alike, as a
    statistics file spreads totals."""
    ranks = len(division.rows)
    found = np.zeros((ranks, ranks), dtype=np.int64)
    for owner, rank, rows in division.given.get("halo", ()):
        found[owner, rank] = rows
    if "halo" not in division.given:
        for rank in range(ranks):
            found[(rank + 1 + np.arange(ranks - 1)) % ranks, rank] = even(int(division.halo[rank]), ranks - 1)
    return found


def listed_statistics(
    suite: PublishedSuite, dataset: Dataset, ranks: int, change: Variation, partition: Table
) -> dict[str, NDArray[Any]]:
    """Return the arrays of a statistics file for a partition by METIS whose halo rows are listed one by one, as the
    suite's ``halo_rows`` says. ``partition``: what :func:`statistics` says of it."""
    if suite.halo_rows is None:
        raise ConfigError("halo_rows: missing, and a table needs rows that caches hold and that are dropped; add it")
    division = divide(suite, dataset, ranks, change)
    counted = suite.halo_rows.like(dataset.edges / dataset.vertices, ranks)
    halo = halo_matrix(division)
    cut = min(counted.cut * change.cut, 1.0)
    tables = {
        "train_rows": np.array(_train_rows(dataset, division.rows)),
        **{name: np.array(table) for name, table in partition.get("tables", {}).items()},
        **listed(suite.halo_rows, counted, cut, halo, division.rows, division.edges),
    }
    route = Route.from_matrix(halo)
    base = (0 * division.rows, division.rows, division.edges, route.source, route.target, route.rows)
    return {**dict(zip(BASE, base, strict=True)), **{TABLE + name: table for name, table in tables.items()}}


def _locality(reuse: Reuse, like: GraphReuse, factor: float, sources: IntArray, edges: IntArray) -> list[list[float]]:
    """Compute reuse profiles of ranks, [P][bins], like :func:`simgnn.graph.locality.reuse_profile`. A first read never
    hits. Repeated reads hit as often as on the graph ``like`` where 2**k rows (bin k) are the same share of rows."""
    table = []
    for rows, reads in zip(sources.tolist(), edges.tolist(), strict=True):
        again = 1.0 - min(rows / max(reads, 1), 1.0)
        shares = np.minimum(2.0 ** np.arange(BINS) / max(rows, 1), 1.0)
        hits = np.interp(np.log2(shares), np.log2(reuse.shares), like.hits, left=0.0)
        table.append((again * np.where(shares < 1.0, np.minimum(hits * factor, 1.0), 1.0)).tolist())
    return table


def kept_bytes(kept: Kept, widths: Sequence[int], division: Division) -> int:
    """Return the bytes on the fullest rank by the formula ``kept``. ``widths``: of inputs, hidden rows, outputs."""
    replicated = kept.rows * sum(widths)
    own = kept.hidden * sum(widths[1:-1]) + kept.last * widths[-1]
    values = (division.rows + division.halo) * replicated + division.rows * own
    return int((kept.item_bytes * values + kept.edge_bytes * division.edges).max())
