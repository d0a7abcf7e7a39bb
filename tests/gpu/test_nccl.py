"""The same handlers over NCCL: every kind of op, and training end to end against the CPU."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simgnn.graph.graph import Graph
from tests.executor.every_kind import WIDTH, run_every_kind
from tests.executor.harness import run_ranks
from tests.executor.runs import prepared_run, small_graph

pytestmark = pytest.mark.gpu
CASES = {
    "gcn": (False, ["model.layers=3"]),
    "gcn-sparse": (True, []),
    "sage": (False, ["model.kind=sage", "model.order=transform-first"]),
    "gin": (False, ["model.kind=gin"]),
}
BLOCKS = ["communication.kind=block-broadcast", "communication.resend_inputs=true", "model.order=aggregate-first",
          "communication.blocks_ahead=1", "model.layers=3"]  # fmt: skip
SKIP = ["freshness.kind=skip-broadcast", "freshness.own_block=cached"]
GUARDED = {
    "always": [],
    "epoch-adaptive": [*SKIP, "freshness.rule=epoch-adaptive", "freshness.bound_epochs=1"],
    "variation-gap": [*SKIP, "freshness.rule=variation-gap", "freshness.bound_change=0.2"],
}
"""Of SANCUS: which blocks are sent."""


@pytest.mark.parametrize(("ranks", "seed"), [(1, None), (1, 3), (2, None), (2, 3)])
def test_every_kind_over_nccl(ranks: int, seed: int | None, tmp_path: Path, gpus: Callable[[int], None]) -> None:
    gpus(ranks)
    sent = run_ranks(ranks, run_every_kind, tmp_path, "nccl", seed)
    for rank in range(ranks):
        assert sent[rank]["exchange"] == ([2 * 4 * WIDTH, 0, 0, 1] if ranks > 1 else [0, 0, 0, 0])
        assert sent[rank]["allreduce"] == [0, 2 * 4 * WIDTH, 0, 0]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("ranks", [1, 2])
def test_training_on_cuda_follows_the_cpu(name: str, ranks: int, tmp_path: Path, gpus: Callable[[int], None]) -> None:
    gpus(ranks)
    sparse, settings = CASES[name]
    graph = small_graph(sparse_features=sparse)
    cpu, cuda = (_trained(graph, device, tmp_path, ranks, settings) for device in ("cpu", "cuda"))
    _check_alike(cpu, cuda)


def test_blocks_that_stay_on_cuda_follow_the_cpu(tmp_path: Path, gpus: Callable[[int], None]) -> None:
    """A guarded block arrives in memory that another stream may still read: one too early would change the loss."""
    gpus(2)
    sent = {}
    for name, settings in GUARDED.items():
        cpu, cuda = (
            _trained(small_graph(), device, tmp_path / name, 2, [*BLOCKS, *settings]) for device in ("cpu", "cuda")
        )
        _check_alike(cpu, cuda)
        sent[name] = sum(cuda["collective_bytes"])
    assert max(sent["epoch-adaptive"], sent["variation-gap"]) < sent["always"], "some blocks stayed"


def _trained(graph: Graph, device: str, folder: Path, ranks: int, settings: Sequence[str]) -> dict[str, Any]:
    """What a run on a device reports."""
    run = prepared_run(graph, folder / device, ranks, "train.dtype=float32", "train.epochs=8", *settings)
    subprocess.run(
        [sys.executable, "-m", "executor", "run", str(run), "--device", device],
        check=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    result: dict[str, Any] = json.loads((run / "result.json").read_text())
    return result


def _check_alike(cpu: dict[str, Any], cuda: dict[str, Any]) -> None:
    assert cuda["environment"]["backend"] == "nccl"
    assert np.allclose(cpu["loss"], cuda["loss"], rtol=1e-4)
    for field in ("bytes_sent", "messages", "collective_bytes", "control_bytes"):
        assert cpu[field] == cuda[field], field
    assert len(cuda["epoch_s"]) == 8
    assert min(cuda["epoch_s"]) > 0
    assert all(peak > 0 for peak in cuda["peak_memory_bytes"])
