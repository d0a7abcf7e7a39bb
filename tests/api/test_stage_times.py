"""What a prediction says that caches of halo rows cost and save."""

import numpy as np
import pytest

import simgnn
from simgnn.report.results import result_lines

SMALL = {"graph.vertices": 2000, "graph.edges": 16_000, "graph.feature_width": 16, "train.epochs": 9}
CACHED = {
    "freshness.kind": "refresh-interval", "freshness.refresh_interval": 4, "placement.device_rows": 0.3,
    "placement.host_rows": 0.3, "partition.kind": "random", "communication.rows": "transformed",
}  # fmt: skip


@pytest.mark.parametrize("kind", ["bsp", "pipelined"])
def test_what_caches_cost_and_save_follows_from_two_predictions(kind: str) -> None:
    common = {**SMALL, "schedule.kind": kind}
    cached, empty = (
        simgnn.simulate("vanilla", hardware="mixed-pcie3-8", ranks=4, set={**common, **CACHED, **more})
        for more in ({}, {"placement.device_rows": 0, "placement.host_rows": 0})
    )
    stages, epoch_s = cached.result.stages, cached.result.epoch_s_median
    assert empty.result.stages is None
    assert stages is not None
    assert epoch_s is not None
    assert stages.epoch_s_without_cache == pytest.approx(empty.result.epoch_s_median, rel=1e-9)
    spent = np.mean(stages.check_cache_s) + np.mean(stages.pick_cache_s)
    assert 0 < stages.overhead_ratio == pytest.approx(spent / epoch_s)
    assert stages.benefit_ratio == pytest.approx((empty.result.epoch_s_median - epoch_s) / spent)
    assert stages.benefit_ratio > 0, "rows that are cached do not travel over PCIe"
    assert min(stages.communication_s) > max(stages.check_cache_s)
    lines = dict(result_lines(cached.result))
    assert "caches save" in lines
    assert "caches save" not in dict(result_lines(empty.result))


def test_checks_and_copies_out_of_caches_are_priced() -> None:
    found = simgnn.simulate(
        "vanilla", hardware="mixed-pcie3-8", ranks=4, set={**SMALL, **CACHED, "placement.host_rows": 0.7}
    )
    columns, ops = found.simulation.columns, found.simulation.program.ops
    lasts = columns["ended_s"] - columns["issued_s"]
    of_caches = np.array([op.category in ("check_cache", "pick_cache") for _, op in ops])[columns["op_id"]]
    assert of_caches.any()
    assert (lasts[of_caches] > 0).all()
