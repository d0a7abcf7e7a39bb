"""Batches that are staged over the end of an epoch: as far in a run as in its simulation, whenever what was noted is
written."""

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from executor.recording.side_records import LossRecorder
from executor.recording.trace import Recorder
from executor.state.plan import RunPlan
from simgnn.program.drain_points import Stops
from simgnn.program.program import Program
from simgnn.record.rundir import RunDirectory
from tests.executor.harness import run_ranks
from tests.executor.minibatch.batch_runs import prepared_batches
from tests.executor.runs import small_graph, train_in_process
from tests.sim.worlds import machine
from tests.sim.worlds import run as simulate_exactly

EPOCHS, WINDOW, SPAN = 5, 4, 2
STOPS = Stops(EPOCHS, evaluate_every=EPOCHS, checkpoint_every=3)
OPTIONS = ["placement.hot_rows=6", f"schedule.window={WINDOW}", f"train.epochs={EPOCHS}", "train.checkpoint_every=3"]
PATIENCE_S = 30.0
STAGED, RELEASED = "rows/stage", "backward/1/prepare"


def _train_slowly(rank: int, ranks: int, folder: str, plain: str) -> list[dict[str, Any]]:
    """``folder`` with a short span, the loss of each epoch's last step held up until all is staged that may be;
    ``plain`` as it comes."""
    program = RunPlan.open(Path(folder)).program
    steps = program.calendar.steps
    add, note = Recorder.add, LossRecorder.note
    changed, staged = threading.Condition(), [0]

    def noted(self: Recorder, now: Any, op_id: int, *others: Any) -> None:
        add(self, now, op_id, *others)
        if program.ops[op_id][1].name == STAGED:
            with changed:
                staged[0] += 1
                changed.notify_all()

    def held(self: LossRecorder, now: Any, metrics: Any) -> None:
        if now.step == steps - 1:
            last = (now.epoch + 1 if STOPS.after(now.epoch + 1) else EPOCHS) * steps
            with changed:
                all_there = changed.wait_for(lambda: staged[0] >= min(now.count + WINDOW, last), PATIENCE_S)
            assert all_there, f"{staged[0]} batches were staged at turn {now.count}"
        note(self, now, metrics)

    Recorder.add, LossRecorder.note = noted, held  # type: ignore[method-assign, assignment]
    results = train_in_process(rank, ranks, [folder], span=SPAN)
    Recorder.add, LossRecorder.note = add, note  # type: ignore[method-assign]
    return results + train_in_process(rank, ranks, [plain])


def _ahead(program: Program, trace: pa.Table) -> list[list[int]]:
    """Batches of later epochs that each rank had staged when the last batch of each epoch but the last was trained."""
    names, steps = [op.name for _, op in program.ops], program.calendar.steps
    staged: dict[int, list[float]] = {rank: [] for rank in range(program.ranks)}
    released: dict[tuple[int, int], float] = {}
    for row in trace.to_pylist():
        if names[row["op_id"]] == STAGED:
            staged[row["rank"]].append(row["ended_s"])
        if names[row["op_id"]] == RELEASED and row["step"] == steps - 1:
            released[row["rank"], row["epoch"]] = row["ended_s"]
    assert all(len(times) == EPOCHS * steps for times in staged.values())
    return [
        [
            sum(time < released[rank, epoch] for time in staged[rank]) - (epoch + 1) * steps
            for epoch in range(EPOCHS - 1)
        ]
        for rank in range(program.ranks)
    ]


def test_a_run_stages_over_the_ends_of_epochs_where_its_simulation_does(tmp_path: Path) -> None:
    graph = small_graph(120, seed=3)
    across, plain = (
        prepared_batches(graph, tmp_path / name, 2, 1, "rapidgnn", *OPTIONS, f"schedule.across_epochs={name}")
        for name in ("true", "false")
    )
    results = run_ranks(2, _train_slowly, tmp_path / "ranks", str(across), str(plain), joined=False)
    for held, expected in results:
        assert held["losses"] == expected["losses"]
        assert held["parameters"].equal(expected["parameters"])
    program = RunPlan.open(across).program
    assert program.calendar.steps > SPAN
    slow = machine(list(program.hosts), kind="cpu", cores=64, threads=1, ethernet=1e12)
    simulated = simulate_exactly(program, slow, EPOCHS, evaluate_every=EPOCHS, stops=STOPS)
    found = _ahead(program, pq.read_table(RunDirectory(across).trace))
    assert found == _ahead(program, simulated.trace)
    assert found == 2 * [[0, WINDOW - 1, 0, WINDOW - 1]]
