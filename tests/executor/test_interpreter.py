"""The driver loop: order does not matter to results, streams run ahead, rings turn, guards skip, buffers are freed."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executor.handlers import HANDLERS
from executor.rank.interpreter import Interpreter
from executor.state.buffers import Now
from simgnn.errors import BackendError
from simgnn.program.calendar import Calendar
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Access, Buffer, Dependency, Group, Guard, Op, Stream
from simgnn.program.program import Program
from tests.executor.harness import Notes, acting, reads, run_ranks, tiny_program, world_context
from tests.executor.runs import prepared_run, small_graph, train_in_process
from tests.executor.schedules import SeededRandom

CASES = {
    "sage": ["model.kind=sage", "model.layers=3", "train.eval_every=2"],
    "gcn": ["communication.resend_inputs=true", "model.order=transform-first"],
}


@pytest.mark.slow
def test_any_topological_order_gives_the_same_bits(tmp_path: Path) -> None:
    folders = [str(prepared_run(small_graph(), tmp_path / name, 2, *settings)) for name, settings in CASES.items()]
    serial = run_ranks(2, train_in_process, tmp_path / "serial", folders, joined=False)
    for seed in (1, 2):
        shuffled = run_ranks(2, train_in_process, tmp_path / f"seed-{seed}", folders, seed, joined=False)
        for rank in range(2):
            for expected, got in zip(serial[rank], shuffled[rank], strict=True):
                assert expected["serial"]
                assert not got["serial"]
                assert got["losses"] == expected["losses"]
                assert got["evaluations"] == expected["evaluations"]
                assert torch.equal(got["parameters"], expected["parameters"])
                assert got["alive"] == expected["alive"]


def _script(function: Callable[..., Any]) -> Any:
    """A policy made of a plain function, for programs that compute nothing real."""
    return acting(run=lambda context, *read: (function(context, *read),))


def _prefetch(depth: int) -> Program:
    """Loads run up to ``depth`` steps ahead of the use of their slots."""
    slot = Buffer("slot", 1, 1, depth=depth, ring="step")
    load = Op("load", OpKind.ENCODE, "copy_in", (), reads("slot"), module="load", action="run",
              after=(Dependency("load", steps_back=1), Dependency("use", steps_back=depth)))  # fmt: skip
    use = Op("use", OpKind.ENCODE, "compute", reads("slot", "total"), reads("total"), module="use", action="run",
             after=(Dependency("load"), Dependency("use", steps_back=1)))  # fmt: skip
    return tiny_program(
        1, {"steady": [load, use]}, [slot, Buffer("total", 1, 1, persistent=True)],
        streams=[Stream("compute"), Stream("copy_in")], groups=[], calendar=Calendar("steady", steps=5), derived=False,
    )  # fmt: skip


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_ring_lets_loads_run_ahead_and_no_further(depth: int) -> None:
    ahead: list[int] = []
    loaded, used = [0], [0]

    def load(context: Any) -> torch.Tensor:
        loaded[0] += 1
        ahead.append(loaded[0] - used[0])
        return torch.full((1, 1), float(context.epoch * 5 + context.step))

    def use(context: Any, slot: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        time.sleep(0.002)
        assert float(slot) == context.epoch * 5 + context.step, "each step reads its own slot"
        used[0] += 1
        return total * 2 + slot

    program = _prefetch(depth)
    policies = {"load": _script(load), "use": _script(use)}
    context = world_context(program, 0, {"total": torch.zeros(1, 1)}, policies=policies)
    interpreter = Interpreter(program, context, Notes())
    assert interpreter.serial == (depth == 1), "one slot: the two ops take turns"
    interpreter.train(range(2))
    interpreter.train(range(2, 3))
    interpreter.close()
    expected = 0.0
    for count in range(15):
        expected = 2 * expected + count
    total = context.store.values[context.store.slot("total")]
    assert isinstance(total, torch.Tensor)
    assert float(total) == expected
    assert max(ahead) == depth


@pytest.mark.parametrize("depth", [1, 4])
def test_other_streams_go_on_while_this_thread_does_something_else(depth: int) -> None:
    """Every third turn, wherever in an epoch it is: loads go on as far as they may, over the end of an epoch."""
    loaded, used, ahead = [0], [0], list[int]()

    def load(context: Any) -> torch.Tensor:
        loaded[0] += 1
        return torch.zeros(1, 1)

    def use(context: Any, slot: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        used[0] += 1
        return total

    def between() -> None:
        end = time.monotonic() + 10
        while depth > 1 and loaded[0] < min(used[0] + depth, 15) and time.monotonic() < end:
            time.sleep(0.001)
        ahead.append(loaded[0] - used[0])

    program = _prefetch(depth)
    context = world_context(
        program, 0, {"total": torch.zeros(1, 1)}, policies={"load": _script(load), "use": _script(use)}
    )
    interpreter = Interpreter(program, context, Notes())
    interpreter.train(range(3), between, 3)
    interpreter.close()
    assert loaded == used == [15]
    assert ahead == ([0] * 5 if depth == 1 else [4, 4, 4, 3, 0])


@pytest.mark.parametrize("depth", [1, 4])
def test_another_record_gets_the_ops_that_end_from_then_on(depth: int) -> None:
    """Also of streams in threads of their own: memory is measured whenever an op ends."""
    program, first, second = _prefetch(depth), Notes(), Notes()
    same = {name: _script(lambda context, *rows: torch.zeros(1, 1)) for name in ("load", "use")}
    interpreter = Interpreter(program, world_context(program, 0, {"total": torch.zeros(1, 1)}, policies=same), first)
    interpreter.train(range(1))
    interpreter.note_in(second)
    interpreter.train(range(1, 3))
    interpreter.note_in(first)
    interpreter.train(range(3, 4))
    interpreter.close()
    assert interpreter.serial == (depth == 1)
    assert [len(notes.rows) for notes in (first, second)] == [20, 20]
    assert {now.epoch for now, *_ in second.rows} == {1, 2}


def test_a_fault_of_what_is_done_between_turns_ends_the_run() -> None:
    def full() -> None:
        raise OSError("no space left")

    same = {name: _script(lambda context, *rows: torch.zeros(1, 1)) for name in ("load", "use")}
    program = _prefetch(2)
    context = world_context(program, 0, {"total": torch.zeros(1, 1)}, policies=same)
    interpreter = Interpreter(program, context, Notes())
    with pytest.raises(OSError, match="no space left"):
        interpreter.train(range(1000), full, 3)
    interpreter.close()


def test_streams_overlap() -> None:
    """Two ops that meet each other end only when both streams run at once."""
    meeting = threading.Barrier(2, timeout=10)

    def meet(context: Any) -> torch.Tensor:
        meeting.wait()
        return torch.zeros(1, 1)

    ops = [Op(name, OpKind.ENCODE, stream, (), reads(name), module="meet", action="run") for name, stream in
           (("a", "compute"), ("b", "cpu"))]  # fmt: skip
    program = tiny_program(
        1,
        {"steady": ops},
        [Buffer("a", 1, 1), Buffer("b", 1, 1)],
        streams=[Stream("compute"), Stream("cpu")],
        groups=[],
    )
    interpreter = Interpreter(program, world_context(program, 0, policies={"meet": _script(meet)}), Notes())
    interpreter.train(range(3))
    interpreter.close()


def test_a_stream_with_two_servers_runs_two_ops_at_once() -> None:
    meeting = threading.Barrier(2, timeout=10)

    def meet(context: Any) -> torch.Tensor:
        meeting.wait()
        return torch.zeros(1, 1)

    ops = [Op(name, OpKind.ENCODE, "cpu", (), reads(name), module="meet", action="run") for name in ("a", "b")]
    program = tiny_program(
        1, {"steady": ops}, [Buffer("a", 1, 1), Buffer("b", 1, 1)], streams=[Stream("cpu", servers=2)], groups=[]
    )
    interpreter = Interpreter(program, world_context(program, 0, policies={"meet": _script(meet)}), Notes())
    interpreter.train(range(2))
    interpreter.close()


@pytest.mark.parametrize("seed", [None, 3])
def test_a_guard_skips_its_op(seed: int | None) -> None:
    seen: list[int] = []

    def send(context: Any, rows: torch.Tensor) -> torch.Tensor:
        seen.append(context.epoch)
        return rows

    program = tiny_program(
        1,
        {"steady": [Op("send", OpKind.ENCODE, "compute", reads("rows"), reads("sent"), module="send", action="run",
                       guard=Guard("changed"))]},
        [Buffer("rows", 1, 1, persistent=True), Buffer("sent", 1, 1, persistent=True)],
    )  # fmt: skip
    context = world_context(program, 0, {"rows": torch.ones(1, 1)}, policies={"send": _script(send)})
    notes = Notes()
    interpreter = Interpreter(program, context, notes, schedule=None if seed is None else SeededRandom(seed))
    for epoch in range(4):
        context.decisions["changed"] = epoch % 2
        interpreter.train(range(epoch, epoch + 1))
    interpreter.close()
    assert seen == [1, 3]
    assert len(notes.rows) == 2


def test_a_stale_ring_reads_zeros_before_the_run_and_the_epoch_before_afterwards() -> None:
    seen: list[float] = []

    def look(context: Any, stale: torch.Tensor) -> torch.Tensor:
        seen.append(float(stale.sum()))
        return stale

    halo = Buffer("halo", 2, 3, depth=2, ring="epoch")
    write = Op("write", OpKind.ENCODE, "compute", (), reads("halo"), module="write", action="run")
    read = Op("read", OpKind.ENCODE, "compute", (Access("halo", epochs_back=1),), reads("seen"), module="look",
              action="run", after=(Dependency("write"),))  # fmt: skip
    program = tiny_program(
        1,
        {"steady": [write, read]},
        [halo, Buffer("seen", 2, 3)],
        streams=[Stream("compute")],
        groups=[],
        derived=False,
    )
    policies = {"look": _script(look), "write": _script(lambda context: torch.full((2, 3), context.epoch + 1.0))}
    Interpreter(program, world_context(program, 0, policies=policies), Notes()).train(range(4))
    assert seen == [0.0, 6.0, 12.0, 18.0]


@pytest.mark.parametrize("seed", [None, 5])
def test_an_error_tells_rank_epoch_and_op(seed: int | None) -> None:
    def fail(context: Any, rows: torch.Tensor) -> torch.Tensor:
        if context.epoch == 2:
            raise ValueError("no such row")
        return rows

    program = tiny_program(
        1,
        {"steady": [Op("pack", OpKind.ENCODE, "compute", reads("rows"), reads("sent"), module="fail", action="run")]},
        [Buffer("rows", 1, 1, persistent=True), Buffer("sent", 1, 1)],
    )  # fmt: skip
    context = world_context(program, 0, {"rows": torch.ones(1, 1)}, policies={"fail": _script(fail)})
    interpreter = Interpreter(program, context, Notes(), schedule=None if seed is None else SeededRandom(seed))
    with pytest.raises(BackendError, match="rank 0, epoch 3, op 'pack': ValueError: no such row"):
        interpreter.train(range(5))
    interpreter.close()


@pytest.mark.parametrize("seed", [None, 7])
def test_buffers_die_with_their_last_reader(seed: int | None) -> None:
    same = _script(lambda context, *rows: rows[0] + 1)
    chain = ("a", "b", "c", "d")
    ops = [
        Op(f"to-{second}", OpKind.ENCODE, "compute", reads(first), reads(second), module="same", action="run")
        for first, second in zip(("rows", *chain), chain, strict=False)
    ]
    program = tiny_program(
        1, {"steady": ops}, [Buffer("rows", 1, 1, persistent=True), *(Buffer(n, 1, 1) for n in chain)]
    )
    context = world_context(program, 0, {"rows": torch.ones(1, 1)}, policies={"same": same})
    interpreter = Interpreter(program, context, Notes(), schedule=None if seed is None else SeededRandom(seed))
    interpreter.train(range(2))
    interpreter.close()
    alive = [value for value in context.store.values if value is not None]
    assert len(alive) == 1


@pytest.mark.alone
def test_driving_an_op_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's own share: 100 ops that do nothing. The bound is generous, for a loaded machine."""
    monkeypatch.setitem(HANDLERS, OpKind.BARRIER, lambda op, template, context: lambda now: None)
    ops = [Op(f"op-{k}", OpKind.BARRIER, "comm") for k in range(100)]
    program = tiny_program(1, {"steady": ops}, [])
    interpreter = Interpreter(program, world_context(program, 0), Notes())
    assert interpreter.serial
    times = []
    for epoch in range(30):
        begin = time.perf_counter()
        interpreter.train(range(epoch, epoch + 1))
        times.append((time.perf_counter() - begin) / len(ops))
    assert float(np.median(times)) < 30e-6


def test_turns_count_from_the_start_of_the_run() -> None:
    seen: list[Now] = []
    program = tiny_program(
        1, {"steady": [Op("meet", OpKind.BARRIER, "comm")], "evaluate": [Op("end", OpKind.BARRIER, "comm")]}, [],
        calendar=Calendar("steady", steps=3), groups=[Group("world")], derived=False,
    )  # fmt: skip
    notes = Notes()
    interpreter = Interpreter(program, world_context(program, 0), notes)
    interpreter.train(range(1, 3))
    assert interpreter.evaluate(2)
    seen = [row[0] for row in notes.rows]
    assert seen == [*(Now(e, s, 3 * e + s) for e in (1, 2) for s in range(3)), Now(2, -1, 8)]
