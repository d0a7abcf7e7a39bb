"""Local graphs: the part of the graph on each rank of an edge-cut, and the lists of rows that ranks exchange."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simgnn.errors import ConfigError
from simgnn.graph.csr import CSR
from simgnn.graph.locality import reverse_cuthill_mckee
from simgnn.graph.weights import weighted_degrees, with_weights_of
from simgnn.partition.edges import index_array
from simgnn.partition.local.contiguous_ids import IdMaps
from simgnn.partition.local.edge_cut_kernels import halo_places, induced_rows, relabelled_rows
from simgnn.partition.partition import Partition
from simgnn.policy import Reorder


@dataclass(frozen=True)
class RowLists:
    """The rows that one rank sends and receives along a route (:class:`~simgnn.program.sizes.Route`). ``leaving``: for
    each peer the local rows to send, in the order in which they travel. ``received``: the number of rows from each
    peer; ``arriving``: the local rows that received rows belong to (None: they are stored in the order of arrival)."""

    leaving: Mapping[int, NDArray[np.int32]]
    received: Mapping[int, int]
    arriving: Mapping[int, NDArray[np.int32]] | None = None


@dataclass(frozen=True)
class LocalGraph:
    """The part of the graph on ``rank``: its own rows (n), halo rows (h) and all in-edges of own rows, except those
    from halo rows that it does without (:class:`~simgnn.policy.DroppedHalo`).

    ``owned`` int64 [n]: global ids in local order. ``halo`` int64 [h]: global ids by (owner, position among the owner's
    rows). ``csr``: rows n, columns n + h; a source below n is owned, n + k is halo row k; no self loops. ``degree``
    int64 [n + h]: in-degrees in the full graph; ``weighted_degree`` float64 [n + h]: the sums of weights of in-edges
    there (None: edges have no weights). ``send_rows``: for each peer that needs rows of this rank, int32
    positions of owned rows in the order of the peer's halo. ``receive``: for each peer, its slice of the halo.
    ``kept_degree`` [n]: in-degrees of own rows by the edges that are here, int64, or sums of weights, float64, where
    edges have weights (None: all edges are here). ``renormalised``: rows of a GCN are scaled by the in-degree over it.
    """

    rank: int
    owned: NDArray[np.int64]
    halo: NDArray[np.int64]
    csr: CSR
    degree: NDArray[np.int64]
    send_rows: Mapping[int, NDArray[np.int32]]
    receive: Mapping[int, slice]
    weighted_degree: NDArray[np.float64] | None = None
    kept_degree: NDArray[np.int64] | NDArray[np.float64] | None = None
    renormalised: bool = False

    @property
    def vertices(self) -> NDArray[np.int64]:
        """Global ids of the rows that this rank computes."""
        return self.owned

    @property
    def masters(self) -> int:
        """Number of leading rows that this rank trains and evaluates: all of them."""
        return len(self.owned)

    @property
    def complete(self) -> bool:
        """True: no other rank has in-edges of these rows."""
        return True

    @property
    def copied(self) -> bool:
        """False: no other rank computes any of these rows."""
        return False

    @property
    def row_lists(self) -> Mapping[str, RowLists]:
        """Lists of the route "halo", which brings rows from owners to the ranks that need them."""
        return {"halo": RowLists(self.send_rows, {p: part.stop - part.start for p, part in self.receive.items()})}


def local_order(csr: CSR, partition: Partition, reorder: Reorder) -> IdMaps:
    """Order the rows of each rank, and number all vertices contiguously in this order, rank after rank.

    "none": ascending id. "degree": descending in-degree, ties by id. "rcm": reverse Cuthill-McKee on the edges among
    the rank's own rows, which brings rows that read the same sources together.
    """
    maps = IdMaps.of(partition.owner, partition.ranks)
    if reorder == "none":
        return maps
    vertices, place = maps.new2old.copy(), maps.old2new
    degrees = csr.degrees() if reorder == "degree" else None
    for rank in range(partition.ranks):
        begin, end = int(maps.node_map[rank]), int(maps.node_map[rank + 1])
        members = maps.core(rank)
        if degrees is not None:
            vertices[begin:end] = members[np.argsort(-degrees[members], kind="stable")]
        elif end - begin > 1:
            pointers, sources = induced_rows(csr.indptr, csr.indices, members, partition.owner, rank, place, begin)
            vertices[begin:end] = members[reverse_cuthill_mckee(CSR(pointers, sources, end - begin))]
    return IdMaps(vertices, maps.node_map)


def build_local_graphs(csr: CSR, partition: Partition, reorder: Reorder = "rcm") -> Iterator[LocalGraph]:
    """Yield the local graphs in rank order, one at a time. Raises :class:`ConfigError` for a vertex-cut."""
    if partition.kind != "edge-cut":
        raise ConfigError(
            f"partition: local graphs with halo rows need an edge-cut, but got a {partition.kind}; "
            "choose partition.kind = 'metis', 'random' or 'block-row'"
        )
    order = local_order(csr, partition, reorder)
    stamp = np.full(csr.rows, -1, dtype=np.int32)
    halos = []
    for rank in range(partition.ranks):
        found = halo_places(csr.indptr, csr.indices, order.core(rank), partition.owner, rank, order.old2new, stamp)
        if partition.dropped is not None:
            found = np.setdiff1d(found, order.old2new[dropped_by(partition, rank)], assume_unique=True)
        found.sort()
        halos.append(found)
    bounds = np.array([np.searchsorted(halo, order.node_map) for halo in halos])
    degrees, sums = csr.degrees(), weighted_degrees(csr)
    lookup = np.empty(csr.rows, dtype=np.int64)
    for rank in range(partition.ranks):
        owned, halo = order.core(rank), order.new2old[halos[rank]]
        both = np.concatenate((owned, halo))
        lookup[both] = np.arange(len(both))
        edges = int(degrees[owned].sum())
        sources = index_array(edges, len(both))
        lost = dropped_by(partition, rank)
        lookup[lost] = -1
        pointers = relabelled_rows(csr.indptr, csr.indices, owned, lookup, sources)
        if len(lost):
            kept = sources >= 0
            pointers = np.concatenate((np.zeros(1, np.int64), np.cumsum(kept)))[pointers]
            sources = sources[kept]
        send = {
            peer: (halos[peer][bounds[peer, rank] : bounds[peer, rank + 1]] - order.node_map[rank]).astype(np.int32)
            for peer in np.flatnonzero(bounds[:, rank + 1] > bounds[:, rank]).tolist()
        }
        receive = {
            peer: slice(int(bounds[rank, peer]), int(bounds[rank, peer + 1]))
            for peer in np.flatnonzero(np.diff(bounds[rank]) > 0).tolist()
        }
        part = with_weights_of(csr, owned, both, CSR(pointers, sources, len(both)))
        weighted = None if sums is None else sums[both]
        local = LocalGraph(rank, owned, halo, part, degrees[both], send, receive, weighted)
        if partition.dropped is not None and len(partition.dropped.rank):
            local = replace(local, kept_degree=_kept_degrees(local), renormalised=partition.dropped.renormalised)
        yield local


def dropped_by(partition: Partition, rank: int) -> NDArray[np.int64]:
    """Return the vertices whose rows ``rank`` does without, int64, ascending."""
    dropped = partition.dropped
    if dropped is None:
        return np.empty(0, dtype=np.int64)
    low, high = np.searchsorted(dropped.rank, [rank, rank + 1])
    return np.asarray(dropped.vertex[low:high], dtype=np.int64)


def _kept_degrees(local: LocalGraph) -> NDArray[np.int64] | NDArray[np.float64]:
    """Compute :attr:`LocalGraph.kept_degree`; rows that keep all edges keep their sum of weights to the last bit."""
    degrees, sums = local.csr.degrees(), weighted_degrees(local.csr)
    if sums is None or local.weighted_degree is None:
        return degrees
    own = slice(len(local.owned))
    return np.where(degrees == local.degree[own], local.weighted_degree[own], sums)
