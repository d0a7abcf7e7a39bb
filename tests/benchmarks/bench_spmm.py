"""The aggregation kernel on ogbn_arxiv: ours against torch's CSR product and DGL's, by width and order of the rows.

    python tests/benchmarks/bench_spmm.py --threads 2 --widths 40 128 256

One call is one aggregation of all rows, into a new tensor, contenders alternating within each round. "gcn" is scaled on
both sides with the row's own term (ours: row scalings; torch: edge weights; DGL: u_mul_e); "sum" is plain.
"""

import executor  # isort: skip  # before torch: one OpenMP runtime for all contenders

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from arxiv import Task, load, scipy_adjacency
from paired import alternate

from executor.layers import LocalAdjacency, aggregate
from executor.memory.allocator import tune_allocator


def contenders(task: Task, rows: torch.Tensor) -> dict[str, Callable[[], object]]:
    """One aggregation by each kernel."""
    made: dict[str, Callable[[], object]] = {}
    for kernel in ("numba", "torch"):
        adjacency = LocalAdjacency(task.csr, task.csr.degrees(), kernel=kernel)
        for scaling in ("sum", "gcn"):
            made[f"{kernel} {scaling}"] = lambda a=adjacency, s=scaling: aggregate(a, rows, scaling=s)
    try:
        import dgl
    except ImportError as error:
        print(f"dgl left out: {error}")
        return made
    targets, sources = (torch.from_numpy(ids).int() for ids in scipy_adjacency(task.csr).nonzero())
    graph = dgl.graph((sources, targets), num_nodes=task.csr.rows)
    graph.create_formats_()
    weights = torch.rand(graph.num_edges())
    made["dgl sum"] = lambda: dgl.ops.copy_u_sum(graph, rows)
    made["dgl weighted"] = lambda: dgl.ops.u_mul_e_sum(graph, rows, weights[:, None])
    return made


def main() -> None:
    """Print milliseconds by order, width and kernel."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--widths", type=int, nargs="*", default=[16, 40, 128, 256])
    parser.add_argument("--data", type=Path, help="folder of ogbn_arxiv.npz (default: SIMGNN_DATA)")
    arguments = parser.parse_args()
    print(f"{executor.__name__}; allocator: {tune_allocator().reason}")
    torch.set_num_threads(arguments.threads)
    natural = load(arguments.data)
    for order, task in (("natural", natural), ("rcm", natural.reordered())):
        for width in arguments.widths:
            rows = torch.randn(task.csr.rows, width, generator=torch.Generator().manual_seed(0))
            for name, seconds in alternate(contenders(task, rows), arguments.rounds).items():
                print(
                    f"{order:8s} width {width:4d}  {name:14s} median {1e3 * np.median(seconds):7.1f} ms   "
                    f"min {1e3 * seconds.min():7.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
