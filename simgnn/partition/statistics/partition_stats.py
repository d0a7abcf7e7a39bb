"""PartitionStats: all that planning may know of a partition, as a value and as plain values; and its quality."""

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
"""Prefix of the names of tables among the arrays of a partition."""
BASE = ("hosts", "rows", "edges", "halo/source", "halo/target", "halo/rows")
"""Names of the arrays that every partition has."""


@dataclass(frozen=True)
class Origin:
    """SHA-256 digests of what statistics were counted from: ``graph``; ``cut``, the graph and its division;
    ``partition``, the cut with the hosts of ranks and the order of rows (None: ranks are on other hosts now)."""

    graph: str
    cut: str
    partition: str | None

    @property
    def digests(self) -> frozenset[str]:
        """The digests that name the partition."""
        return frozenset({self.cut} if self.partition is None else {self.cut, self.partition})


@dataclass(frozen=True)
class PartitionStats:
    """Numbers of one partition into P parts; partition p belongs to rank p.

    ``kind``: "edge-cut" (vertices are owned, halo rows are copies) or "vertex-cut" (edges are owned). ``hosts`` int64
    [P], host of each rank. ``rows`` int64 [P], owned vertices. ``edges`` int64 [P], local edges (an edge-cut rank holds
    all in-edges of its rows). ``halo``: the route of halo rows, from owner to the rank that needs them. ``tables``:
    further named arrays, each defined beside the policy that needs it. Here, for edge-cuts:

    - ``train_rows``, ``validation_rows``, ``test_rows`` int64 [P]: labelled rows of each kind that a rank owns;
    - ``feature_nonzeros`` int64 [P]: stored values of the sparse features of owned rows (absent: dense features);
    - ``halo_feature_nonzeros`` int64 [P, P]: the same for the halo rows, [owner, rank];
    - ``aggregated_feature_nonzeros`` int64 [P]: places that can be non-zero in the sums of sparse features over each
      owned row and its in-neighbours; ``neighbor_feature_nonzeros``: over its in-neighbours alone;
    - ``block_edges`` int64 [P, P]: local edges by owner of their source, [rank, owner];
    - ``cut_edges`` int64 [P]: local edges whose source is a halo row;
    - ``degrees`` int64 [D, 2]: an in-degree, and how many vertices of the graph have it (in ``stats:`` files);
    - ``locality/forward``, ``locality/backward`` float64 [P, bins]: :func:`reuse_profile` of the local edges, in order
      of aggregation, and of the transposed local edges; ``locality/features/forward``, ``.../backward``: the same of
      the stored values of the sparse features of owned rows, read by row and by column.

    ``notes``: what a ``stats:`` file spreads evenly and nobody counted. ``made_by``: kind and options of the
    partitioner, if a ``stats:`` file states them. ``origin``: None where it is unknown.
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
        """These statistics with the ranks on ``hosts`` int64 [P]."""
        origin = self.origin
        if origin is not None and not np.array_equal(hosts, self.hosts):
            origin = replace(origin, partition=None)
        return replace(self, hosts=hosts, origin=origin)

    def halo_rows(self) -> IntArray:
        """Halo rows that each rank holds, int64 [P]."""
        return np.bincount(self.halo.target, self.halo.rows, minlength=self.ranks).astype(np.int64)

    def table(self, name: str, needed_by: str) -> NDArray[Any]:
        """A named table; raises :class:`ConfigError`, which names ``needed_by``, where it is missing."""
        if name not in self.tables:
            raise ConfigError(
                f"the partition statistics of '{self.facts.name}' have no table '{name}', which {needed_by} needs; "
                f"they have: {', '.join(sorted(self.tables)) or 'none'}"
            )
        return self.tables[name]


def stats_to_parts(stats: PartitionStats) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Plain values ("facts", "kind", "digest", "notes") and arrays: those of ``BASE``, and tables as "table/NAME"."""
    described = {"facts": asdict(stats.facts), "kind": stats.kind, "digest": stats.digest, "notes": list(stats.notes)}
    halo = stats.halo
    base = (stats.hosts, stats.rows, stats.edges, halo.source, halo.target, halo.rows)
    arrays: dict[str, NDArray[Any]] = dict(zip(BASE, base, strict=True))
    return described, {**arrays, **{TABLE + name: array for name, array in stats.tables.items()}}


def stats_from_parts(described: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> PartitionStats:
    """The inverse of :func:`stats_to_parts`."""
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
"""Table of ``PartitionStats``: int64 [D, 2], an in-degree and how many vertices have it, ascending."""


def degree_table(csr: CSR) -> NDArray[np.int64]:
    """The table of a whole graph."""
    return np.stack(np.unique(csr.degrees(), return_counts=True), axis=1).astype(np.int64)


@dataclass(frozen=True)
class Quality:
    """How good a partition is.

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
        """Plain values, for JSON."""
        return asdict(self)


def measure(stats: PartitionStats) -> Quality:
    """Measure a partition. Without a ``cut_edges`` table the edge cut is unknown (None)."""
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
    """Inner and outer connections of each rank, int64 [P] each: copies held of, plus copies held by, other ranks."""
    near = stats.hosts[stats.halo.source] == stats.hosts[stats.halo.target]
    counts = []
    for chosen in (near, ~near):
        ends = np.concatenate((stats.halo.source[chosen], stats.halo.target[chosen]))
        rows = np.tile(stats.halo.rows[chosen], 2)
        counts.append(np.bincount(ends, rows, minlength=stats.ranks).astype(np.int64))
    return counts[0], counts[1]


def over_mean(held: IntArray) -> float:
    """The largest entry of ``held`` int64 [P] over the mean; 1 where all are zero."""
    total = int(held.sum())
    return float(held.max() * len(held) / total) if total else 1.0


TYPES = (*MASKS, "none")
"""Type of a vertex: the mask that holds it, or none."""


@dataclass(frozen=True)
class TypeBalance:
    """How evenly P ranks share the vertices of one type, and the edges that end in them: see :func:`over_mean`."""

    type: str
    vertices: int
    edges: int
    vertex_imbalance: float
    edge_imbalance: float


def vertex_types(graph: Graph) -> NDArray[np.int8]:
    """Place in :data:`TYPES` of each vertex, int8 [V]."""
    types = np.full(graph.vertices, len(MASKS), np.int8)
    for place, name in enumerate(MASKS):
        mask = getattr(graph, f"{name}_mask")
        if mask is not None:
            types[mask] = place
    return types


def type_balances(graph: Graph, owner: NDArray[np.int32], ranks: int) -> tuple[TypeBalance, ...]:
    """Balance of every type that the graph has, in an edge-cut: a rank holds the edges that end in its vertices.
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
