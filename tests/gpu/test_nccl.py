"""The same handlers over NCCL: every kind of op, and training end to end against the CPU."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

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
    found = {}
    for device in ("cpu", "cuda"):
        folder = prepared_run(
            small_graph(sparse_features=sparse), tmp_path / device, ranks, "train.dtype=float32", "train.epochs=8",
            *settings,
        )  # fmt: skip
        subprocess.run(
            [sys.executable, "-m", "executor", "run", str(folder), "--device", device],
            check=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        found[device] = json.loads((folder / "result.json").read_text())
    cpu, cuda = found["cpu"], found["cuda"]
    assert cuda["environment"]["backend"] == "nccl"
    assert np.allclose(cpu["loss"], cuda["loss"], rtol=1e-4)
    for field in ("bytes_sent", "messages", "collective_bytes", "control_bytes"):
        assert cpu[field] == cuda[field], field
    assert len(cuda["epoch_s"]) == 8
    assert min(cuda["epoch_s"]) > 0
    assert all(peak > 0 for peak in cuda["peak_memory_bytes"])
