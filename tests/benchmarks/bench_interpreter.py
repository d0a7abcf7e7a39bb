"""What interpreting a program costs: epochs of the interpreter against the same model as one plain autograd program.

Both use the same layers, kernels, allocator settings, process group and optimizer, alternate in one run, and are timed
between barriers. Printed for each graph and P: median seconds of both, paired median ratio with its interquartile
range, and the difference divided by the number of ops.

    python tests/benchmarks/bench_interpreter.py [--data FOLDER] [--ranks 1 2] [--rounds 15]
"""

import argparse
import os
import tempfile
import time
from copy import deepcopy
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing

from executor.handlers.wire import all_to_all
from executor.launch.launcher import threads_per_rank
from executor.rank.session import Session
from executor.state.context import GroupHandle
from executor.state.optimizer import FlatOptimizer
from executor.state.plan import RunPlan
from executor.world.member import RENDEZVOUS
from simgnn.experiment.load import load_experiment
from simgnn.partition.local.shards import shard_artifact
from simgnn.planner.directory import write_run_directory
from simgnn.planner.prepare import prepare

SMALL = ["graph.source=synthetic:communities", "graph.vertices=2000", "graph.edges=10000", "model.hidden=16"]
LARGE = ["graph.source={data}/ogbn_arxiv.npz", "graph.stand_in_features=128", "model.hidden=256"]


def everyone() -> GroupHandle:
    """All ranks."""
    return GroupHandle(dist.group.WORLD, tuple(range(dist.get_world_size())), torch.device("cpu"))


class HaloRows(torch.autograd.Function):
    """Rows that peers need are packed and exchanged; backward sends gradients back and adds them."""

    @staticmethod
    def forward(ctx, rows, route):
        ctx.route, ctx.shape = route, rows.shape
        packed = rows.index_select(0, route.gather)
        return all_to_all(packed, route.send, route.receive, everyone())

    @staticmethod
    def backward(ctx, gradient):
        route = ctx.route
        received = all_to_all(gradient, route.receive, route.send, everyone())
        return gradient.new_zeros(ctx.shape).index_add_(0, route.gather, received), None


class PlainProgram:
    """The same GCN as ordinary torch code: forward, loss, backward, all-reduce, optimizer step."""

    def __init__(self, session: Session) -> None:
        context = session.context
        self.task, self.adjacency = context.task, context.network.adjacency
        self.layers = deepcopy(context.network.layers)
        self.optimizer = FlatOptimizer(self.layers, session.plan.train)
        self.route = context.routes["halo"]
        features = self.task.features
        self.constant = self.layers[0].aggregate(self.adjacency, features, self._halo(features))

    def _halo(self, rows):
        return None if self.route.empty else HaloRows.apply(rows, self.route)

    def epoch(self) -> torch.Tensor:
        """One epoch; the four metrics."""
        rows = self.layers[0].update(self.constant)
        for layer in self.layers[1:]:
            prepared = layer.prepare(rows)
            rows = layer.update(layer.aggregate(self.adjacency, prepared, self._halo(prepared)))
        with torch.no_grad():
            gradient, metrics = self.task.loss(rows.detach())
        rows.backward(gradient)
        if dist.get_world_size() > 1:
            dist.all_reduce(self.optimizer.gradient)
            dist.all_reduce(metrics)
        self.optimizer.step()
        return metrics


def rank_main(rank: int, ranks: int, folder: str, rounds: int) -> None:
    """Alternate both on one rank; rank 0 prints."""
    here = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({key: str(value) for key, value in here.items()})
    os.environ[RENDEZVOUS] = f"{folder}/rendezvous"
    session = Session(RunPlan.open(Path(folder)), "cpu", False)
    session.recorder.start(time.perf_counter())
    session.interpreter.train(range(2))
    plain = PlainProgram(session)
    plain.epoch()
    # every rank must run the same number of epochs a round: the first rank's count
    count = torch.tensor([max(1, round(0.2 / timed(lambda: plain.epoch())))])
    dist.broadcast(count, 0)
    per_round = int(count)
    ours, theirs = [], []
    epoch = 2
    for _ in range(rounds):
        ours.append(timed(lambda at=epoch: session.interpreter.train(range(at, at + per_round))) / per_round)
        epoch += per_round
        theirs.append(timed(lambda: [plain.epoch() for _ in range(per_round)]) / per_round)
    if rank == 0:
        ratio = np.array(ours) / np.array(theirs)
        low, middle, high = np.percentile(ratio, [25, 50, 75])
        ops = len(session.plan.program.templates["steady"].ops)
        extra = median(np.array(ours) - np.array(theirs)) / ops
        times = f"interpreter {median(ours) * 1e3:8.2f} ms, plain {median(theirs) * 1e3:8.2f} ms"
        spread = f"ratio {middle:.3f} [{low:.3f}, {high:.3f}]"
        label = f"P={ranks} {session.plan.program.name}"
        print(f"{label}: {times}, {spread}, {ops} ops, {extra * 1e6:+.1f} µs an op", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def timed(work) -> float:
    """Seconds between two barriers."""
    if dist.get_world_size() > 1:
        dist.barrier()
    start = time.perf_counter()
    work()
    if dist.get_world_size() > 1:
        dist.barrier()
    return time.perf_counter() - start


def main() -> None:
    """Measure each graph with each P."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the real graphs; without it only the small one")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    cases = {"small": SMALL}
    if arguments.data is not None:
        cases["ogbn_arxiv"] = [text.format(data=arguments.data) for text in LARGE]
    for ranks in arguments.ranks:
        for name, settings in cases.items():
            with tempfile.TemporaryDirectory() as folder:
                overrides = [f"name={name}", "model.layers=3", "train.eval_every=1000000", *settings]
                experiment = load_experiment("vanilla", overrides, ranks=ranks)
                prepared = prepare(experiment, need_graph=True)
                shards = shard_artifact(prepared.graph, prepared.partition, experiment.train.dtype)
                root = write_run_directory(prepared, Path(folder) / "run", None, shards=shards.path)
                threads = str(threads_per_rank(None, ranks))
                os.environ.update(OMP_NUM_THREADS=threads, NUMBA_NUM_THREADS=threads, GLOO_SOCKET_IFNAME="lo")
                (root / "trace").mkdir(exist_ok=True)
                torch.multiprocessing.spawn(rank_main, (ranks, str(root), arguments.rounds), nprocs=ranks)


if __name__ == "__main__":
    main()
