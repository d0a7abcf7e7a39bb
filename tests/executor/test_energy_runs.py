"""Energy of real runs, of the whole graph and in mini-batches: the machine counted once, by the run's own clock."""

import platform
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from executor.energy.gauges import Gauge
from executor.energy.meter import gauges_of
from executor.rank import session
from simgnn.record.energy import Part
from simgnn.record.result import read_result
from tests.executor.harness import run_ranks
from tests.executor.minibatch.batch_runs import prepared_batches
from tests.executor.runs import prepared_run, small_graph, train_in_process


class FiftyWatts:
    """A sensor of what draws 50 W, exactly."""

    def read(self) -> float:
        return 0.0

    def joules(self, times_s: Any, readings: Any) -> Any:
        return 50.0 * (times_s - times_s[0])


def made_up(part: Part) -> list[Gauge]:
    return [Gauge(part, "processors", "made up", (FiftyWatts(),)), Gauge("memory", "memory", reason="no counter")]


def metered(rank: int, ranks: int, folders: list[str], broken: str) -> list[str]:
    """Runs that end well, and one that breaks off and is resumed."""
    session.gauges_of = partial(gauges_of, processors=made_up)  # type: ignore[assignment]
    train_in_process(rank, ranks, folders)
    train_in_process(rank, ranks, [broken], stop_at=3)
    train_in_process(rank, ranks, [broken], resume=True)
    return []


def test_runs_tell_the_energy_of_their_machine_once(tmp_path: Path) -> None:
    graph = small_graph()
    whole = prepared_run(graph, tmp_path / "whole", 2, "train.eval_every=2")
    # two hosts in one kernel: one machine, whose counters both would read
    batches = prepared_batches(graph, tmp_path / "batches", 2, 1, "rapidgnn")
    broken = prepared_run(graph, tmp_path / "broken", 2, "train.checkpoint_every=2")
    run_ranks(2, metered, tmp_path / "ranks", [str(whole), str(batches)], str(broken), joined=False)
    for folder in (whole, batches):
        result = read_result(folder / "result.json")
        device, memory = result.energy
        assert (device.part, device.status, device.source) == ("device", "measured", "made up")
        assert (device.host, device.ranks) == (platform.node(), [0, 1])
        trace = pq.read_table(folder / "trace.parquet").to_pandas()
        assert device.duration_s == pytest.approx(trace["ended_s"].max() - trace["issued_s"].min())
        assert device.total_J == pytest.approx(50 * (device.duration_s or 0.0))
        assert result.energy_J == device.total_J
        assert device.mean_power_W == pytest.approx(50)
        assert device.epoch_mean_J == pytest.approx(50 * np.mean(result.epoch_s))
        assert device.sample_s is not None
        apart = min(result.epoch_s) >= 2 * device.sample_s
        assert (device.epoch_min_J is not None, device.epoch_max_J is not None) == (apart, apart)
        assert (memory.part, memory.status, memory.source) == ("memory", "unavailable", "no counter")
        assert memory.total_J is None
    resumed = read_result(broken / "result.json")
    assert (resumed.status, resumed.energy_J) == ("ok", None)
    assert resumed.energy[0].source == "the run was resumed: energy of its first 2 epochs was not kept"
