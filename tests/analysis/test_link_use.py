"""Counters of link use: what flows over a link adds up to the bytes that crossed it."""

import json
from pathlib import Path

import numpy as np
import pytest

from simgnn.cli.main import invoke
from simgnn.record.rundir import RunDirectory, read_table
from simgnn.report.perfetto import link_use

PROFILE = Path(__file__).resolve().parent.parent / "hardware" / "data" / "invented-8x8.toml"


@pytest.fixture(scope="module")
def prediction(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("links") / "sim"
    sets = ["graph.vertices=600", "graph.edges=4000", "cluster.hosts=2", "cluster.ranks_per_host=2", "train.epochs=3"]
    options = [word for text in sets for word in ("--set", text)]
    assert invoke(["simulate", "vanilla", *options, "--hardware", str(PROFILE), "--out", str(out)]) == 0
    return out


def test_the_area_under_each_counter_is_the_bytes_that_crossed(prediction: Path) -> None:
    use = link_use(RunDirectory(prediction))
    trace = read_table(RunDirectory(prediction).trace).to_pandas()
    total = trace.groupby("rank")["bytes_sent"].sum()
    area = {name: float(np.sum(levels[:-1] * np.diff(times))) for name, (times, levels) in use.items()}
    for rank in range(4):
        send = next(name for name in area if name.startswith(f"rank {rank} ") and name.endswith("send"))
        assert area[send] == pytest.approx(total[rank], rel=1e-6)
    assert all(levels[-1] == 0 and levels.min() >= 0 for _, levels in use.values())


def test_the_trace_of_a_prediction_has_a_counter_for_each_link(prediction: Path) -> None:
    events = json.loads((prediction / "trace.perfetto.json").read_text())["traceEvents"]
    processes = {event["args"]["name"]: event["pid"] for event in events if event["name"] == "process_name"}
    counters = {
        event["name"] for event in events if event["ph"] == "C" and event["pid"] == processes["predicted links"]
    }
    assert counters == set(link_use(RunDirectory(prediction)))
