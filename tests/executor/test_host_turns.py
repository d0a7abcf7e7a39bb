"""Ranks of a host take turns at a server that they share, in the order in which they came."""

import random
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed as dist

import executor.handlers as handlers
from executor.state.context import Factory, GroupHandle, Handler, RankContext
from executor.state.plan import RunPlan
from executor.store.host_turns import HostTurns
from simgnn.program.kinds import Form
from simgnn.program.ops import Op
from simgnn.program.program import Template
from simgnn.record.result import read_result
from simgnn.record.rundir import RunDirectory, read_table
from tests.executor.harness import run_ranks
from tests.executor.runs import prepared_run, small_graph, train_in_process

RANKS, TURNS = 4, 12
HELD_S = 0.004


def take_turns(rank: int, ranks: int) -> list[tuple[float, float, float]]:
    """(arrived, started, ended) of each turn of a rank; rank 1 comes late, and rank 0 vanishes during its last one."""
    draw = random.Random(rank)
    turns = HostTurns(0, GroupHandle(dist.group.WORLD, tuple(range(ranks)), torch.device("cpu")))
    found = []
    for number in range(TURNS):
        time.sleep(HELD_S * draw.random() * ranks)
        arrived = turns.arrive(time.monotonic)
        turns.wait()
        started = time.monotonic()
        time.sleep(HELD_S * draw.random())
        found.append((arrived, started, time.monotonic()))
        if rank == 0 and number == TURNS - 1:
            break  # as a rank that dies: its file closes, and it never leaves
        turns.leave()
    return found


def assert_in_turn(issued: np.ndarray, started: np.ndarray, ended: np.ndarray) -> None:
    """Turns do not overlap, and come in the order of arrival."""
    order = np.argsort(issued)
    assert (started >= issued).all()
    assert order.tolist() == np.argsort(started).tolist()
    assert all(started[later] >= ended[first] for first, later in pairwise(order))


def test_turns_come_in_the_order_of_arrival_and_one_at_a_time(tmp_path: Path) -> None:
    found = np.array([turn for rank in run_ranks(RANKS, take_turns, tmp_path) for turn in rank])
    assert len(found) == RANKS * TURNS
    assert_in_turn(*found.T)
    assert (found[:, 1] - found[:, 0]).max() > HELD_S / 4, "some waited"


def slowly(factory: Factory) -> Factory:
    """Let each op take a while more."""

    def make(op: Op, template: Template, context: RankContext) -> Handler:
        run = factory(op, template, context)

        def run_slowly(now: Any) -> None:
            run(now)
            time.sleep(HELD_S)

        return run_slowly

    return make


def train_merging_slowly(rank: int, ranks: int, folders: list[str]) -> list[dict[str, Any]]:
    merge = slowly(handlers.FORM_HANDLERS[Form.MERGED_ROWS])
    with patch.dict(cast(Any, handlers.FORM_HANDLERS), {Form.MERGED_ROWS: merge}):
        return train_in_process(rank, ranks, folders)


def test_merges_of_a_run_queue_on_each_host(tmp_path: Path) -> None:
    settings = (
        "freshness.kind=refresh-interval", "freshness.refresh_interval=2", "placement.host_rows=0.7",
        "schedule.kind=pipelined",
    )  # fmt: skip
    folder = prepared_run(small_graph(), tmp_path / "run", RANKS, *settings, hosts=2)
    run_ranks(RANKS, train_merging_slowly, tmp_path / "ranks", [str(folder)], joined=False)
    program, trace = RunPlan.open(folder).program, read_table(RunDirectory(folder).trace)
    merges = [op.form is Form.MERGED_ROWS for _, op in program.ops]
    assert {op.stream for (_, op), merge in zip(program.ops, merges, strict=True) if merge} == {"host_merge"}
    chosen = np.array(merges)[trace["op_id"].to_numpy()]
    rank, *times = (trace[name].to_numpy()[chosen] for name in ("rank", "issued_s", "started_s", "ended_s"))
    assert set(rank.tolist()) == set(range(RANKS))
    for ranks in ((0, 1), (2, 3)):
        issued, started, ended = (column[np.isin(rank, ranks)] for column in times)
        assert_in_turn(issued, started, ended)
        assert (started - issued).max() > HELD_S / 4, "two ranks of a host met"
    other = trace["started_s"].to_numpy() == trace["issued_s"].to_numpy()
    groups = np.array([program.streams[op.stream].group is not None for _, op in program.ops])
    assert other[~chosen & ~groups[trace["op_id"].to_numpy()]].all(), "no other op waits for a turn"
    assert_stages_are_those_of_the_trace(folder)


def assert_stages_are_those_of_the_trace(folder: Path) -> None:
    """The result's stage times follow from the tables of the run directory."""
    run = RunDirectory(folder)
    result, ops = read_result(run.result), read_table(run.ops).to_pandas()
    found = result.stages
    assert found is not None
    trace = read_table(run.trace).to_pandas().merge(ops, on="op_id")
    trace = trace[(trace["step"] >= 0) & (trace["epoch"] > 0)].assign(s=trace["ended_s"] - trace["issued_s"])
    refresh = trace["epoch"] % 2 == 0
    for times, chosen in (
        (found.check_cache_s, trace["category"] == "check_cache"),
        (found.pick_cache_s, trace["category"] == "pick_cache"),
        (found.communication_s, trace["category"].isin(["comm", "comm_overhead"])),
        (found.aggregation_s, trace["kind"] == "aggregate"),
    ):
        assert min(times) > 0
        kinds = [trace[chosen & of].groupby(["rank", "epoch"])["s"].sum() for of in (refresh, ~refresh)]
        medians = [sums.groupby("rank").median() for sums in kinds]
        np.testing.assert_allclose(times, sum(medians) / 2)
    spent = np.mean(found.check_cache_s) + np.mean(found.pick_cache_s)
    assert result.epoch_s_median is not None
    assert found.overhead_ratio == pytest.approx(spent / result.epoch_s_median)
    assert found.benefit_ratio is None, "a run does not know how long it would take without caches"
