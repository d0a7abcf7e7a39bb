"""``python -m executor infer DIR``: the ranks of a planned forward pass compute the scores of all vertices."""

import os
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch

from executor.layers.builtin import GCN
from executor.layers.local import LOOPED_MEAN
from executor.memory.allocator import tune_allocator
from executor.rank.interpreter import Interpreter
from executor.recording.failure import failure_of, write_failure
from executor.state.buffers import TORCH_TYPES, BufferStore, Now
from executor.state.context import GroupHandle, RankContext
from executor.state.model import LayerNetwork
from executor.state.plan import RunPlan
from executor.state.routes import local_routes
from executor.state.task import input_mean, input_rows
from executor.trained.weights import load_layers, read_weights
from executor.world.environment import LAUNCHER, threads_per_rank
from executor.world.member import World, join, process_groups
from simgnn.errors import SimgnnError
from simgnn.partition.local.shards import ShardArtifact
from simgnn.record.trained import Trained, Which, open_trained, score_file


class NoRecord:
    """Keeps no times of ops."""

    def add(self, *_: Any) -> None:
        """Forget an op."""


def infer_rank(root: Path, run: Path, which: Which, device: str) -> int:
    """Compute scores with the trained model of ``run`` as the rank that the process's environment names, and return the
    exit status. The rank writes those of its vertices, in the order of its rows, into a file of ``root``."""
    rank = int(os.environ["RANK"])
    try:
        plan = RunPlan.open(root)
        scores = _scores(plan, open_trained(run, which), device)
        np.save(score_file(root, rank), scores.cpu().numpy())
        return 0
    except KeyboardInterrupt:
        raise
    except BaseException as raised:  # code of a user may exit
        error = failure_of(f"rank {rank}", raised)
        if not isinstance(error, SimgnnError):  # a bug of ours: the place matters
            traceback.print_exc()
        write_failure(root / "trace", rank, error)
        if LAUNCHER not in os.environ:  # else the launcher reports it
            print(f"executor: error on rank {rank}: {error}", file=sys.stderr, flush=True)
        return error.exit_status if isinstance(error, SimgnnError) else 1


def _scores(plan: RunPlan, trained: Trained, device: str) -> torch.Tensor:
    torch.set_num_threads(threads_per_rank(plan.threads_per_rank, plan.ranks))
    tune_allocator()
    world = join(plan.ranks, device, plan.timeout)
    context = _context(plan, trained, world)
    found: list[torch.Tensor] = []

    def keep(now: Now, scores: torch.Tensor) -> None:
        found.append(scores)

    interpreter = Interpreter(plan.program, context, NoRecord(), {f"hidden/{len(plan.layers)}": keep})
    interpreter.evaluate(0)
    interpreter.close()
    world.barrier()
    return found[-1]


def _context(plan: RunPlan, trained: Trained, world: World) -> RankContext:
    dtype = TORCH_TYPES[str(plan.train["dtype"])]
    local, shard = plan.local(world.rank), ShardArtifact.open(plan.shards).rank(world.rank)
    sparse = plan.layers[0].sparse_input
    mean = input_mean(shard, dtype, world.device, sparse)
    network = LayerNetwork(plan.layers, local, plan.seed, dtype, world.device, mean)
    load_layers(network.layers, read_weights(trained))
    for layer in network.layers:
        if trained.described.inputs.sampled and isinstance(layer, GCN):
            layer.scaling = LOOPED_MEAN
    network.set_training(False)
    features = input_rows(shard, dtype, sparse).to(world.device)
    return RankContext(
        program=plan.program,
        rank=world.rank,
        device=world.device,
        store=BufferStore(plan.program, world.rank, world.device, {"features": features}),
        seed=plan.seed,
        routes=local_routes(plan.program, local, world.device),
        groups=process_groups(plan.program, world, plan.timeout),
        network=network,
        policies=plan.policies,
        control=GroupHandle(world.control, tuple(range(plan.ranks)), torch.device("cpu")),
    )
