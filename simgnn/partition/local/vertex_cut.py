"""Replica graphs: the part of the graph on each rank of a vertex-cut, and the lists of rows that ranks exchange."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.graph.csr import CSR
from simgnn.graph.graph import Graph
from simgnn.graph.locality import reverse_cuthill_mckee
from simgnn.graph.weights import weighted_degrees, with_weights_of
from simgnn.partition.edges import index_array, undirected_edges
from simgnn.partition.local.edge_cut import LocalGraph, RowLists
from simgnn.partition.local.masters import replica_sets
from simgnn.partition.local.vertex_cut_kernels import group_arcs, held_vertices, local_rows, parents
from simgnn.partition.partition import Partition
from simgnn.policy import Reorder


@dataclass(frozen=True)
class ReplicaGraph:
    """The part of a vertex-cut on ``rank``: its n vertices (masters and mirrors) and the stored edges that it owns.

    ``vertices`` int64 [n]: global ids; masters without mirrors first, then masters with mirrors, then mirrors by (rank
    of their master, id). ``masters``: number of masters; ``internal``: number of masters without mirrors. ``csr``: n
    rows and columns, the in-edges of each row that this rank owns; no self loops. ``degree`` int64 [n]: in-degrees in
    the full graph; ``weighted_degree`` float64 [n]: the sums of weights of in-edges there (None: edges have no
    weights). ``mirrored``: for each peer that mirrors masters of this rank, int32 local rows, ascending by global
    id; the peer's mirrors are in the same order. ``mirrors``: for each peer that has masters of this rank's mirrors,
    the slice of local rows. ``levels``, when ranks are on several hosts: rows of the routes "mirrors/across" (from a
    master to one mirror on each other host) and "mirrors/within" (from that mirror to the others on its host), by which
    each host sums first; ascending by global id. Source: CDFGNN, sections 3 and 4; adding up by host is our own.
    """

    rank: int
    vertices: NDArray[np.int64]
    masters: int
    internal: int
    csr: CSR
    degree: NDArray[np.int64]
    mirrored: Mapping[int, NDArray[np.int32]]
    mirrors: Mapping[int, slice]
    levels: Mapping[str, RowLists] = field(default_factory=dict)
    weighted_degree: NDArray[np.float64] | None = None

    @property
    def complete(self) -> bool:
        """False: other ranks may have in-edges of these rows too."""
        return False

    @property
    def copied(self) -> bool:
        """Whether other ranks compute some of these rows too."""
        return self.internal < len(self.vertices)

    @property
    def row_lists(self) -> Mapping[str, RowLists]:
        """Lists of the route "mirrors", from masters to mirrors, and of the routes by level."""
        arriving = {peer: np.arange(part.start, part.stop, dtype=np.int32) for peer, part in self.mirrors.items()}
        direct = RowLists(self.mirrored, {p: len(rows) for p, rows in arriving.items()}, arriving)
        return {"mirrors": direct, **self.levels}


RankGraph = LocalGraph | ReplicaGraph
"""The part of a graph on one rank, for either kind of partition."""


LEVELS = ("mirrors/across", "mirrors/within")
BY_HOSTS = "mirrors/across/hosts"
"""Table of the rows of "mirrors/across" by the number of hosts with a replica of their vertex."""
SHARED = "shared_masters"
"""Table of the number of masters with mirrors on each rank."""
BY_REPLICAS = "mirrors/histogram"
"""Table of the mirrors of each pair of ranks by the number of replicas of their vertex."""


def build_replica_graphs(
    graph: Graph, partition: Partition, reorder: Reorder = "rcm", hosts: NDArray[np.int64] | None = None
) -> Iterator[ReplicaGraph]:
    """Yield the replica graph of each rank, in rank order, one at a time. Raises :class:`ConfigError` for an edge-cut.

    ``hosts`` int64 [P]: host of each rank (None: one host). ``reorder``: order of masters within the groups with and
    without mirrors ("none": ascending id, as in the paper); mirrors are always in the order in which they travel.
    """
    if partition.edge_part is None:
        raise ConfigError(
            f"partition: replica graphs need a vertex-cut; got a {partition.kind}: choose partition.kind = 'ebv'"
        )
    csr, owner, ranks = graph.csr, partition.owner, partition.ranks
    low, high = undirected_edges(graph)
    replicas = replica_sets(low, high, partition.edge_part, owner, ranks)
    held, firsts = held_vertices(replicas, ranks)
    shared = np.bincount(held, minlength=graph.vertices) > 1
    starts = np.searchsorted(low, np.arange(graph.vertices + 1))
    targets, sources = (index_array(csr.edges, graph.vertices) for _ in range(2))
    arcs = group_arcs(csr.indptr, csr.indices, starts, high, partition.edge_part, ranks, targets, sources)
    mirrors = [_mirrors(held[firsts[rank] : firsts[rank + 1]], owner, rank) for rank in range(ranks)]
    bounds = np.array([np.searchsorted(owner[ids], np.arange(ranks + 1)) for ids in mirrors])
    levels: list[dict[str, _Arriving]] = []
    if hosts is not None and len(np.unique(hosts)) > 1:
        levels = [_levels(replicas, owner, hosts, rank, mirrors[rank]) for rank in range(ranks)]
    degrees, sums = csr.degrees(), weighted_degrees(csr)
    lookup = np.empty(graph.vertices, dtype=np.int64)
    for rank in range(ranks):
        here = held[firsts[rank] : firsts[rank + 1]]
        own = here[owner[here] == rank]
        part = slice(int(arcs[rank]), int(arcs[rank + 1]))
        masters = np.concatenate((own[~shared[own]], own[shared[own]]))
        if reorder != "none" and len(masters):
            vertices = np.concatenate((masters, mirrors[rank]))
            place = _places(vertices, targets[part], sources[part], lookup, degrees, reorder)
            masters = masters[np.lexsort((place[: len(masters)], shared[masters]))]
        vertices = np.concatenate((masters, mirrors[rank]))
        local = with_weights_of(csr, vertices, vertices, _local_csr(vertices, targets[part], sources[part], lookup))
        mirrored = {
            peer: lookup[mirrors[peer][bounds[peer, rank] : bounds[peer, rank + 1]]].astype(np.int32)
            for peer in np.flatnonzero(bounds[:, rank + 1] > bounds[:, rank]).tolist()
        }
        slices = {
            peer: slice(len(masters) + int(bounds[rank, peer]), len(masters) + int(bounds[rank, peer + 1]))
            for peer in np.flatnonzero(np.diff(bounds[rank]) > 0).tolist()
        }
        internal = int(np.count_nonzero(~shared[masters]))
        lists = {name: _row_lists([one[name] for one in levels], rank, lookup) for name in LEVELS if levels}
        weighted = None if sums is None else sums[vertices]
        yield ReplicaGraph(
            rank, vertices, len(masters), internal, local, degrees[vertices], mirrored, slices, lists, weighted
        )


def _mirrors(here: NDArray[np.int64], owner: NDArray[np.int32], rank: int) -> NDArray[np.int64]:
    """Select the mirrors among the vertices (ascending) of a rank, sorted by (rank of their master, id)."""
    found = here[owner[here] != rank]
    order = np.argsort(owner[found], kind="stable")
    return np.asarray(found[order], dtype=np.int64)


@dataclass(frozen=True)
class _Arriving:
    """Mirrors whose rows a rank receives along a route: global ids by (sender, id), and the first of each sender."""

    ids: NDArray[np.int64]
    starts: NDArray[np.int64]

    def of(self, peer: int) -> NDArray[np.int64]:
        """Return the mirrors that ``peer`` sends."""
        return self.ids[self.starts[peer] : self.starts[peer + 1]]


def _levels(
    replicas: NDArray[np.uint64], owner: NDArray[np.int32], hosts: NDArray[np.int64], rank: int,
    mirrors: NDArray[np.int64],
) -> dict[str, _Arriving]:  # fmt: skip
    """Group the mirrors of a rank by the route that brings their rows: from other hosts, or from its own host."""
    sender = parents(replicas, owner, hosts, rank, mirrors, np.empty(len(hosts), dtype=np.int64))
    near = hosts[sender] == hosts[rank]
    found = {}
    for name, chosen in zip(LEVELS, (~near, near), strict=True):
        ids, of = mirrors[chosen], sender[chosen]
        order = np.lexsort((ids, of))
        found[name] = _Arriving(ids[order], np.searchsorted(of[order], np.arange(len(hosts) + 1)))
    return found


def _row_lists(arriving: Sequence[_Arriving], rank: int, lookup: NDArray[np.int64]) -> RowLists:
    """Build the lists of one route for ``rank`` from what each rank receives; ``lookup``: local row of each vertex."""
    peers = range(len(arriving))
    leaving = {peer: lookup[arriving[peer].of(rank)].astype(np.int32) for peer in peers if len(arriving[peer].of(rank))}
    mine = {peer: lookup[arriving[rank].of(peer)].astype(np.int32) for peer in peers if len(arriving[rank].of(peer))}
    return RowLists(leaving, {peer: len(rows) for peer, rows in mine.items()}, mine)


def _local_csr(
    vertices: NDArray[np.int64], targets: NDArray[np.integer], sources: NDArray[np.integer], lookup: NDArray[np.int64]
) -> CSR:
    """Build the CSR of the arcs of a rank in local ids; ``lookup`` [V] is overwritten for these vertices."""
    lookup[vertices] = np.arange(len(vertices))
    indices = index_array(len(targets), len(vertices))
    return CSR(local_rows(targets, sources, lookup, len(vertices), indices), indices, len(vertices))


def _places(
    vertices: NDArray[np.int64], targets: NDArray[np.integer], sources: NDArray[np.integer], lookup: NDArray[np.int64],
    degrees: NDArray[np.int64], reorder: Reorder,
) -> NDArray[np.int64]:  # fmt: skip
    """Compute the place of each vertex when the rank's local graph is ordered by ``reorder``, int64 [n]."""
    if reorder == "degree":
        order = np.lexsort((vertices, -degrees[vertices]))
    else:
        order = reverse_cuthill_mckee(_local_csr(vertices, targets, sources, lookup))
    place = np.empty(len(vertices), dtype=np.int64)
    place[order] = np.arange(len(vertices))
    return place
