"""PartitionStats of a vertex-cut."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.graph.graph import Graph
from simgnn.partition.edges import UndirectedEdges, arcs_of_edges, ends_of
from simgnn.partition.local.masters import add_replicas, count_mirrors, master_sets, mirror_keys
from simgnn.partition.local.vertex_cut import BY_HOSTS, BY_REPLICAS, LEVELS, SHARED, ReplicaGraph
from simgnn.partition.partition import Partition
from simgnn.partition.statistics.edge_cut import stacked
from simgnn.partition.statistics.partition_stats import MASKS, PartitionStats
from simgnn.program.sizes import IntArray, Route

CHUNK_VERTICES = 1 << 20


@dataclass(frozen=True)
class LevelRows:
    """What a rank trades by the routes of ``LEVELS``: ``received`` rows of each rank, by route (none where all ranks
    lie on one host); ``by_hosts``: its part of the table ``mirrors/across/hosts``."""

    received: Mapping[str, Mapping[int, int]]
    by_hosts: NDArray[np.int64]

    @classmethod
    def of(cls, replica: ReplicaGraph) -> "LevelRows":
        """Count those of one rank."""
        received = {name: lists.received for name, lists in replica.levels.items()}
        found: list[tuple[int, int, int, int]] = []
        if received:
            leaving = replica.levels[LEVELS[0]].leaving
            # one row leaves for each other host on which a vertex lies
            rows = np.concatenate([np.empty(0, dtype=np.int64), *leaving.values()]).astype(np.int64)
            hosts = np.bincount(rows, minlength=len(replica.vertices)) + 1
            for peer in sorted(leaving):
                numbers, counts = np.unique(hosts[leaving[peer]], return_counts=True)
                found += [(replica.rank, peer, h, n) for h, n in zip(numbers.tolist(), counts.tolist(), strict=True)]
        return cls(received, np.array(found, dtype=np.int64).reshape(-1, 4))


def vertex_cut_stats(
    graph: Graph,
    partition: Partition,
    hosts: IntArray,
    digest: str,
    locality: Sequence[Mapping[str, NDArray[Any]]] = (),
    levels: Sequence[LevelRows] = (),
) -> PartitionStats:
    """Statistics of a vertex-cut: ``rows`` are masters, ``edges`` local arcs, ``halo`` the route of mirrors from their
    master's rank to their own. ``locality``: profiles of each rank's arcs, by table; none
    where nothing is to be priced. ``levels``: what each rank trades by the routes that hosts add up by.

    Tables besides those of the masks and features, which are as for edge-cuts with masters as owned rows:

    - ``mirrors/across``, ``mirrors/within`` int64 [k, 3], where ranks lie on several hosts: (sender, receiver, rows) of
      the routes of :class:`~simgnn.partition.local.vertex_cut.ReplicaGraph`, sorted;
    - ``mirrors/across/hosts`` int64 [k, 4], likewise: (sender, receiver, h, rows of that pair whose vertex lies on h
      hosts), sorted, without zeros;
    - ``shared_masters`` int64 [P]: masters that have mirrors;
    - ``mirrors/histogram`` int64 [k, 3]: (pair, r, mirrors of that pair whose vertex has r replicas), sorted, without
      zeros; pairs are places in ``halo``.
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
    tables |= stacked(locality) if locality else {}
    for name in levels[0].received if levels else ():
        rows = [(sender, rank, n) for rank, one in enumerate(levels) for sender, n in one.received[name].items()]
        tables[name] = np.array(sorted(rows), dtype=np.int64).reshape(-1, 3)
    if levels and levels[0].received:
        tables[BY_HOSTS] = np.concatenate([one.by_hosts for one in levels])
    return PartitionStats(
        facts=graph.facts(),
        kind="vertex-cut",
        hosts=np.asarray(hosts, dtype=np.int64),
        rows=partition.rows(),
        edges=edges,
        halo=halo,
        digest=digest,
        tables=tables,
    )


def _histogram(replicas: NDArray[np.uint64], owner: NDArray[np.int32], halo: Route, largest: int) -> NDArray[np.int64]:
    """The table ``mirrors/histogram``: a dense one would take gigabytes at a thousand ranks."""
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
