"""The two ways of starting a run, and what a finished run directory holds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from executor.recording.report import collective_starts, merge_trace
from executor.recording.trace import Recorder, read_part
from executor.state.plan import RunPlan
from executor.world.machines import one_machine_notes
from executor.world.member import choose_device
from simgnn.errors import BackendError, ConfigError
from simgnn.record.result import read_result
from simgnn.record.rundir import TRACE_SCHEMA, TRAFFIC_SCHEMA
from tests.executor.runs import prepared_run, small_graph

SETTINGS = ["train.epochs=6", "train.eval_every=2"]


def _run(command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)


@pytest.mark.slow
def test_the_launcher_and_torchrun_give_the_same_run(tmp_path: Path) -> None:
    graph = small_graph()
    alone, under = (prepared_run(graph, tmp_path / name, 2, *SETTINGS, hosts=2) for name in ("alone", "torchrun"))
    first = _run([sys.executable, "-m", "executor", "run", str(alone)])
    assert first.returncode == 0, first.stderr
    assert "epoch 6/6: loss" in first.stdout
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    second = _run([*launcher, "-m", "executor", "run", str(under)])
    assert second.returncode == 0, second.stderr
    results = [read_result(folder / "result.json") for folder in (alone, under)]
    assert results[0].loss == results[1].loss
    assert results[0].accuracy == results[1].accuracy
    assert results[0].bytes_sent == results[1].bytes_sent
    for result in results:
        assert (result.hosts, result.environment["hosts_found"]) == (2, 1)
        assert result.notes == one_machine_notes((0, 1), (0, 0))
        assert result.notes[0] in result.qualifications(), "it is printed with the result"
    _check_tables(alone)
    before = (alone / "trace.parquet").read_bytes()
    again = _run([sys.executable, "-m", "executor", "run", str(alone)])
    assert again.returncode == 2
    assert "finished run" in again.stderr
    assert (alone / "trace.parquet").read_bytes() == before


def _check_tables(folder: Path) -> None:
    result, plan = read_result(folder / "result.json"), RunPlan.open(folder)
    trace = pq.read_table(folder / "trace.parquet")
    assert trace.schema.equals(TRACE_SCHEMA)
    frame = trace.to_pandas()
    assert (frame["issued_s"] <= frame["started_s"]).all()
    assert (frame["started_s"] <= frame["ended_s"]).all()
    assert frame["issued_s"].min() >= 0
    assert sorted(frame[frame["step"] == -1]["epoch"].unique()) == [1, 3, 5], "evaluated after every second epoch"
    assert result.status == "ok"
    assert len(result.epoch_s) == 6
    assert result.accuracy is not None
    assert [entry.epoch for entry in result.accuracy] == [2, 4, 6]
    assert result.peak_memory_bytes is not None
    # what the transport was handed is what the program says
    program = plan.program
    sent = np.zeros((2, 2), dtype=np.int64)
    for op in program.templates["steady"].ops:
        if op.route is not None and op.transfer is not None:
            sent += program.sizes.routes[op.route].matrix(2) * op.transfer.row_bytes
    assert result.bytes_sent == sent.tolist()
    traffic = pq.read_table(folder / "traffic.parquet")
    assert traffic.schema.equals(TRAFFIC_SCHEMA)
    assert traffic["bytes"].to_numpy().sum() == frame["bytes_sent"].sum()
    assert traffic["messages"].to_numpy().sum() == frame["messages"].sum()


def test_hosts_that_were_one_machine_are_told() -> None:
    assert one_machine_notes((0, 0, 1, 1), (0, 0, 1, 1)) == []
    assert one_machine_notes((0, 0), (0, 0)) == []
    (both,) = one_machine_notes((0, 1), (0, 0))
    assert both.startswith("one machine stood for all 2 hosts: ")
    assert "loopback" in both
    (some,) = one_machine_notes((0, 1, 2), (0, 0, 1))
    assert some.startswith("one machine stood for hosts 0, 1 of 3: ")
    assert len(one_machine_notes((0, 1, 2, 3), (0, 0, 1, 1))) == 2


def test_the_wrong_number_of_processes_is_refused(tmp_path: Path) -> None:
    folder = prepared_run(small_graph(), tmp_path / "run", 2)
    done = _run([sys.executable, "-m", "executor", "run", str(folder)], RANK="0", WORLD_SIZE="1")
    assert done.returncode == 2
    assert "prepared for 2 ranks, 1 were started" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_device_that_is_not_there_is_refused() -> None:
    assert choose_device("cpu", 0, 1).type == "cpu"
    with pytest.raises(ConfigError, match="expected auto, cpu or cuda"):
        choose_device("tpu", 0, 1)
    if not torch.cuda.is_available():
        with pytest.raises(BackendError, match="2 ranks on this host, but 0 GPUs"):
            choose_device("cuda", 0, 2)


def test_a_collective_starts_with_its_last_member(tmp_path: Path) -> None:
    program = RunPlan.open(prepared_run(small_graph(), tmp_path / "run", 2)).program
    ids = program.op_ids
    exchange, update = ids["steady", "forward/2/exchange"], ids["steady", "forward/1/update"]
    ranks, ops = np.array([0, 1, 0, 1]), np.array([exchange, exchange, update, update])
    times = np.array([1.0, 3.0, 0.5, 0.7])
    zero = np.zeros(4, dtype=np.int32)
    trace = {"rank": ranks, "epoch": zero, "step": zero, "op_id": ops, "issued_s": times, "ended_s": times + 5}
    trace["started_s"] = times
    starts = collective_starts(program, trace)
    assert starts.tolist() == [3.0, 3.0, 0.5, 0.7]
    # a member that left before the last one came
    starts = collective_starts(program, trace | {"ended_s": np.array([2.0, 9.0, 1.0, 1.0])})
    assert starts.tolist() == [2.0, 3.0, 0.5, 0.7]


def test_a_trace_that_breaks_off_keeps_its_whole_batches(tmp_path: Path) -> None:
    from executor.state.buffers import Now
    from executor.state.context import Sent

    path = tmp_path / "rank-0.arrow"
    recorder = Recorder(path, 0, torch.device("cpu"), start_epoch=4)
    recorder.start(0.0)
    for epoch in range(3):
        for op_id in range(5):
            recorder.add(Now(epoch, 0, epoch), op_id, 1.0, 2.0, Sent(1, 2, 3, 4))
        recorder.flush()
    whole, start = read_part(path)
    assert (len(whole), start) == (15, 4)
    raw = path.read_bytes()
    path.write_bytes(raw[:-40])
    assert len(read_part(path)[0]) == 10
    path.write_bytes(b"")
    assert len(read_part(path)[0]) == 0


def test_a_run_without_a_trace_merges_to_nothing(tmp_path: Path) -> None:
    program = RunPlan.open(prepared_run(small_graph(), tmp_path / "run", 2)).program
    assert merge_trace(tmp_path, program).num_rows == 0


def test_a_plan_of_a_simulation_cannot_be_run(tmp_path: Path) -> None:
    folder = prepared_run(small_graph(), tmp_path / "run", 2)
    path = folder / "plan" / "plan.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "shards": None}))
    with pytest.raises(ConfigError, match="plan of a simulation"):
        RunPlan.open(folder)
