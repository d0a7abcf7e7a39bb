"""A lane that fails ends a mini-batch run on all ranks, with its reason, and leaves nothing in shared memory."""

import os
from pathlib import Path
from typing import Any

import pytest

from executor.environment import LAUNCHER, RENDEZVOUS
from executor.failure import read_failures
from executor.minibatch.batches import DrawnBatches
from executor.minibatch.placement import StagedRows
from executor.store.shared import FOLDER
from executor.train import run_rank
from tests.executor.batch_runs import prepared_batches
from tests.executor.harness import run_ranks
from tests.executor.runs import small_graph

SETTINGS = ["batching.batch_size=3", "placement.hot_rows=5", "schedule.window=3", "train.timeout=20"]
FAILING = 1
"""The rank whose lane fails."""


def _break(kind: type, face: str) -> None:
    """From its fifth call on a policy's face raises."""
    original, calls = getattr(kind, face), [0]

    def failing(self: Any, *arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] >= 5:
            raise ValueError("the disk is gone")
        return original(self, *arguments)

    setattr(kind, face, failing)


def _carry_out(rank: int, ranks: int, folder: str, lane: str) -> tuple[int, int]:
    """Exit status of a rank, and its process."""
    here = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
    os.environ.update({key: str(value) for key, value in here.items()})
    os.environ[RENDEZVOUS], os.environ[LAUNCHER] = str(Path(folder) / "rendezvous"), "1"
    if rank == FAILING:
        _break(*((DrawnBatches, "__call__") if lane == "sampling" else (StagedRows, "inputs")))
    return run_rank(Path(folder), "cpu"), os.getpid()


@pytest.mark.parametrize("lane", [pytest.param("sampling", marks=pytest.mark.slow), "staging"])
def test_a_failing_lane_ends_the_run_on_all_ranks(lane: str, tmp_path: Path) -> None:
    folder = prepared_batches(small_graph(), tmp_path / "run", 2, 1, "rapidgnn", *SETTINGS)
    ended = run_ranks(2, _carry_out, tmp_path / "ranks", str(folder), lane, joined=False)
    assert [status for status, _ in ended] == [1, 1]
    (cause, said), (consequence, other) = read_failures(folder / "trace")
    assert cause == "cause"
    assert said.startswith(f"rank {FAILING}, epoch ")
    assert "ValueError: the disk is gone" in said
    assert ("batch/draw" if lane == "sampling" else "rows/stage") in said
    assert consequence == "lost-peer"
    assert "lost contact with another rank" in other
    assert not [path for _, process in ended for path in FOLDER.glob(f"simgnn-{process}-*")]
