"""Counts the statistics of a partition from its graph."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.graph.build import transpose_csr
from simgnn.graph.csr import CSR
from simgnn.graph.graph import MASKS, Graph
from simgnn.graph.locality import reuse_profile
from simgnn.graph.store import graph_digest
from simgnn.partition.edges import UndirectedEdges, arcs_of_edges, ends_of
from simgnn.partition.local.edge_cut import LocalGraph, build_local_graphs, dropped_by
from simgnn.partition.local.edge_cut_kernels import edges_between, summed_nonzeros
from simgnn.partition.local.masters import add_replicas, count_mirrors, master_sets, mirror_keys
from simgnn.partition.local.vertex_cut import (
    BY_HOSTS,
    BY_REPLICAS,
    LEVELS,
    SHARED,
    RankGraph,
    ReplicaGraph,
    build_replica_graphs,
)
from simgnn.partition.partition import Partition, digest_of
from simgnn.partition.statistics.partition_stats import (
    DROPPED_BETWEEN,
    DROPPED_EDGES,
    DROPPED_ROWS,
    PartitionStats,
)
from simgnn.policy import Reorder
from simgnn.program.sizes import IntArray, Route

CHUNK_VERTICES = 1 << 20


def partition_stats(
    graph: Graph,
    partition: Partition,
    hosts: IntArray,
    reorder: Reorder = "rcm",
    source: str | None = None,
    keep: Callable[[RankGraph], None] = lambda rank: None,
) -> PartitionStats:
    """Count the statistics of a partition, with a digest over the graph, the partition, the hosts and the order of
    rows. ``source``: digest of the graph, if known. ``keep`` is called with each rank's part of the graph, in rank
    order; one part is in memory at a time."""
    hosts = np.asarray(hosts, dtype=np.int64)
    digest = digest_of([source or graph_digest(graph), partition.digest, reorder], [hosts])
    counted = []
    if partition.kind == "vertex-cut":
        for replica in build_replica_graphs(graph, partition, reorder, hosts):
            keep(replica)
            counted.append(_locality(graph, replica.csr, replica.vertices) | _level_rows(replica))
        return replace(vertex_cut_stats(graph, partition, hosts, digest, counted), notes=partition.notes)
    for local in build_local_graphs(graph.csr, partition, reorder):
        keep(local)
        counted.append(_edge_cut_numbers(graph, local, partition.ranks))
        if partition.dropped is not None:
            lost = int(local.degree[: len(local.owned)].sum()) - local.csr.edges
            gone = len(dropped_by(partition, local.rank))
            counted[-1] |= {DROPPED_EDGES: np.array(lost), DROPPED_ROWS: np.array(gone)}
    tables = {name: np.stack([one[name] for one in counted], axis=int(name in BY_OWNER)) for name in counted[0]}
    if partition.dropped is not None and len(np.unique(hosts)) > 1:
        far = hosts[:, None] != hosts
        kept = np.where(far, tables["block_edges"], 0).sum(axis=1)
        tables[DROPPED_BETWEEN] = edges_between(graph.csr, partition.owner, hosts) - kept
    rows, edges, received = (tables.pop(name) for name in ("rows", "edges", "received"))
    notes = partition.notes if partition.dropped is None else (*partition.notes, *partition.dropped.notes)
    halo = Route.from_matrix(received)
    return PartitionStats(graph.facts(), "edge-cut", hosts, rows, edges, halo, digest, tables, notes)


BY_OWNER = ("received", "halo_feature_nonzeros")
"""Counts of halo rows by owner, of which each rank gives one column."""


def _edge_cut_numbers(graph: Graph, local: LocalGraph, ranks: int) -> dict[str, Any]:
    own, indices = len(local.owned), local.csr.indices
    reads = np.bincount(indices, minlength=local.csr.columns)
    received, block_edges, received_nonzeros = np.zeros((3, ranks), dtype=np.int64)
    block_edges[local.rank] = reads[:own].sum()
    features = graph.sparse_rows
    stored = None if features is None else np.diff(features.indptr).astype(np.int64)
    for peer, part in local.receive.items():
        received[peer] = part.stop - part.start
        block_edges[peer] = reads[own:][part].sum()
        received_nonzeros[peer] = 0 if stored is None else stored[local.halo[part]].sum()
    found: dict[str, Any] = {"rows": own, "edges": local.csr.edges, "received": received}
    for name in MASKS:
        mask = getattr(graph, f"{name}_mask")
        found[f"{name}_rows"] = 0 if mask is None else np.count_nonzero(mask[local.owned])
    found |= {"cut_edges": np.count_nonzero(indices >= own), "block_edges": block_edges}
    if features is not None and stored is not None:
        ids = np.concatenate((local.owned, local.halo))
        parts = features.indptr, features.indices, features.shape[1]
        neighbors, aggregated = summed_nonzeros(local.csr.indptr, indices, ids, *parts)
        found |= {
            "feature_nonzeros": stored[local.owned].sum(),
            "neighbor_feature_nonzeros": neighbors,
            "aggregated_feature_nonzeros": aggregated,
            "halo_feature_nonzeros": received_nonzeros,
        }
    return found | _locality(graph, local.csr, local.owned)


def _locality(graph: Graph, csr: CSR, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Compute :func:`reuse_profile` of a rank's aggregation and of its transpose: float64 [bins] by table name.
    ``rows``: the vertices whose features the rank holds."""
    streams = {"locality": csr}
    if graph.sparse_rows is not None:
        # sparse features as the index stream that their product with a weight matrix reads
        own: Any = graph.sparse_rows[rows]
        streams["locality/features"] = CSR(own.indptr.astype(np.int64), own.indices.astype(np.int32), own.shape[1])
    found = {f"{name}/forward": reuse_profile(stream) for name, stream in streams.items()}
    found |= {f"{name}/backward": reuse_profile(transpose_csr(stream)) for name, stream in streams.items()}
    return dict(sorted(found.items()))


def _level_rows(replica: ReplicaGraph) -> dict[str, NDArray[Any]]:
    """Return one rank's entries for the ``mirrors/`` tables of ranks on several hosts; empty on one host."""
    tables: dict[str, list[tuple[int, ...]]] = {
        name: [(sender, replica.rank, rows) for sender, rows in lists.received.items()]
        for name, lists in replica.levels.items()
    }
    if tables:
        leaving = replica.levels[LEVELS[0]].leaving
        # one row leaves for each other host on which a vertex lies
        rows = np.concatenate([np.empty(0, dtype=np.int64), *leaving.values()]).astype(np.int64)
        hosts = np.bincount(rows, minlength=len(replica.vertices)) + 1
        tables[BY_HOSTS] = [
            (replica.rank, peer, int(lies_on), int(count))
            for peer, sent in leaving.items()
            for lies_on, count in zip(*np.unique(hosts[sent], return_counts=True), strict=True)
        ]
    return {name: np.array(rows, np.int64).reshape(-1, 4 if name == BY_HOSTS else 3) for name, rows in tables.items()}


def vertex_cut_stats(
    graph: Graph,
    partition: Partition,
    hosts: IntArray,
    digest: str,
    counted: Sequence[Mapping[str, NDArray[Any]]] = (),
) -> PartitionStats:
    """Count the statistics of a vertex-cut: ``rows`` are masters, ``edges`` local arcs, ``halo`` the route from the
    rank of a master to the ranks of its mirrors. ``counted``: ``_locality`` and ``_level_rows`` of each rank, or empty.

    Tables for masks and features are those of edge-cuts, with masters as owned rows. Further tables:

    - ``mirrors/across``, ``mirrors/within`` int64 [k, 3], when ranks are on several hosts: (sender, receiver, rows) of
      the routes of :class:`~simgnn.partition.local.vertex_cut.ReplicaGraph`, sorted;
    - ``mirrors/across/hosts`` int64 [k, 4], when ranks are on several hosts: (sender, receiver, h, rows of that pair
      whose vertex has replicas on h hosts), sorted, without zeros;
    - ``shared_masters`` int64 [P]: masters that have mirrors;
    - ``mirrors/histogram`` int64 [k, 3]: (pair, r, mirrors of that pair whose vertex has r replicas), sorted, without
      zeros; pairs are indices into ``halo``.
    """
    assert partition.edge_part is not None
    ranks = partition.ranks
    replicas = master_sets(partition.owner, ranks)
    edges = np.zeros(ranks, dtype=np.int64)
    arcs = None if graph.symmetric else arcs_of_edges(graph)
    for first, (low, high) in UndirectedEdges.of(graph).scan(ends_of):
        part = np.array(partition.edge_part[first : first + len(low)])
        add_replicas(replicas, low, high, part)
        stands_for = None if arcs is None else arcs[first : first + len(low)]
        edges += np.bincount(part, stands_for, minlength=ranks).astype(np.int64)
    edges *= 2 if arcs is None else 1
    features = graph.sparse_rows
    stored = None if features is None else np.diff(features.indptr).astype(np.int64)
    weights = np.zeros(graph.vertices, dtype=np.int64) if stored is None else stored
    mirrors, weighted, shared, largest = count_mirrors(replicas, partition.owner, weights, ranks)
    halo = Route.from_matrix(mirrors)
    histogram = _histogram(replicas, partition.owner, halo, int(largest))
    tables: dict[str, NDArray[Any]] = {SHARED: shared, BY_REPLICAS: histogram}
    for name in MASKS:
        mask = getattr(graph, f"{name}_mask")
        owners = partition.owner[:0] if mask is None else partition.owner[mask]
        tables[f"{name}_rows"] = np.bincount(owners, minlength=ranks).astype(np.int64)
    if stored is not None:
        tables["feature_nonzeros"] = np.bincount(partition.owner, stored, minlength=ranks).astype(np.int64)
        tables["halo_feature_nonzeros"] = weighted
    for name in counted[0] if counted else ():
        found = [one[name] for one in counted]
        if name in (*LEVELS, BY_HOSTS):
            entries = np.concatenate(found)
            tables[name] = entries[np.lexsort(entries.T[::-1])]
        else:
            tables[name] = np.stack(found)
    rows = partition.rows()
    return PartitionStats(graph.facts(), "vertex-cut", hosts, rows, edges, halo, digest, tables)


def _histogram(replicas: NDArray[np.uint64], owner: NDArray[np.int32], halo: Route, largest: int) -> NDArray[np.int64]:
    """Build the table ``mirrors/histogram`` in sparse form: a dense one would need gigabytes at a thousand ranks."""
    pair = np.zeros((replicas.shape[1] * 64, replicas.shape[1] * 64), dtype=np.int64)
    pair[halo.source, halo.target] = np.arange(len(halo.rows))
    stride = largest + 1
    keys, counts = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    for first in range(0, len(owner), CHUNK_VERTICES):
        part = slice(first, first + CHUNK_VERTICES)
        found, number = np.unique(mirror_keys(replicas[part], owner[part], pair, stride), return_counts=True)
        keys, places = np.unique(np.concatenate((keys, found)), return_inverse=True)
        counts = np.bincount(places, np.concatenate((counts, number))).astype(np.int64)
    return np.stack((keys // stride, keys % stride, counts), axis=1)
