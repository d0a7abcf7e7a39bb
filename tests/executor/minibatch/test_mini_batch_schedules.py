"""Mini-batch runs whose ops run in another order, are held up, or break off and go on: the same bits as ever."""

import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from executor.minibatch.input_rows import StagedRows
from executor.state.optimizer import FlatOptimizer
from executor.state.plan import RunPlan
from simgnn.emit.batches.names import HOT
from tests.executor.harness import run_ranks
from tests.executor.minibatch.batch_checks import assert_simulated_alike, staging_bytes
from tests.executor.minibatch.batch_runs import prepared_batches
from tests.executor.minibatch.batch_variants import COMMON, VARIANTS
from tests.executor.runs import small_graph, train_in_process

pytestmark = pytest.mark.slow
Results = list[list[dict[str, Any]]]
"""By rank, of one run."""


def _prepared(name: str, folder: Path, *settings: str) -> Path:
    system, options = VARIANTS[name]
    return prepared_batches(small_graph(120, seed=3), folder, 2, 2, system, *COMMON, *options, *settings)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What rank 0 gets of a run that asks for every row, one batch after the other."""
    place = tmp_path_factory.mktemp("plain")
    folder = str(_prepared("online", place / "run"))
    return run_ranks(4, train_in_process, place / "ranks", [folder], joined=False)[0][0]


def _assert_same(plain: dict[str, Any], results: Results) -> None:
    for (got,) in results:
        assert got["losses"] == plain["losses"]
        assert got["evaluations"] == plain["evaluations"]
        assert got["parameters"].equal(plain["parameters"])


@pytest.mark.parametrize("name", ["delta", "online, ahead", "online, parted, ahead"])
def test_streams_in_any_order_change_no_bit(plain: dict[str, Any], name: str, tmp_path: Path) -> None:
    """Ready ops of a stream run in a random order of their own on each rank; dependencies alone hold them."""
    folder = str(_prepared(name, tmp_path / "run"))
    _assert_same(plain, run_ranks(4, train_in_process, tmp_path / "ranks", [folder], 5, joined=False))


LATE = {"prefetcher": (StagedRows, "inputs"), "trainer": (FlatOptimizer, "step")}
"""Who is held up, each time that it does this."""


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("name", ["delta", "online, parted, ahead"])
def test_delays_change_times_alone(plain: dict[str, Any], name: str, late: str, tmp_path: Path) -> None:
    folder = _prepared(name, tmp_path / "run")
    _assert_same(plain, run_ranks(4, _train_late, tmp_path / "ranks", str(folder), late, joined=False))
    assert_simulated_alike(folder)


def _train_late(rank: int, ranks: int, folder: str, late: str) -> list[dict[str, Any]]:
    """Each rank is held up by other times of its own."""
    kind, face = LATE[late]
    original, draw = getattr(kind, face), random.Random(rank)

    def later(self: Any, *arguments: Any) -> Any:
        time.sleep(0.03 * draw.random())
        return original(self, *arguments)

    setattr(kind, face, later)
    return train_in_process(rank, ranks, [folder])


@pytest.mark.parametrize("name", ["delta", "across epochs", "online, parted, ahead", "whole run"])
def test_a_run_goes_on_from_a_checkpoint(plain: dict[str, Any], name: str, tmp_path: Path) -> None:
    """With a cache that the epoch before has filled; batches that were staged are no part of a checkpoint, and input
    rows take no more memory than in a run from the beginning."""
    folder = _prepared(name, tmp_path / "run", "train.checkpoint_every=1", "train.timeout=30")
    plan = RunPlan.open(folder)
    stopped = {"stop_at": 2 * plan.program.calendar.steps + 1, "killed": True}
    run_ranks(4, _train_until, tmp_path / "one", str(folder), stopped, joined=False)
    kept = torch.load(plan.checkpoints / "epoch-2" / "rank-0.pt", weights_only=True)["buffers"]
    caches = plan.program.buffers[HOT].depth if HOT in plan.program.buffers else 0
    cached = {f"hot#{copy}" for copy in range(caches)}
    assert len(cached) == {"online, parted, ahead": 0, "whole run": 1}.get(name, 2)
    assert {key for key in kept if not key.startswith("metrics")} == cached
    results = run_ranks(4, _train_until, tmp_path / "two", str(folder), {"resume": True}, joined=False)
    _assert_same(plain, results)
    for rank, (got,) in enumerate(results):
        assert len(got["gradients"]) == plan.program.calendar.steps, "only the epoch after the checkpoint was trained"
        assert got["staging_bytes"] == staging_bytes(plan.program, rank)
    assert_simulated_alike(folder)


def _train_until(rank: int, ranks: int, folder: str, options: dict[str, Any]) -> list[dict[str, Any]]:
    return train_in_process(rank, ranks, [folder], **options)
