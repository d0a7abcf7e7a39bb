"""Count the statistics of a partition that is not kept on disk."""

import numpy as np

from simgnn.graph.graph import Graph
from simgnn.graph.store import graph_digest
from simgnn.partition.local.edge_cut import build_local_graphs
from simgnn.partition.local.vertex_cut import build_replica_graphs
from simgnn.partition.partition import Partition
from simgnn.partition.statistics.edge_cut import edge_cut_stats, locality_profiles, rank_numbers, stats_digest
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.partition.statistics.vertex_cut import LevelRows, vertex_cut_stats
from simgnn.policy import Reorder
from simgnn.program.sizes import IntArray


def partition_stats(graph: Graph, partition: Partition, hosts: IntArray, reorder: Reorder = "rcm") -> PartitionStats:
    """Statistics of a partition that is not kept; :func:`simgnn.partition.store.partition_artifact` keeps one."""
    digest = stats_digest(graph_digest(graph), partition, hosts, reorder)
    if partition.kind == "vertex-cut":
        profiles, levels = [], []
        for one in build_replica_graphs(graph, partition, reorder, np.asarray(hosts, dtype=np.int64)):
            profiles.append(locality_profiles(graph, one.csr, one.vertices))
            levels.append(LevelRows.of(one))
        return vertex_cut_stats(graph, partition, hosts, digest, profiles, levels)
    numbers = [rank_numbers(graph, one, partition.ranks) for one in build_local_graphs(graph.csr, partition, reorder)]
    return edge_cut_stats(graph, hosts, numbers, digest)
