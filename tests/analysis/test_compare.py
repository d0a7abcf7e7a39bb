"""Comparisons of made-up run directories: errors by hand, faults told."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from programs import chunked_epoch
from programs.test_simulated import machine_for

from simgnn.analysis.compare import compare_runs
from simgnn.cli.main import invoke
from simgnn.cli.tables.one_result import show_result
from simgnn.errors import ConfigError
from simgnn.program.calendar import Calendar
from simgnn.record.energy import EnergyFigure
from simgnn.record.result import RankTimes, Result, read_result, write_result
from simgnn.record.rundir import (
    OPS_SCHEMA,
    TRACE_SCHEMA,
    TRAFFIC_SCHEMA,
    RunDirectory,
    ops_table,
    read_table,
    write_table,
)
from simgnn.record.summary import Columns, rank_times
from simgnn.record.traffic import Traffic
from simgnn.report.perfetto import write_perfetto
from simgnn.report.results import result_lines
from simgnn.report.text import print_comparison
from simgnn.sim.simulate import simulate
from simgnn.tomlfile import write_toml

OPS = [
    {"op_id": 0, "template": "steady", "op": "forward/1/update", "kind": "transform", "stream": "compute"},
    {"op_id": 1, "template": "steady", "op": "forward/1/exchange", "kind": "exchange", "stream": "comm"},
    {"op_id": 2, "template": "evaluate", "op": "forward/1/exchange", "kind": "exchange", "stream": "comm"},
]


def directory(root: Path, backend: str, compute_s: float, wait_s: float, transfer_s: float, digest: str = "d") -> Path:
    """Two ranks, three epochs; rank 1 waits for rank 0."""
    run = RunDirectory(root)
    root.mkdir()
    rows = []
    for epoch in range(3):
        start = 100.0 * epoch
        for rank in (0, 1):
            busy = compute_s if rank == 0 else compute_s - wait_s
            meet = start + compute_s
            base = {"rank": rank, "epoch": epoch, "step": 0, "collective_bytes": 0, "control_bytes": 0}
            times = {"issued_s": start, "started_s": start, "ended_s": start + busy}
            rows.append({**base, "op_id": 0, **times, "bytes_sent": 0, "messages": 0})
            times = {"issued_s": start + busy, "started_s": meet, "ended_s": meet + transfer_s}
            rows.append({**base, "op_id": 1, **times, "bytes_sent": 800, "messages": 1})
    write_table(pa.Table.from_pylist(rows, schema=TRACE_SCHEMA), run.trace)
    extra = {"layer": 1, "phase": "forward", "category": "compute"}
    write_table(pa.Table.from_pylist([{**op, **extra} for op in OPS], schema=OPS_SCHEMA), run.ops)
    traffic = [{"op_id": 1, "source": s, "target": 1 - s, "messages": 3, "bytes": 2400} for s in (0, 1)]
    if backend == "executor":  # evaluations are run, and not simulated
        traffic.append({"op_id": 2, "source": 0, "target": 1, "messages": 1, "bytes": 800})
    write_table(pa.Table.from_pylist(traffic, schema=TRAFFIC_SCHEMA), run.traffic)
    epoch_s = compute_s + transfer_s
    result = Result(backend=backend, status="ok", name="made up", digest=None, program_digest=digest, seed=0, ranks=2,
                    hosts=1, epochs=3, epoch_s=[epoch_s] * 3, epoch_s_median=epoch_s)  # fmt: skip
    write_result(result, run.result)
    return root


def test_errors_are_split_into_compute_wait_and_transfer(tmp_path: Path) -> None:
    predicted = directory(tmp_path / "sim", "sim", compute_s=3.0, wait_s=1.0, transfer_s=2.0)
    measured = directory(tmp_path / "run", "executor", compute_s=4.0, wait_s=2.0, transfer_s=1.0)
    found = compare_runs(predicted, measured)
    assert found.epochs == 2
    assert found.epoch.predicted_s == pytest.approx(5.0)
    assert found.epoch.error == pytest.approx(0.0)
    compute, wait, transfer = found.parts
    assert (compute.predicted_s, compute.measured_s) == pytest.approx((2.5, 3.0))
    assert (wait.predicted_s, wait.measured_s) == pytest.approx((0.5, 1.0))
    assert (transfer.predicted_s, transfer.measured_s) == pytest.approx((2.0, 1.0))
    assert [kind.kind for kind in found.kinds] == ["exchange", "transform"]
    assert [op.name for op in found.top] == ["forward/1/exchange", "forward/1/update"]
    assert [op.difference_s for op in found.top] == pytest.approx([0.5, -0.5])
    assert (found.bytes_differ, found.messages_differ) == (0, 0)


def test_runs_of_unequal_length_are_compared_by_the_epochs_that_results_tell(tmp_path: Path) -> None:
    """A fraction of a byte of difference is one; a result of an earlier version tells its last epoch, and stays
    readable."""
    runs = [directory(tmp_path / name, name, 3.0, 1.0, 2.0) for name in ("sim", "executor")]
    for run, epochs, sent in zip(runs, (3, 5), (800, 800.25), strict=True):
        path = RunDirectory(run).result
        told = {"epochs": epochs, "payload_epochs": (1, epochs - 2), "bytes_sent": [[0, sent], [800, 0]]}
        write_result(read_result(path).model_copy(update={**told, "messages": [[0, 1], [1, 0]]}), path)
    found = compare_runs(*runs)
    assert (found.bytes_differ, found.messages_differ) == (1, 0)
    assert not [text for text in found.cautions if "earlier version" in text]
    table = json.loads(path.read_text())
    del table["payload_epochs"]
    path.write_text(json.dumps(table))
    assert read_result(path).payload_epochs is None
    told = [text for text in compare_runs(*runs).cautions if "earlier version" in text]
    assert told == [
        "measured: an earlier version wrote the result; as the runs are of unequal length, payload is compared by its "
        "last epoch"
    ]


@pytest.mark.parametrize(
    ("epochs", "name"),
    [
        (None, "traffic between ranks"),
        ((1, 1), "traffic of epoch 2"),
        ((1, 98), "traffic, mean of epochs 2 to 99"),
    ],
)
def test_a_table_says_which_epochs_the_traffic_is_of(
    epochs: tuple[int, int] | None, name: str, tmp_path: Path, capsys
) -> None:
    result = read_result(RunDirectory(directory(tmp_path / "sim", "sim", 3.0, 1.0, 2.0)).result)
    traffic = Traffic(total=[1024.5, 1023.5], payload=[1020.5, 1019.5], control=[4.0, 4.0])
    told = {"payload_epochs": epochs, "traffic": traffic}
    show_result(result.model_copy(update=told), as_json=False, written=None)
    assert f"{name} 2 KiB (1.992 KiB payload, 8 B control)" in " ".join(
        capsys.readouterr().out.replace("│", "").split()
    )


def test_bytes_that_differ_are_counted(tmp_path: Path) -> None:
    predicted = directory(tmp_path / "sim", "sim", 3.0, 1.0, 2.0)
    measured = directory(tmp_path / "run", "executor", 3.0, 1.0, 2.0)
    changed = [{"op_id": 1, "source": 0, "target": 1, "messages": 3, "bytes": 2300}]
    write_table(pa.Table.from_pylist(changed, schema=TRAFFIC_SCHEMA), RunDirectory(measured).traffic)
    found = compare_runs(predicted, measured)
    assert (found.bytes_differ, found.messages_differ) == (100 + 2400, 3)


def test_steps_of_chunks_are_compared_without_those_of_evaluations(tmp_path: Path) -> None:
    """Epochs of unlike steps, of which an op of one name may be in several; evaluations send rows, too."""
    program = chunked_epoch.build(2, 3)
    simulated = simulate(program, machine_for(program), epochs=3, evaluate_every=1)
    ids = [number for number, (template, op) in enumerate(program.ops) if op.name == "gather"]
    evaluating = next(number for number in ids if program.evaluates(program.ops[number][0]))
    sides = directory(tmp_path / "sim", "sim", 3.0, 1.0, 2.0), directory(tmp_path / "run", "executor", 3.0, 1.0, 2.0)
    for side in map(RunDirectory, sides):
        write_table(ops_table(program), side.ops)
        write_table(simulated.trace, side.trace)
        write_table(simulated.traffic_table, side.traffic)

    def changed(op_id: int) -> None:
        row = pa.Table.from_pylist(
            [{"op_id": op_id, "source": 0, "target": 1, "messages": 1, "bytes": 70}], schema=TRAFFIC_SCHEMA
        )
        rest = simulated.traffic_table.filter(pa.compute.not_equal(simulated.traffic_table["op_id"], op_id))
        write_table(pa.concat_tables([rest, row]), RunDirectory(sides[1]).traffic)

    changed(evaluating)
    found = compare_runs(*sides)
    assert (found.bytes_differ, found.ops_unmatched, found.batches_differ) == (0, 0, None)
    assert found.epochs == 2
    trained = sum(simulated.columns["step"] >= 0)
    assert len({op.whole.name for op in found.ops}) == len(found.ops) < trained
    changed(ids[0])
    assert compare_runs(*sides).bytes_differ > 0


def test_energy_of_an_epoch_is_compared_where_both_know_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = directory(tmp_path / "sim", "sim", 3.0, 1.0, 2.0), directory(tmp_path / "run", "executor", 3.0, 1.0, 2.0)
    assert compare_runs(*sides).energy.as_dict()["predicted_unknown"] == "not recorded"
    for folder, joules, status in zip(sides, (44.0, 40.0), ("estimated", "measured"), strict=True):
        own = {"part": "device", "host": "here", "ranks": [0], "status": status, "source": "made up", "total_J": 200.0}
        figures = [EnergyFigure(**own, name=name, epoch_mean_J=joules / 2) for name in ("one", "other")]
        result = read_result(RunDirectory(folder).result)
        write_result(result.model_copy(update={"energy": figures}), RunDirectory(folder).result)
    found = compare_runs(*sides)
    assert (found.energy.predicted_J, found.energy.measured_J, found.energy.error) == pytest.approx((44, 40, 0.1))
    print_comparison(found)
    assert "energy of an epoch: predicted 44 J, measured 40 J, error +10.0 %" in capsys.readouterr().out
    gone = EnergyFigure(part="device", name="one", host=None, ranks=[0], status="unavailable", source="no counters")
    run = RunDirectory(sides[1]).result
    write_result(read_result(run).model_copy(update={"energy": [*figures, gone]}), run)
    found = compare_runs(*sides)
    assert (found.energy.measured_J, found.energy.error, found.energy.measured_unknown) == (None, None, "no counters")
    assert found.as_dict()["energy_of_an_epoch"]["predicted_J"] == 44
    print_comparison(found)
    assert "energy of an epoch: predicted 44 J, measured unknown (no counters)" in capsys.readouterr().out


def test_what_is_exposed_is_never_more_than_all_communication() -> None:
    """One epoch waits for 4 s and one transfers for 4 s: the medians of both are zero, that of their sum is not."""
    waits, moves, begins = np.array([0.0, 4.0, 0.0, 0.0]), np.array([0.0, 0.0, 4.0, 0.0]), 10.0 * np.arange(4)
    zeros = np.zeros(4, np.int64)
    columns = Columns(zeros, np.arange(4), 4, begins, begins + waits, begins + waits + moves, zeros > 0, {})
    (times,) = rank_times(columns, 1, Calendar("steady"))
    assert (times.wait_s, times.comm_total_s) == (0.0, 0.0)
    assert times.comm_exposed_s == times.all_communication_s == 4.0


def test_what_of_the_communication_is_exposed_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = directory(tmp_path / "sim", "sim", 3.0, 1.0, 2.0), directory(tmp_path / "run", "executor", 3.0, 1.0, 2.0)
    found = compare_runs(*sides)
    assert found.communication is found.as_dict()["communication_of_an_epoch"] is None, "results without it"
    print_comparison(found)
    assert "exposed" not in capsys.readouterr().out
    for folder, times in zip(
        sides, (((1.0, 2.0, 0.5), (0.0, 5.0, 1.5)), ((2.0, 2.0, 1.0), (0.0, 6.0, 3.0))), strict=True
    ):
        ranks = [
            RankTimes(compute_s=3.0, wait_s=wait, comm_total_s=moved, comm_exposed_s=bare)
            for wait, moved, bare in times
        ]
        result = read_result(RunDirectory(folder).result).model_copy(update={"per_rank": ranks})
        write_result(result, RunDirectory(folder).result)
    found = compare_runs(*sides)
    told = found.as_dict()["communication_of_an_epoch"]
    both = {
        name: (told[name]["predicted_s"], told[name]["measured_s"]) for name in ("total", "wait", "transfer", "exposed")
    }
    assert both == {"total": (4.0, 5.0), "wait": (0.5, 1.0), "transfer": (3.5, 4.0), "exposed": (1.0, 2.0)}
    assert told["exposed"]["error"] == pytest.approx(-0.5)
    assert (told["predicted_exposed_share"], told["measured_exposed_share"]) == pytest.approx((0.25, 0.4))
    print_comparison(found)
    lines = [" ".join(line.replace("│", "").split()) for line in capsys.readouterr().out.splitlines()]
    for line in (
        "waiting and transfers 4 s 5 s -1 s -20.0 %", "exposed: no op computes 1 s 2 s -1 s -50.0 %",
        "exposed share 25.0 % 40.0 %",
    ):  # fmt: skip
        assert line in lines
    printed = dict(result_lines(result))
    assert printed["communicating while nothing computes, slowest rank"] == "3 s"
    assert printed["waiting and communicating in all, the same rank"] == "6 s"


def test_ops_of_one_side_alone_are_told(tmp_path: Path) -> None:
    predicted = directory(tmp_path / "sim", "sim", 3.0, 1.0, 2.0)
    measured = directory(tmp_path / "run", "executor", 3.0, 1.0, 2.0)
    run = RunDirectory(measured)
    rows = read_table(run.trace).to_pylist()
    # of rank 1 the exchange of the last epoch, and of the first, which is not compared
    kept = [row for row in rows if not (row["rank"] == row["op_id"] == 1 and row["epoch"] != 1)]
    write_table(pa.Table.from_pylist(kept, schema=TRACE_SCHEMA), run.trace)
    found = compare_runs(predicted, measured)
    assert found.ops_unmatched == found.as_dict()["ops_unmatched"] == 1
    assert found.cautions[0].startswith("1 ops of these epochs ran on one side only")
    assert compare_runs(predicted, predicted).ops_unmatched == 0


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    predicted = directory(tmp_path / "sim", "sim", 3.0, 1.0, 2.0)
    measured = directory(tmp_path / "run", "executor", 3.0, 1.0, 2.0)
    other = directory(tmp_path / "other", "executor", 3.0, 1.0, 2.0, digest="e")
    for pair, message in (
        ((measured, predicted), "Give the prediction first"),
        ((predicted, other), "different programs"),
        ((predicted, tmp_path / "nowhere"), "no result at"),
    ):
        with pytest.raises(ConfigError, match=message):
            compare_runs(*pair)


def test_perfetto_shows_a_process_a_rank_and_a_track_a_stream(tmp_path: Path) -> None:
    import json

    predicted = directory(tmp_path / "sim", "sim", 3.0, 1.0, 2.0)
    measured = directory(tmp_path / "run", "executor", 4.0, 2.0, 1.0)
    write_perfetto({"predicted": predicted, "measured": measured}, tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    named = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert named == {f"{label} rank {rank}" for label in ("predicted", "measured") for rank in (0, 1)}
    tracks = [event for event in events if event["name"] == "thread_name"]
    assert len(tracks) == 4 * 2
    spans = [event for event in events if event["ph"] == "X"]
    assert min(event["dur"] for event in spans) >= 0
    assert sum(event["name"] == "wait" for event in spans) == 2 * 3
    rates = [event["args"]["bytes/s"] for event in events if event["ph"] == "C"]
    assert max(rates) == pytest.approx(800 / 1.0)
    assert rates[-1] == 0


@pytest.mark.parametrize(("backend", "word"), [("sim", "predicted"), ("executor", "measured")])
def test_two_of_one_kind_are_named_by_what_they_are(
    backend: str, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = directory(tmp_path / "one", backend, 3.0, 1.0, 2.0)
    two = directory(tmp_path / "two", backend, 4.0, 2.0, 1.0)
    found = compare_runs(one, two)
    assert found.sides == (f"{word} A", f"{word} B")
    assert found.interval is None
    told = json.dumps(found.as_dict())
    assert found.as_dict()["backends"] == [backend, backend]
    assert found.as_dict()["epoch"]["first_s"] == pytest.approx(5.0)
    assert "predicted" not in told
    assert "measured" not in told
    other = {"predicted": "measured", "measured": "predicted"}[word]
    assert invoke(["compare", str(one), str(two)]) == 0
    assert other not in capsys.readouterr().out


def described(root: Path, profile: str, hosts: int = 1, rate: int = 1) -> None:
    write_toml(RunDirectory(root).hardware, {"meta": {"name": profile}, "rate": rate})
    write_toml(RunDirectory(root).experiment, {"cluster": {"hosts": hosts, "ranks_per_host": 2 // hosts}})


def test_cautions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predicted = directory(tmp_path / "sim", "sim", 3.0, 1.0, 2.0)
    measured = directory(tmp_path / "run", "executor", 3.0, 1.0, 2.0)
    assert "not known" in compare_runs(predicted, measured).cautions[0]
    for root in (predicted, measured):
        described(root, "here")
    assert compare_runs(predicted, measured).cautions == ()
    described(predicted, "here", rate=2)
    assert "other numbers" in compare_runs(predicted, measured).cautions[0]
    described(predicted, "there", hosts=2)
    result = read_result(RunDirectory(predicted).result)
    notes = {
        "uncalibrated": True,
        "hardware": "there",
        "extrapolated": ["spmm"],
        "notes": ["3 numbers are assumed [x]"],
    }
    write_result(result.model_copy(update=notes), RunDirectory(predicted).result)
    told = "\n".join(compare_runs(predicted, measured).cautions)
    for part in (
        "predicted: uncalibrated",
        "predicted: sizes beyond the calibration: 1 ops",
        "predicted: 3 numbers are assumed [x]",
        "predicted for the hardware profile 'there', but the run's is 'here'",
        "hosts 2 predicted, 1 in the run",
        "ranks per host 1 predicted, 2 in the run",
    ):
        assert part in told
    capsys.readouterr()
    assert invoke(["compare", str(predicted), str(measured), "--json"]) == 0
    assert "\n".join(json.loads(capsys.readouterr().out)["cautions"]) == told
    assert invoke(["compare", str(predicted), str(measured)]) == 0
    assert "caution: predicted: 3 numbers are assumed [x]" in " ".join(capsys.readouterr().out.split())


def test_the_trace_of_two_runs_goes_to_a_new_folder(tmp_path: Path) -> None:
    runs = [str(directory(tmp_path / name, "executor", 3.0, 1.0, 2.0)) for name in ("one", "two")]
    trace = tmp_path / "new" / "folder" / "both.json"
    assert invoke(["compare", *runs, "--trace", str(trace)]) == 0
    events = json.loads(trace.read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {f"measured {side} rank {rank}" for side in "AB" for rank in (0, 1)}
