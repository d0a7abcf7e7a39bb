"""Planned programs in any order that their dependencies allow give the same bits: dependencies say all that matters."""

from pathlib import Path

import pytest
import torch

from tests.executor.harness import run_ranks
from tests.executor.runs import prepared_run, small_graph, train_in_process

MIRRORS = ["partition.kind=ebv", "communication.kind=master-mirror"]
LAZY = ["freshness.kind=adaptive-vertex", "freshness.epsilon=0.05", "codec.kind=linear"]
BLOCKS = ["communication.kind=block-broadcast", "communication.resend_inputs=true", "model.order=aggregate-first"]
SKIP = ["freshness.kind=skip-broadcast", "freshness.own_block=cached", "codec.kind=linear"]
SHARED = [
    "freshness.kind=refresh-interval", "freshness.refresh_interval=2", "placement.device_rows=0.3",
    "placement.host_rows=0.6", "model.layers=3",
]  # fmt: skip
CASES = {
    "halo": ["model.kind=sage", "model.layers=3"],
    "attention on a vertex-cut": ["model.kind=gat", *MIRRORS],
    "cached halo": [*LAZY, "communication.rows=transformed"],
    "cached replicas": [*LAZY, *MIRRORS, "model.hoist=never"],
    "skipped blocks": [*BLOCKS, *SKIP, "communication.blocks_ahead=1"],
    "shared halo in queues": [*SHARED, "schedule.kind=pipelined"],
    "blocks that changed little": [*BLOCKS, *SKIP, "freshness.rule=variation-gap", "freshness.bound_change=0.2"],
}


@pytest.mark.parametrize("seed", [5, pytest.param(6, marks=pytest.mark.slow)])
def test_any_order_gives_the_same_bits(seed: int, tmp_path: Path) -> None:
    graph, found = small_graph(), {}
    for pick in (None, seed):
        folders = [
            str(prepared_run(graph, tmp_path / f"{place}-{pick}", 2, *settings))
            for place, settings in enumerate(CASES.values())
        ]
        found[pick] = run_ranks(2, train_in_process, tmp_path / f"ranks-{pick}", folders, pick, joined=False)
    for rank in range(2):
        for name, plain, mixed in zip(CASES, found[None][rank], found[seed][rank], strict=True):
            assert not mixed["serial"], f"{name}: nothing was mixed"
            assert plain["losses"] == mixed["losses"], name
            assert plain["evaluations"] == mixed["evaluations"], name
            assert torch.equal(plain["parameters"], mixed["parameters"]), name
            assert plain["caches"].keys() == mixed["caches"].keys(), name
            for cache, rows in plain["caches"].items():
                assert torch.equal(rows, mixed["caches"][cache]), (name, cache)
    assert [bool(one["caches"]) for one in found[None][0]] == [False, False, True, True, True, True, True]
