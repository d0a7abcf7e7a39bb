"""PartitionStats: all that planning may know of a partition. A graph that nobody here can load is simulated from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.graph.graph import GraphFacts
from simgnn.program.sizes import IntArray, Route

MASKS = ("train", "validation", "test")
"""Kinds of labelled rows, each by a mask of the graph and a table of its name with ``_rows`` behind it."""


@dataclass(frozen=True)
class Origin:
    """What statistics were counted from, by SHA-256: ``graph``; ``cut``, the graph and which rank has what of it;
    ``partition``, that with the hosts of ranks and the order of rows (None: ranks are on other hosts now)."""

    graph: str
    cut: str
    partition: str | None

    @property
    def digests(self) -> frozenset[str]:
        """Those that name the partition."""
        return frozenset({self.cut} if self.partition is None else {self.cut, self.partition})


@dataclass(frozen=True)
class PartitionStats:
    """Numbers of one partition into P parts; partition p belongs to rank p.

    ``kind``: "edge-cut" (vertices are owned, halo rows are copies) or "vertex-cut" (edges are owned).
    ``hosts`` int64 [P], host of each rank. ``rows`` int64 [P], owned vertices. ``edges`` int64 [P], local edges (an
    edge-cut rank holds all in-edges of its rows). ``halo`` is the route of halo rows: from owner to the rank that needs
    them. ``tables`` holds further named arrays, each defined beside the policy that needs it. Here, for edge-cuts:

    - ``train_rows``, ``validation_rows``, ``test_rows`` int64 [P]: labelled rows of each kind that a rank owns;
    - ``feature_nonzeros`` int64 [P]: stored values of the sparse features of owned rows (absent: dense features);
    - ``halo_feature_nonzeros`` int64 [P, P]: the same for the halo rows, [owner, rank];
    - ``aggregated_feature_nonzeros`` int64 [P]: places that can be non-zero in the sums of sparse features over each
      owned row and its in-neighbours; ``neighbor_feature_nonzeros``: over its in-neighbours alone;
    - ``block_edges`` int64 [P, P]: local edges by owner of their source, [rank, owner];
    - ``cut_edges`` int64 [P]: local edges whose source is a halo row;
    - ``degrees`` int64 [D, 2]: an in-degree, and how many vertices of the graph have it (in ``stats:`` files);
    - ``locality/features/forward``, ``locality/features/backward`` float64 [P, bins]: as the two below, of the stored
      values of the sparse features of owned rows, read row by row (rows of a weight matrix), and column by column;
    - ``locality/forward``, ``locality/backward`` float64 [P, bins]: of the local edges, read in the order of the
      aggregation, the share whose source row was last read at most 2**k different rows ago (k = 0, 1, ...), cumulative;
      first reads are in no bin. ``backward`` is the same for the transposed local edges.

    ``notes`` says what is not counted from a graph (numbers spread evenly by a ``stats:`` file). ``made_by``: kind and
    options of the partitioner that a ``stats:`` file says it was made by; None: it does not say. ``origin``: None where
    nobody says it.
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
        """P."""
        return len(self.rows)

    def on_hosts(self, hosts: IntArray) -> "PartitionStats":
        """The same with ranks on ``hosts`` int64 [P]."""
        origin = self.origin
        if origin is not None and not np.array_equal(hosts, self.hosts):
            origin = replace(origin, partition=None)
        return replace(self, hosts=hosts, origin=origin)

    def halo_rows(self) -> IntArray:
        """Halo rows that each rank holds, int64 [P]."""
        return np.bincount(self.halo.target, self.halo.rows, minlength=self.ranks).astype(np.int64)

    def table(self, name: str, needed_by: str) -> NDArray[Any]:
        """A named table, or a :class:`ConfigError` that says who needs it."""
        if name not in self.tables:
            raise ConfigError(
                f"the partition statistics of '{self.facts.name}' have no table '{name}', which {needed_by} needs; "
                f"they have: {', '.join(sorted(self.tables)) or 'none'}"
            )
        return self.tables[name]
