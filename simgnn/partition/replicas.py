"""Replica graphs: what one rank of a vertex-cut holds of the graph, and the lists of rows that it trades."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.graph.csr import CSR
from simgnn.graph.graph import Graph
from simgnn.graph.reorder import reverse_cuthill_mckee
from simgnn.partition.edges import index_array, undirected_edges
from simgnn.partition.kinds import Reorder
from simgnn.partition.local import LocalGraph, RowLists
from simgnn.partition.masters import replica_sets
from simgnn.partition.partition import Partition
from simgnn.partition.replica_kernels import group_arcs, held_vertices, local_rows


@dataclass(frozen=True)
class ReplicaGraph:
    """The n vertices that ``rank`` holds and the stored edges that it owns, among them.

    ``vertices`` int64 [n]: global ids; masters without mirrors first, then masters with mirrors, then mirrors by
    (rank of their master, id). ``masters``: how many are masters, ``internal`` how many of these have no mirrors.
    ``csr``: n rows and columns, the part of each row's in-edges that this rank owns; no self loops. ``degree`` int64
    [n]: in-degrees in the full graph. ``mirrored``: for each peer that mirrors masters of this rank, int32 local rows,
    ascending by global id; the peer's mirrors lie in the same order. ``mirrors``: for each peer that has masters of
    this rank's mirrors, the slice of local rows. Source: CDFGNN, sections 3 and 4 (section 3 of our spec).
    """

    rank: int
    vertices: NDArray[np.int64]
    masters: int
    internal: int
    csr: CSR
    degree: NDArray[np.int64]
    mirrored: Mapping[int, NDArray[np.int32]]
    mirrors: Mapping[int, slice]

    @property
    def complete(self) -> bool:
        """False: in-edges of these rows may be on other ranks too."""
        return False

    @property
    def row_lists(self) -> Mapping[str, RowLists]:
        """Rows of the route "mirrors", from masters to their mirrors."""
        arriving = {peer: np.arange(part.start, part.stop, dtype=np.int32) for peer, part in self.mirrors.items()}
        return {"mirrors": RowLists(self.mirrored, {p: len(rows) for p, rows in arriving.items()}, arriving)}


RankGraph = LocalGraph | ReplicaGraph
"""What a rank holds of a graph, by the kind of its partition."""


def build_replica_graphs(graph: Graph, partition: Partition, reorder: Reorder = "rcm") -> Iterator[ReplicaGraph]:
    """The replica graph of each rank, in rank order, one at a time. Raises :class:`ConfigError` for an edge-cut.

    ``reorder`` is the order of masters within those with and those without mirrors ("none": ascending id, as the paper
    has it); mirrors always lie in the order of the wire.
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
    degrees = csr.degrees()
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
        local = _local_csr(vertices, targets[part], sources[part], lookup)
        mirrored = {
            peer: lookup[mirrors[peer][bounds[peer, rank] : bounds[peer, rank + 1]]].astype(np.int32)
            for peer in np.flatnonzero(bounds[:, rank + 1] > bounds[:, rank]).tolist()
        }
        slices = {
            peer: slice(len(masters) + int(bounds[rank, peer]), len(masters) + int(bounds[rank, peer + 1]))
            for peer in np.flatnonzero(np.diff(bounds[rank]) > 0).tolist()
        }
        internal = int(np.count_nonzero(~shared[masters]))
        yield ReplicaGraph(rank, vertices, len(masters), internal, local, degrees[vertices], mirrored, slices)


def _mirrors(here: NDArray[np.int64], owner: NDArray[np.int32], rank: int) -> NDArray[np.int64]:
    """Mirrors among the vertices (ascending) that a rank holds, by (rank of their master, id)."""
    found = here[owner[here] != rank]
    order = np.argsort(owner[found], kind="stable")
    return np.asarray(found[order], dtype=np.int64)


def _local_csr(
    vertices: NDArray[np.int64], targets: NDArray[np.integer], sources: NDArray[np.integer], lookup: NDArray[np.int64]
) -> CSR:
    """The arcs of a rank by local ids; ``lookup`` [V] is overwritten for these vertices."""
    lookup[vertices] = np.arange(len(vertices))
    indices = index_array(len(targets), len(vertices))
    return CSR(local_rows(targets, sources, lookup, len(vertices), indices), indices, len(vertices))


def _places(
    vertices: NDArray[np.int64], targets: NDArray[np.integer], sources: NDArray[np.integer], lookup: NDArray[np.int64],
    degrees: NDArray[np.int64], reorder: Reorder,
) -> NDArray[np.int64]:  # fmt: skip
    """Place of each vertex in the wanted order of the rank's local graph, int64 [n]."""
    if reorder == "degree":
        order = np.lexsort((vertices, -degrees[vertices]))
    else:
        order = reverse_cuthill_mckee(_local_csr(vertices, targets, sources, lookup))
    place = np.empty(len(vertices), dtype=np.int64)
    place[order] = np.arange(len(vertices))
    return place
