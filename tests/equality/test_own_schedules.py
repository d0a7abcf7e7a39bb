"""Schedules of a user's own on the full graph: the same losses to the last bit, in another order, in both backends."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from executor.rank.interpreter import Interpreter
from simgnn.errors import BackendError
from simgnn.policy import Schedule
from simgnn.program.calendar import Calendar
from simgnn.program.dispatch import Observed, Ready
from simgnn.program.drain_points import ranks_in_turn
from simgnn.program.kinds import COMPUTE_KINDS, OpKind
from simgnn.program.ops import Buffer, Dependency, Guard, Op, Stream
from simgnn.program.program import Program
from simgnn.program.sizes import Decision
from simgnn.program.storage import load_program
from simgnn.record.rundir import RunDirectory, read_table
from simgnn.sim.engine.driver import Engine
from simgnn.sim.simulate import Simulation, simulate
from tests.equality.block_runs import told
from tests.equality.counting import differences
from tests.equality.own_schedules import Aside, ByRows, InOrder
from tests.executor.harness import Notes, acting, reads, run_ranks, tiny_program, world_context
from tests.executor.runs import prepared_run, small_graph, train_in_process
from tests.sim.worlds import machine, seconds_of_work

EPOCHS = 5
CASES = {
    "halo": ["model.kind=sage", "model.layers=3", "train.eval_every=2"],
    "cached replicas": [
        "partition.kind=ebv", "communication.kind=master-mirror", "freshness.kind=adaptive-vertex",
        "freshness.epsilon=0.05", "codec.kind=linear",
    ],
    "blocks": ["communication.kind=block-broadcast", "communication.blocks_ahead=1", "model.order=aggregate-first"],
}  # fmt: skip


def _simulated(program: Program) -> Simulation:
    """On a network whose every call takes long."""
    return simulate(program, machine((0, 0), floor=0.05), epochs=EPOCHS, evaluate_every=2)


def _spans(found: Simulation, rank: int, epoch: int) -> list[tuple[float, float, Op]]:
    """(start, end, op) of the ops of a rank in the training of an epoch."""
    columns = found.columns
    chosen = (columns["rank"] == rank) & (columns["epoch"] == epoch) & (columns["step"] >= 0)
    ops = [found.program.ops[op_id][1] for op_id in columns["op_id"][chosen]]
    return sorted(
        zip(columns["issued_s"][chosen], columns["ended_s"][chosen], ops, strict=True), key=lambda span: span[:2]
    )


def test_losses_are_those_of_bsp_to_the_last_bit(tmp_path: Path) -> None:
    graph = small_graph()
    found: dict[str, Any] = {}
    for name, schedule in {"bsp": None, "aside": Aside(), "in-order": InOrder()}.items():
        folders = [
            str(prepared_run(graph, tmp_path / f"{place}-{name}", 2, *settings, schedule=schedule))
            for place, settings in enumerate(CASES.values())
        ]
        found[name] = run_ranks(2, train_in_process, tmp_path / f"ranks-{name}", folders, joined=False)
    for rank in range(2):
        for case, (plain, *others) in zip(CASES, zip(*(found[name][rank] for name in found), strict=True), strict=True):
            for other in others:
                assert other["losses"] == plain["losses"], case
                assert other["evaluations"] == plain["evaluations"], case
                assert torch.equal(other["parameters"], plain["parameters"]), case
        assert not found["aside"][rank][0]["serial"], "no stream has a thread of its own"
    simulated = _simulated(load_program(tmp_path / "0-aside" / "plan"))
    executed = told(read_table(RunDirectory(tmp_path / "0-aside").trace))
    assert not differences(told(simulated.trace), executed)


def test_control_messages_travel_beside_the_backward_pass(tmp_path: Path) -> None:
    programs = [
        load_program(prepared_run(small_graph(), tmp_path / name, 2, *CASES["halo"], schedule=schedule) / "plan")
        for name, schedule in {"bsp": None, "aside": Aside()}.items()
    ]
    assert ranks_in_turn(programs[0]) == (True, True)
    assert programs[1].groups["aside"].backend == "gloo"
    plain, aside = map(_simulated, programs)
    assert np.all(np.array(aside.epoch_s) < np.array(plain.epoch_s) - 0.04)
    assert aside.sum_by_rank("control_bytes").tolist() == plain.sum_by_rank("control_bytes").tolist()
    spans = _spans(aside, 0, 1)
    begin, end = next((begin, end) for begin, end, op in spans if op.stream == "aside")
    beside = [op for start, stop, op in spans if op.kind in COMPUTE_KINDS and start < end and stop > begin]
    assert beside
    assert all(op.phase == "backward" for op in beside)


@pytest.mark.parametrize("schedule", [None, InOrder()])
def test_a_schedule_adds_dependencies(schedule: Schedule | None, tmp_path: Path) -> None:
    folder = prepared_run(small_graph(), tmp_path / "run", 2, *CASES["blocks"], schedule=schedule)
    spans = _spans(_simulated(load_program(folder / "plan")), 0, 1)
    gaps = [later[0] - earlier[1] for earlier, later in pairwise(spans)]
    assert (min(gaps) < -1e-8) == (schedule is None), "a block arrives while another is multiplied"


ROWS, FLAG = "point/forward/rows", "agreed/point/flag"
VALUES = [3, 2, 1, 0, 3, 1]


def _deciding() -> Program:
    """An op decides; of two that wait for it a schedule chooses, and one of the next is guarded."""
    work = seconds_of_work(1.0)
    decide = Op(
        "decide", OpKind.ENCODE, "compute", reads("rows"), reads("kept"), module="decide", action="run", work=work
    )
    after = (Dependency("decide"),)
    ops = [
        decide,
        *(
            Op(name, OpKind.ENCODE, "compute", reads("kept"), reads(f"out/{name}"), after, work, module="same",
               action="run", guard=Guard(FLAG) if name == "middle" else None)
            for name in ("left", "middle", "right")
        ),
    ]  # fmt: skip
    buffers = [
        Buffer("rows", 4, 1, persistent=True), Buffer("kept", Decision(ROWS, 4), 1),
        *(Buffer(f"out/{name}", 4, 1) for name in ("left", "middle", "right")),
    ]  # fmt: skip
    return tiny_program(
        1, {"steady": ops}, buffers, streams=[Stream("compute")], groups=[], calendar=Calendar("steady")
    )


def _executed(program: Program, schedule: ByRows) -> tuple[list[str], Any]:
    def decide(at: Any, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        context.decisions.update({ROWS: VALUES[at.epoch], FLAG: at.epoch % 2})
        return (rows[: VALUES[at.epoch]],)

    policies = {"decide": acting(run=decide), "same": acting(run=lambda at, rows: (rows,))}
    context = world_context(program, 0, {"rows": torch.ones(4, 1)}, policies=policies)
    notes = Notes()
    interpreter = Interpreter(program, context, notes, schedule=schedule)
    interpreter.train(range(len(VALUES)))
    interpreter.close()
    assert interpreter._lanes is not None
    return [program.ops[row[1]][1].name for row in notes.rows], interpreter._lanes._dispatcher.lanes["compute"].state


def _predicted(program: Program, schedule: ByRows, monkeypatch: pytest.MonkeyPatch) -> tuple[Sequence[str], Any]:
    engines: list[Engine] = []
    run = Engine.run
    monkeypatch.setattr(Engine, "run", lambda engine: (engines.append(engine), run(engine)))
    epochs = len(VALUES)
    activity = {ROWS: np.array(VALUES).reshape(1, epochs, 1), FLAG: (np.arange(epochs) % 2).reshape(1, epochs, 1)}
    found = simulate(program, machine((0,)), epochs=epochs, activity=activity, schedule=schedule)
    order = np.argsort(found.columns["issued_s"], kind="stable")
    names = [program.ops[op_id][1].name for op_id in found.columns["op_id"][order]]
    return names, engines[0].dispatchers[0].lanes["compute"].state


def test_both_backends_see_the_same_decisions_at_the_same_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    program, schedule = _deciding(), ByRows(decision=ROWS)
    executed, seen = _executed(program, schedule)
    predicted, expected = _predicted(program, schedule, monkeypatch)
    assert executed == predicted
    assert seen == expected
    first = [executed[executed.index("decide", at) + 1] for at in np.flatnonzero(np.array(executed) == "decide")]
    assert first == ["right" if value % 2 else "left" for value in VALUES]
    decisions = [known for _, known, _, _ in seen]
    assert decisions[0] == {}, "nothing has ended"
    assert decisions[1] == {ROWS: VALUES[0]}, "no op has been guarded yet"
    assert any(FLAG in known for known in decisions)


class OutOfRange(Schedule):
    """Chooses an op that is not ready."""

    kind: Literal["out-of-range"] = "out-of-range"
    position: int

    def pick(self, ready: Sequence[Ready], observed: Observed, state: Any) -> tuple[int, Any]:
        """A position that there is not."""
        return self.position, state


@pytest.mark.parametrize("position", [99, -1])
def test_a_choice_that_is_not_ready_is_reported_with_the_class(position: int) -> None:
    activity = {ROWS: np.full((1, 2, 1), 2), FLAG: np.ones((1, 2, 1), dtype=np.int64)}
    with pytest.raises(
        BackendError, match=rf"OutOfRange\.pick returned \({position}, None\), expected a position 0 to"
    ):
        simulate(_deciding(), machine((0,)), epochs=2, activity=activity, schedule=OutOfRange(position=position))
