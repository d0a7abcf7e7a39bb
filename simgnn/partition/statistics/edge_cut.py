"""PartitionStats of an edge-cut, gathered from its local graphs one rank at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simgnn.graph.build import transpose_csr
from simgnn.graph.csr import CSR
from simgnn.graph.graph import Graph
from simgnn.graph.locality import reuse_profile
from simgnn.partition.local.edge_cut import LocalGraph
from simgnn.partition.local.edge_cut_kernels import summed_nonzeros
from simgnn.partition.partition import Partition, digest_of
from simgnn.partition.statistics.partition_stats import MASKS, PartitionStats
from simgnn.policy import Reorder
from simgnn.program.sizes import IntArray, Route


@dataclass(frozen=True)
class RankNumbers:
    """What the statistics need of one rank; ``block_edges``, ``received`` and ``received_nonzeros`` int64 [P] are by
    owner of the source."""

    rows: int
    edges: int
    cut_edges: int
    block_edges: IntArray
    received: IntArray
    masked: tuple[int, ...]
    nonzeros: int
    received_nonzeros: IntArray
    neighbor_nonzeros: int
    aggregated_nonzeros: int
    locality: Mapping[str, NDArray[np.float64]]


def rank_numbers(graph: Graph, local: LocalGraph, ranks: int) -> RankNumbers:
    """Count what one rank holds, and profile the reuse of rows in its aggregation and in the transposed one."""
    received = np.zeros(ranks, dtype=np.int64)
    received_nonzeros = np.zeros(ranks, dtype=np.int64)
    block_edges = np.zeros(ranks, dtype=np.int64)
    reads = np.bincount(local.csr.indices, minlength=local.csr.columns)
    block_edges[local.rank] = reads[: len(local.owned)].sum()
    stored = _stored_values(graph)
    for peer, part in local.receive.items():
        received[peer] = part.stop - part.start
        block_edges[peer] = reads[len(local.owned) :][part].sum()
        received_nonzeros[peer] = stored[local.halo[part]].sum() if stored is not None else 0
    features, sums = graph.sparse_rows, (0, 0)
    if features is not None:
        ids = np.concatenate((local.owned, local.halo))
        parts = (features.indptr, features.indices, features.shape[1])
        sums = summed_nonzeros(local.csr.indptr, local.csr.indices, ids, *parts)
    masks = [getattr(graph, f"{name}_mask") for name in MASKS]
    return RankNumbers(
        rows=len(local.owned),
        edges=local.csr.edges,
        cut_edges=int(np.count_nonzero(local.csr.indices >= len(local.owned))),
        block_edges=block_edges,
        received=received,
        masked=tuple(0 if mask is None else int(np.count_nonzero(mask[local.owned])) for mask in masks),
        nonzeros=0 if stored is None else int(stored[local.owned].sum()),
        received_nonzeros=received_nonzeros,
        neighbor_nonzeros=int(sums[0]),
        aggregated_nonzeros=int(sums[1]),
        locality=locality_profiles(graph, local.csr, local.owned),
    )


def locality_profiles(graph: Graph, csr: CSR, rows: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
    """Reuse of rows in a rank's aggregation, float64 [bins] by the names of the tables of
    :class:`PartitionStats`; ``rows``: the vertices whose features it holds."""
    streams = {"locality": csr}
    if graph.sparse_rows is not None:
        # sparse features as the index stream that their product with a weight matrix reads
        own: Any = graph.sparse_rows[rows]
        streams["locality/features"] = CSR(own.indptr.astype(np.int64), own.indices.astype(np.int32), own.shape[1])
    found = {f"{name}/forward": reuse_profile(stream) for name, stream in streams.items()}
    return found | {f"{name}/backward": reuse_profile(transpose_csr(stream)) for name, stream in streams.items()}


def stacked(profiles: Sequence[Mapping[str, NDArray[np.float64]]]) -> dict[str, NDArray[np.float64]]:
    """Profiles of all ranks as tables, float64 [P, bins]."""
    return {name: np.stack([one[name] for one in profiles]) for name in sorted(profiles[0])}


def edge_cut_stats(graph: Graph, hosts: IntArray, numbers: Sequence[RankNumbers], digest: str) -> PartitionStats:
    """Put the numbers of all ranks together, in rank order; ``hosts`` int64 [P]."""
    tables: dict[str, NDArray[Any]] = {
        f"{name}_rows": np.array([one.masked[place] for one in numbers], dtype=np.int64)
        for place, name in enumerate(MASKS)
    }
    tables["cut_edges"] = np.array([one.cut_edges for one in numbers], dtype=np.int64)
    tables["block_edges"] = np.stack([one.block_edges for one in numbers])
    if graph.sparse_features:
        tables["feature_nonzeros"] = np.array([one.nonzeros for one in numbers], dtype=np.int64)
        tables["neighbor_feature_nonzeros"] = np.array([one.neighbor_nonzeros for one in numbers], dtype=np.int64)
        tables["aggregated_feature_nonzeros"] = np.array([one.aggregated_nonzeros for one in numbers], dtype=np.int64)
        tables["halo_feature_nonzeros"] = np.stack([one.received_nonzeros for one in numbers], axis=1)
    tables |= stacked([one.locality for one in numbers])
    return PartitionStats(
        facts=graph.facts(),
        kind="edge-cut",
        hosts=np.asarray(hosts, dtype=np.int64),
        rows=np.array([one.rows for one in numbers], dtype=np.int64),
        edges=np.array([one.edges for one in numbers], dtype=np.int64),
        halo=Route.from_matrix(np.stack([one.received for one in numbers], axis=1)),
        digest=digest,
        tables=tables,
    )


def stats_digest(graph_digest: str, partition: Partition, hosts: IntArray, reorder: Reorder) -> str:
    """SHA-256 over what a partition of a graph is: both digests, the hosts and the order of rows."""
    return digest_of([graph_digest, partition.digest, reorder], [np.asarray(hosts, dtype=np.int64)])


def _stored_values(graph: Graph) -> NDArray[np.int64] | None:
    """Stored feature values of each vertex, int64 [V]; None for dense or absent features."""
    features = graph.sparse_rows
    return None if features is None else np.diff(features.indptr).astype(np.int64)
