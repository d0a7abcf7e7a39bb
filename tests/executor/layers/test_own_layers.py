"""A user's own layer in a run: state, draws, and faults that are told with their remedy."""

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from executor.rank.session import Session, seed_of
from executor.state.model import LayerNetwork
from executor.state.plan import RunPlan
from executor.world.environment import RENDEZVOUS
from simgnn.errors import BackendError, ConfigError
from simgnn.model.spec import LayerSpec
from simgnn.partition.local.edge_cut import build_local_graphs
from simgnn.partition.local.vertex_cut import build_replica_graphs
from simgnn.partition.partition import partitioned
from simgnn.partition.partitioners.ebv import Ebv
from simgnn.partition.partitioners.random import Random
from tests.executor.harness import run_ranks
from tests.executor.runs import prepared_run, small_graph, train_in_process


def run_of(folder: Path, layer: str, ranks: int = 1) -> Path:
    return prepared_run(
        small_graph(), folder, ranks, "train.epochs=3", f"model.kind=tests.executor.layers.own_layers:{layer}"
    )


def test_draws_and_running_means_are_the_same_in_every_run_and_evaluations_change_nothing(tmp_path: Path) -> None:
    folders = [str(run_of(tmp_path / name, "Drop", 2)) for name in ("one", "two")]
    (first, second), (other, _) = run_ranks(2, train_in_process, tmp_path / "group", folders, joined=False)
    assert first["losses"] == second["losses"]
    assert first["evaluations"] == second["evaluations"]
    assert torch.equal(first["parameters"], second["parameters"])
    means = first["buffers"][0]["module.norm.running_mean"]
    assert torch.equal(means, second["buffers"][0]["module.norm.running_mean"])
    assert means.abs().sum() > 0
    # three epochs, three updates: the three evaluations are none
    assert int(first["buffers"][0]["module.norm.num_batches_tracked"]) == 3
    assert first["losses"] == other["losses"]


def test_ranks_and_seeds_draw_differently() -> None:
    assert len({seed_of(seed, rank) for seed in range(5) for rank in range(5)}) == 25


@pytest.mark.parametrize(
    ("layer", "told"),
    [
        ("Halving", r"op '.*/1/prepare': .*changes its input in place; .*clone\(\)"),
        ("InPlace", r"rank 0, epoch 1, op 'forward/1/update': .*changes its input .*clone\(\)"),
        ("Short", r"op '.*aggregate': .*gave 89 rows, expected 90"),
        ("Broken", r"ValueError: my bug \(in .*, at .*own_layers\.py:\d+\)"),
    ],
)
def test_a_fault_of_a_layer_is_told_with_what_to_do(layer: str, told: str, tmp_path: Path) -> None:
    folder = str(run_of(tmp_path / "run", layer))
    (message,) = run_ranks(1, _message, tmp_path / "group", folder, joined=False)
    assert re.search(told, message), message


def _message(rank: int, ranks: int, folder: str) -> str:
    """What a run that fails says."""
    here = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({key: str(value) for key, value in here.items()})
    os.environ[RENDEZVOUS] = f"{folder}/rendezvous"
    try:
        Session(RunPlan.open(Path(folder)), "cpu", False).run()
    except BackendError as error:
        return str(error)
    return "no error"


def test_a_layer_that_treats_copies_of_a_vertex_unlike_is_refused() -> None:
    """On a vertex-cut several ranks compute a row, each with its own copy; on one rank or an edge-cut there is one."""
    graph, spec = small_graph(), LayerSpec(1, "tests.executor.layers.own_layers:Drop", 12, 5, "transform-first")
    where = (0, torch.float64, torch.device("cpu"))
    hosts = np.zeros(2, dtype=np.int64)
    for rank in build_replica_graphs(graph, partitioned(Ebv(), graph, hosts, 0)):
        with pytest.raises(ConfigError, match=r"model\.kind: got '.*Drop', whose module\.drop \(Dropout\).*'halo'"):
            LayerNetwork([spec], rank, *where)
        LayerNetwork([replace(spec, kind="tests.executor.layers.own_layers:Plain")], rank, *where)
    [whole] = build_replica_graphs(graph, partitioned(Ebv(), graph, hosts[:1], 0))
    LayerNetwork([spec], whole, *where)
    for rank in build_local_graphs(graph.csr, partitioned(Random(), graph, hosts, 0)):
        LayerNetwork([spec], rank, *where)
