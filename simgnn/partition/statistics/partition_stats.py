"""PartitionStats: the numbers of a partition from which a run is planned and simulated; and quality measures."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.graph.csr import CSR
from simgnn.graph.graph import MASKS, Graph, GraphFacts
from simgnn.program.sizes import IntArray, Route

TABLE = "table/"
"""Prefix of the array names of tables."""
BASE = ("hosts", "rows", "edges", "halo/source", "halo/target", "halo/rows")
"""Names of the arrays that the statistics of every partition have."""
DROPPED_EDGES, DROPPED_ROWS = "dropped_edges", "dropped_halo_rows"
"""Tables of partitions whose ranks do without some halo rows."""
DROPPED_BETWEEN = "dropped_edges_between_hosts"
"""Table of such partitions of several hosts."""


@dataclass(frozen=True)
class Origin:
    """SHA-256 digests of what statistics were counted from. ``graph``; ``cut``: the graph and its partition;
    ``partition``: the cut, the hosts of ranks and the order of rows (None: ranks were moved to other hosts)."""

    graph: str
    cut: str
    partition: str | None

    @property
    def digests(self) -> frozenset[str]:
        """Return all digests that identify the partition."""
        return frozenset({self.cut} if self.partition is None else {self.cut, self.partition})


@dataclass(frozen=True)
class PartitionStats:
    """Statistics of one partition into P parts; part p belongs to rank p.

    ``kind``: "edge-cut" (vertices are owned, halo rows are copies) or "vertex-cut" (edges are owned). ``hosts`` int64
    [P], host of each rank. ``rows`` int64 [P], owned vertices. ``edges`` int64 [P], local edges (an edge-cut rank holds
    all in-edges of its rows). ``halo``: the route of halo rows, from owner to the rank that needs them. ``tables``:
    further named arrays, each documented beside the policy that needs it. Tables of edge-cuts:

    - ``train_rows``, ``validation_rows``, ``test_rows`` int64 [P]: labelled rows of each kind that a rank owns;
    - ``feature_nonzeros`` int64 [P]: stored values of the sparse features of owned rows (absent: dense features);
    - ``halo_feature_nonzeros`` int64 [P, P]: stored values of the sparse features of halo rows, [owner, rank];
    - ``aggregated_feature_nonzeros`` int64 [P]: entries that can be non-zero in the sums of sparse features over each
      owned row and its in-neighbours; ``neighbor_feature_nonzeros``: over its in-neighbours alone;
    - ``block_edges`` int64 [P, P]: local edges by owner of their source, [rank, owner];
    - ``cut_edges`` int64 [P]: local edges whose source is a halo row;
    - ``dropped_edges``, ``dropped_halo_rows`` int64 [P]: in-edges of own rows, and halo rows, that a rank does without
      (absent: none); ``edges``, ``halo`` and all other tables count what is kept;
    - ``dropped_edges_between_hosts`` int64 [P]: those of ``dropped_edges`` whose source is on another host (absent: one
      host);
    - ``degrees`` int64 [D, 2]: an in-degree, and the number of vertices of the graph that have it (in ``stats:``
      files);
    - ``locality/forward``, ``locality/backward`` float64 [P, bins]: :func:`reuse_profile` of the local edges in order
      of aggregation, and of the transposed local edges; ``locality/features/forward``, ``.../backward``: the same of
      the stored values of the sparse features of owned rows, read by row and by column.

    ``notes``: which numbers a ``stats:`` file spreads evenly instead of counting them, and what users must know of the
    partition. ``made_by``: kind and options of the partitioner, if a ``stats:`` file states them. ``origin``: None
    where it is unknown.
    """

    facts: GraphFacts
    kind: str
    hosts: IntArray
    rows: IntArray
    edges: IntArray
    halo: Route
    digest: str
    tables: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    made_by: Mapping[str, Any] | None = None
    origin: Origin | None = None

    @property
    def ranks(self) -> int:
        """Number of ranks P."""
        return len(self.rows)

    def on_hosts(self, hosts: IntArray) -> "PartitionStats":
        """Return a copy of these statistics with the ranks on ``hosts`` int64 [P]."""
        origin = self.origin
        if origin is not None and not np.array_equal(hosts, self.hosts):
            origin = replace(origin, partition=None)
        return replace(self, hosts=hosts, origin=origin)

    def halo_rows(self) -> IntArray:
        """Count the halo rows that each rank holds, int64 [P]."""
        return np.bincount(self.halo.target, self.halo.rows, minlength=self.ranks).astype(np.int64)

    def table(self, name: str, needed_by: str) -> NDArray[Any]:
        """Return a named table. Raises :class:`ConfigError`, which names ``needed_by``, when the table is missing."""
        if name not in self.tables:
            raise ConfigError(
                f"the partition statistics of '{self.facts.name}' have no table '{name}', which {needed_by} needs; "
                f"their tables: {', '.join(sorted(self.tables)) or 'none'}"
            )
        return self.tables[name]


def dropped_edges(tables: Mapping[str, NDArray[Any]]) -> int:
    """Count the edges of the graph that no rank holds, by the tables of a partition."""
    table = tables.get(DROPPED_EDGES)
    # tables of a file are checked later than totals
    return 0 if table is None or table.dtype.kind not in "iu" else int(table.sum())


def stats_to_parts(stats: PartitionStats) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Convert statistics to plain values ("facts", "kind", "digest", "notes") and arrays ("table/NAME" for tables)."""
    described = {"facts": asdict(stats.facts), "kind": stats.kind, "digest": stats.digest, "notes": list(stats.notes)}
    halo = stats.halo
    base = (stats.hosts, stats.rows, stats.edges, halo.source, halo.target, halo.rows)
    arrays: dict[str, NDArray[Any]] = dict(zip(BASE, base, strict=True))
    return described, {**arrays, **{TABLE + name: array for name, array in stats.tables.items()}}


def stats_from_parts(described: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> PartitionStats:
    """Build statistics from plain values and arrays; the inverse of :func:`stats_to_parts`."""
    return PartitionStats(
        facts=GraphFacts(**described["facts"]),
        kind=described["kind"],
        hosts=arrays["hosts"],
        rows=arrays["rows"],
        edges=arrays["edges"],
        halo=Route(arrays["halo/source"].astype(np.int32), arrays["halo/target"].astype(np.int32), arrays["halo/rows"]),
        digest=described["digest"],
        tables={name.removeprefix(TABLE): array for name, array in arrays.items() if name.startswith(TABLE)},
        notes=tuple(described["notes"]),
    )


DEGREES = "degrees"
"""Table of ``PartitionStats``, int64 [D, 2]: each in-degree, ascending, and the number of vertices that have it."""


def degree_table(csr: CSR) -> NDArray[np.int64]:
    """Count the vertices of each in-degree of a graph: the table ``DEGREES``."""
    return np.stack(np.unique(csr.degrees(), return_counts=True), axis=1).astype(np.int64)


@dataclass(frozen=True)
class Quality:
    """Quality measures of a partition.

    ``edge_cut``: stored (directed) edges whose ends have different owners; None for a vertex-cut. ``copies``: halo
    rows, or mirrors, of all ranks. ``replication_factor``: rows held over V. ``vertex_imbalance``, ``edge_imbalance``:
    the largest rank over the mean; vertices are owned rows in an edge-cut, masters and mirrors in a vertex-cut.
    ``inner`` and ``outer`` connections of a rank: rows that it sends or receives in one sync, inside its host and
    across; the sum over ranks counts each copy at both of its ends. Source: CDFGNN, section 4.
    """

    ranks: int
    edge_cut: int | None
    edge_cut_share: float | None
    replication_factor: float
    vertex_imbalance: float
    edge_imbalance: float
    copies: int
    copies_max: int
    inner_sum: int
    inner_max: int
    inner_mean: float
    outer_sum: int
    outer_max: int
    outer_mean: float

    def as_dict(self) -> dict[str, int | float | None]:
        """Convert to plain values for JSON."""
        return asdict(self)


def measure(stats: PartitionStats) -> Quality:
    """Compute the quality of a partition. Without a ``cut_edges`` table the edge cut is None."""
    copies = stats.halo_rows()
    cut = int(stats.tables["cut_edges"].sum()) if "cut_edges" in stats.tables else None
    inner, outer = connections(stats)
    held = stats.rows + copies if stats.kind == "vertex-cut" else stats.rows
    return Quality(
        ranks=stats.ranks,
        edge_cut=cut,
        edge_cut_share=None if cut is None else cut / max(1, int(stats.edges.sum())),
        replication_factor=float((stats.rows.sum() + copies.sum()) / max(1, int(stats.rows.sum()))),
        vertex_imbalance=over_mean(held),
        edge_imbalance=over_mean(stats.edges),
        copies=int(copies.sum()),
        copies_max=int(copies.max()),
        inner_sum=int(inner.sum()),
        inner_max=int(inner.max()),
        inner_mean=float(inner.mean()),
        outer_sum=int(outer.sum()),
        outer_max=int(outer.max()),
        outer_mean=float(outer.mean()),
    )


def connections(stats: PartitionStats) -> tuple[IntArray, IntArray]:
    """Count the inner and outer connections of each rank, int64 [P] each: rows that it copies from other ranks, plus
    copies of its rows on other ranks."""
    near = stats.hosts[stats.halo.source] == stats.hosts[stats.halo.target]
    counts = []
    for chosen in (near, ~near):
        ends = np.concatenate((stats.halo.source[chosen], stats.halo.target[chosen]))
        rows = np.tile(stats.halo.rows[chosen], 2)
        counts.append(np.bincount(ends, rows, minlength=stats.ranks).astype(np.int64))
    return counts[0], counts[1]


def over_mean(held: NDArray[np.number[Any]]) -> float:
    """Divide the largest entry of ``held`` [P] by the mean; 1 when all are zero."""
    total = held.sum()
    return float(held.max() * len(held) / total) if total else 1.0


TYPES = (*MASKS, "none")
"""Types of vertices: the mask that contains a vertex, or "none"."""


@dataclass(frozen=True)
class TypeBalance:
    """Balance over ranks of the vertices of one type, and of the edges that end in them; see :func:`over_mean`."""

    type: str
    vertices: int
    edges: int
    vertex_imbalance: float
    edge_imbalance: float


def vertex_types(graph: Graph) -> NDArray[np.int8]:
    """Return the type of each vertex as an index into :data:`TYPES`, int8 [V]."""
    types = np.full(graph.vertices, len(MASKS), np.int8)
    for place, name in enumerate(MASKS):
        mask = getattr(graph, f"{name}_mask")
        if mask is not None:
            types[mask] = place
    return types


def type_balances(graph: Graph, owner: NDArray[np.int32], ranks: int) -> tuple[TypeBalance, ...]:
    """Compute the balance of every vertex type of an edge-cut; an edge counts on the rank that owns its destination.
    ``owner`` int32 [V]. Source: DistDGL's constraints for METIS, Zheng et al., IA3 2020 (docs/systems/distdgl.md)."""
    bins = vertex_types(graph).astype(np.int64) * ranks + np.asarray(owner)
    cells = len(TYPES) * ranks
    vertices = np.bincount(bins, minlength=cells).reshape(-1, ranks)
    edges = np.bincount(bins, graph.csr.degrees(), minlength=cells).astype(np.int64).reshape(-1, ranks)
    return tuple(
        TypeBalance(name, int(held.sum()), int(ended.sum()), over_mean(held), over_mean(ended))
        for name, held, ended in zip(TYPES, vertices, edges, strict=True)
        if held.any()
    )
