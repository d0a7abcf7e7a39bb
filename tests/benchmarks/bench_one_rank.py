"""One epoch of a 3-layer GCN (width 256) on ogbn_arxiv on one rank: ours against DGL's GraphConv and PyG's GCNConv.

    python tests/benchmarks/bench_one_rank.py --rounds 15 --threads 2

An epoch is forward, loss, backward and an Adam step; stand-in features of width 128. All contenders start from the
same weights (their losses are compared first), run in one process under the same allocator settings and threads, and
alternate within each round. DGL and PyG work on graphs with self loops; PyG's weights are computed once. Ours is also
run without hoisting the constant sum of layer 1, and without reordering rows; DGL and PyG also on reordered rows, so
that what comes from where is stated apart.
"""

import executor  # isort: skip  # before torch: one OpenMP runtime for all contenders

import argparse
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from arxiv import CLASSES, Task, load, scipy_adjacency
from paired import alternate, ratio
from torch.nn import functional

from executor.layers import LocalAdjacency, build_layers
from executor.memory.allocator import tune_allocator
from simgnn.model.spec import LayerSpec

WIDTHS = (128, 256, 256, CLASSES)
Epoch = Callable[[], float]


def specs(hoisted: bool) -> list[LayerSpec]:
    """The layers as the planner chooses them: the narrower side is aggregated."""
    orders = ("aggregate-first", "aggregate-first", "transform-first")
    return [
        LayerSpec(k + 1, "gcn", WIDTHS[k], WIDTHS[k + 1], orders[k], activation=k < 2, hoisted=hoisted and k == 0)
        for k in range(3)
    ]


def adam(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The same optimizer for all."""
    return torch.optim.Adam(parameters, lr=0.01, fused=True)


def ours(task: Task, hoisted: bool) -> Epoch:
    """The executor's layers, segment after segment."""
    layers = build_layers(specs(hoisted), seed=0)
    adjacency = LocalAdjacency(task.csr, task.csr.degrees())
    constant = layers[0].aggregate(adjacency, task.features) if hoisted else None
    optimizer = adam(list(layers.parameters()))
    labels = task.labels[task.train]

    def epoch() -> float:
        rows = task.features
        for position, layer in enumerate(layers):
            summed = constant if hoisted and position == 0 else layer.aggregate(adjacency, layer.prepare(rows))
            rows = layer.update(summed)
        return step(rows[task.train], labels, optimizer)

    return epoch


def dgl_epoch(task: Task) -> Epoch:
    """GraphConv(norm="both") on the graph with self loops, int32 ids."""
    import dgl
    from dgl.nn import GraphConv

    rows, columns = scipy_adjacency(task.csr).nonzero()
    graph = dgl.graph((torch.from_numpy(columns).int(), torch.from_numpy(rows).int()), num_nodes=task.csr.rows)
    graph = dgl.add_self_loop(graph)
    graph.create_formats_()
    relu = functional.relu
    layers = torch.nn.ModuleList(
        GraphConv(WIDTHS[k], WIDTHS[k + 1], norm="both", activation=relu if k < 2 else None) for k in range(3)
    )
    start_alike(layers, lambda layer, weight: layer.weight.copy_(weight))
    optimizer = adam(list(layers.parameters()))
    labels = task.labels[task.train]

    def epoch() -> float:
        rows = task.features
        for layer in layers:
            rows = layer(graph, rows)
        return step(rows[task.train], labels, optimizer)

    return epoch


def pyg_epoch(task: Task) -> Epoch:
    """GCNConv on a torch CSR adjacency whose normalised weights are computed once."""
    from torch_geometric.nn import GCNConv
    from torch_geometric.nn.conv.gcn_conv import gcn_norm
    from torch_geometric.utils import to_torch_csr_tensor

    rows, columns = scipy_adjacency(task.csr).nonzero()
    edges = torch.from_numpy(np.stack((columns, rows)).astype(np.int64))
    edges, weights = gcn_norm(edges, num_nodes=task.csr.rows)
    adjacency = to_torch_csr_tensor(edges.flip(0), weights, size=(task.csr.rows, task.csr.rows))
    layers = torch.nn.ModuleList(GCNConv(WIDTHS[k], WIDTHS[k + 1], normalize=False) for k in range(3))
    start_alike(layers, lambda layer, weight: layer.lin.weight.copy_(weight.t()))
    optimizer = adam(list(layers.parameters()))
    labels = task.labels[task.train]

    def epoch() -> float:
        rows = task.features
        for position, layer in enumerate(layers):
            rows = layer(rows, adjacency)
            rows = rows.relu() if position < 2 else rows
        return step(rows[task.train], labels, optimizer)

    return epoch


@torch.no_grad()
def start_alike(layers: torch.nn.ModuleList, copy: Callable[[torch.nn.Module, torch.Tensor], object]) -> None:
    """Give the layers of a library the weights that ours start from, and zero biases."""
    for layer, made in zip(layers, build_layers(specs(False), seed=0), strict=True):
        copy(layer, made.weight)
        layer.bias.zero_()


def step(logits: torch.Tensor, labels: torch.Tensor, optimizer: torch.optim.Optimizer) -> float:
    """Loss, backward, update; the loss."""
    loss = functional.cross_entropy(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def main() -> None:
    """Print times and paired ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--data", type=Path, help="folder of ogbn_arxiv.npz (default: SIMGNN_DATA)")
    parser.add_argument("--only", nargs="*", help="names of contenders")
    arguments = parser.parse_args()
    settings = tune_allocator()
    torch.set_num_threads(arguments.threads)
    task = load(arguments.data)
    reordered = task.reordered()
    makers: dict[str, Callable[[], Epoch]] = {
        "ours": lambda: ours(reordered, True),
        "ours, not hoisted": lambda: ours(reordered, False),
        "ours, not reordered": lambda: ours(task, True),
        "ours, neither": lambda: ours(task, False),
        "dgl": lambda: dgl_epoch(task),
        "dgl, reordered": lambda: dgl_epoch(reordered),
        "pyg": lambda: pyg_epoch(task),
        "pyg, reordered": lambda: pyg_epoch(reordered),
    }
    contenders = {name: make() for name, make in makers.items() if not arguments.only or name in arguments.only}
    losses = {name: [epoch() for _ in range(3)] for name, epoch in contenders.items()}
    first = next(iter(losses.values()))
    for name, loss in losses.items():
        assert np.allclose(loss, first, rtol=2e-3), f"{name} computes something else: {loss}, not {first}"
    print(f"executor {executor.__file__}")
    print(f"allocator: {settings.reason}; threads {torch.get_num_threads()}; losses of 3 epochs {first}")
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    times = alternate(contenders, arguments.rounds)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    for name, seconds in times.items():
        print(f"{name:20s} median {np.median(seconds):6.3f} s   min {seconds.min():6.3f}   max {seconds.max():6.3f}")
    print(f"page faults a contender and round: {faults / (arguments.rounds * len(contenders)):.0f}")
    for fast in (name for name in times if name.startswith("ours")):
        for slow in (name for name in times if not name.startswith("ours")):
            print(f"{slow} / {fast}: {ratio(times[slow], times[fast])}")


if __name__ == "__main__":
    main()
