"""What hierarchical EBV saves: connections between hosts by gamma, 2 hosts with 4 ranks, against gamma = 0.

On ogbn_arxiv ($SIMGNN_DATA, default ../shared/data) and an R-MAT graph of ten million drawn edges. Nothing is timed.

python tests/benchmarks/bench_ebv_gamma.py [--gamma 0.05 0.1 0.2 0.5] [--edges 10000000] [--scale 20]
"""

import argparse
import os
from pathlib import Path

import numpy as np

from simgnn.graph.generators.generate import generate
from simgnn.graph.generators.recipes import RMat
from simgnn.graph.graph import Graph
from simgnn.graph.load import load_graph
from simgnn.partition.partition import partitioned
from simgnn.partition.partitioners.ebv import Ebv
from simgnn.partition.statistics.count import partition_stats
from simgnn.partition.statistics.partition_stats import Quality, measure

HOSTS = np.arange(8) // 4
FEWER_BARS = {"ogbn_arxiv": 0.12, "rmat": 0.15}
IMBALANCE_BAR = 1.01


def quality(graph: Graph, gamma: float) -> Quality:
    """Of the partition with otherwise default options."""
    return measure(partition_stats(graph, partitioned(Ebv(gamma=gamma), graph, HOSTS, seed=0), HOSTS))


def main() -> None:
    """Print a line for each graph and gamma."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gamma", type=float, nargs="+", default=[0.05, 0.1, 0.2, 0.5])
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--scale", type=int, default=20, help="2**scale vertices")
    arguments = parser.parse_args()
    data = Path(os.environ.get("SIMGNN_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
    graphs = {
        "ogbn_arxiv": lambda: load_graph(str(data / "ogbn_arxiv.npz")),
        "rmat": lambda: generate(RMat(2**arguments.scale, arguments.edges, classes=0, feature_width=0)),
    }
    for name, make in graphs.items():
        graph = make()
        plain = quality(graph, 0.0)
        for gamma in (0.0, *arguments.gamma):
            found = quality(graph, gamma)
            print(
                f"{name} ({graph.edges // 2:,} edges), gamma {gamma}: between hosts {found.outer_sum:,} "
                f"({1 - found.outer_sum / plain.outer_sum:.1%} fewer, bar {FEWER_BARS[name]:.0%} at 0.1), inside hosts "
                f"{found.inner_sum:,}, replication {found.replication_factor:.3f}, edge imbalance "
                f"{found.edge_imbalance:.4f} (bar {IMBALANCE_BAR}), vertex imbalance {found.vertex_imbalance:.4f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
