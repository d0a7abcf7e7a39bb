"""``python -m tools.count_published``: counts on available graphs what a ``published`` suite assumes of other graphs:
how often rows are read again, the balance of METIS partitions, halo rows of these and the edges from them, and the
partitions of a named graph, by METIS and in equal blocks of rows."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import tomli_w
from numpy.typing import NDArray

from simgnn.errors import SimgnnError
from simgnn.graph.graph import Graph
from simgnn.graph.load import load_graph
from simgnn.graph.locality import reuse_profile
from simgnn.partition.algorithms.rapa import halos_by_influence
from simgnn.partition.partition import partitioned
from simgnn.partition.statistics.count import partition_stats
from simgnn.partition.statistics.partition_stats import PartitionStats, over_mean
from simgnn.policy import Partitioner
from simgnn.registry import shipped

BY_VERTICES: dict[str, Any] = {"balance": ("vertices",)}
HALO_SHARES = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 0.9375, 1.0)
"""Shares of a rank's halo rows, the first to be dropped, of which edges are counted."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print TOML for the file of a suite; exit status 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m tools.count_published", description=__doc__)
    parser.add_argument("graphs", type=Path, nargs="+", help="graphs to count; of balance, medians over them")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4], help="rank counts")
    parser.add_argument("--partition", type=Path, help="a graph whose partitions are written out")
    parser.add_argument("--halo", type=int, help="a rank count of which halo rows are counted, by RAPA's influence")
    chosen = parser.parse_args(arguments)
    try:
        print(_toml(chosen.graphs, chosen.ranks, chosen.partition, chosen.halo))
    except SimgnnError as error:
        print(f"simgnn: {error}", file=sys.stderr)
        return 2
    return 0


def _toml(graphs: Sequence[Path], ranks: Sequence[int], partition: Path | None, halo: int | None) -> str:
    loaded = [load_graph(str(path)) for path in graphs]
    shares = np.exp2(np.arange(-10, 1, dtype=np.float64))
    counted = [
        {
            "graph": path.stem,
            "degree": round(degree(graph), 2),
            "hits": np.round(reread_hits(graph, shares), 3).tolist(),
        }
        for path, graph in zip(graphs, loaded, strict=True)
    ]
    balance: dict[str, dict[str, float]] = {"edges": {}, "halo": {}}
    for each in ranks:
        found = [divided(graph, each) for graph in loaded]
        for name, values in (("edges", [s.edges for s in found]), ("halo", [s.halo_rows() for s in found])):
            balance[name][str(each)] = round(float(np.median([over_mean(value) for value in values])), 3)
    table: dict[str, Any] = {"reuse": {"shares": shares.tolist(), "of": counted}, "balance": balance}
    if halo is not None:
        of = [{"graph": path.stem, **halo_rows(graph, halo)} for path, graph in zip(graphs, loaded, strict=True)]
        table["halo_rows"] = {"ranks": halo, "shares": list(HALO_SHARES), "of": of}
    if partition is not None:
        graph = load_graph(str(partition))
        table["counted"] = {str(each): _counted(divided(graph, each)) for each in ranks}
        table["blocks"] = {str(each): block_edges(graph, each).tolist() for each in ranks}
    return tomli_w.dumps(table)


def degree(graph: Graph) -> float:
    """Return the in-edges per vertex."""
    return graph.csr.edges / graph.vertices


def reread_hits(graph: Graph, shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of repeated reads that find the row among the rows read last, when these are ``shares`` of all
    rows that are read. Edges are read in the order of one aggregation over the whole graph."""
    profile = reuse_profile(graph.csr)
    rows = shares * np.count_nonzero(np.bincount(graph.csr.indices, minlength=graph.vertices))
    found = np.interp(np.log2(np.maximum(rows, 1.0)), np.arange(len(profile)), profile / profile[-1])
    return np.where(rows < 1.0, 0.0, np.where(shares == 1.0, 1.0, found))


def divided(graph: Graph, ranks: int) -> PartitionStats:
    """Return statistics of a METIS partition with equally many vertices on each rank, on one host."""
    return _stats(graph, ranks, "metis", BY_VERTICES)


def halo_rows(graph: Graph, ranks: int) -> dict[str, Any]:
    """Return what :class:`simgnn.study.published.halo_rows.GraphHalo` has of a graph, of METIS parts of equally many
    vertices: of the edges from halo rows, means over ranks."""
    hosts = np.zeros(ranks, dtype=np.int64)
    owner = np.asarray(partitioned(_partitioner("metis", BY_VERTICES), graph, hosts, 0).owner, dtype=np.int32)
    halos, _, edges = halos_by_influence(graph.csr, owner, hosts)
    vertices = np.concatenate([halo.vertices for halo in halos])
    curves = []
    for halo in halos:
        count = np.arange(halo.rows + 1)
        beyond = (halo.removed_edges - count) / max(halo.edges - halo.rows, 1)
        curves.append(np.interp(HALO_SHARES, count / max(halo.rows, 1), beyond))
    return {
        "degree": round(degree(graph), 2),
        "halo": round(len(vertices) / graph.vertices, 3),
        "cut": round(sum(halo.edges for halo in halos) / int(edges.sum()), 3),
        "sharing": round(len(vertices) / len(np.unique(vertices)), 3),
        "edges": np.round(np.mean(curves, axis=0), 3).tolist(),
    }


def block_edges(graph: Graph, ranks: int) -> NDArray[np.int64]:
    """Return the in-edges between equal blocks of rows in the order of the file, int64 [P, P]: [rank, owner]."""
    return np.asarray(_stats(graph, ranks, "block-row", {"permutation": "identity"}).tables["block_edges"])


def _stats(graph: Graph, ranks: int, kind: str, options: dict[str, Any]) -> PartitionStats:
    hosts = np.zeros(ranks, dtype=np.int64)
    return partition_stats(graph, partitioned(_partitioner(kind, options), graph, hosts, 0), hosts, "none")


def _partitioner(kind: str, options: dict[str, Any]) -> Partitioner:
    return cast(Partitioner, shipped("partition")[kind].model_validate(options))


def _counted(stats: PartitionStats) -> dict[str, Any]:
    halo = np.stack((stats.halo.source, stats.halo.target, stats.halo.rows), axis=1)
    return {"rows": stats.rows.tolist(), "edges": stats.edges.tolist(), "halo": halo.tolist()}


if __name__ == "__main__":
    sys.exit(main())
