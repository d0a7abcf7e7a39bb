"""What runs hold beside ops: recorded decisions and guards, evaluations; programs and machines that cannot run."""

import numpy as np
import pytest
from programs.notation import all_pairs, op, program

from sim.engine_programs import STREAMS, TICK, one, route, work
from sim.worlds import machine, run, seconds_of_work
from simgnn.errors import BackendError
from simgnn.program.calendar import Calendar
from simgnn.program.ops import Guard, Transfer
from simgnn.program.sizes import Column, Decision


def decided_exchange():
    decision = Decision("moved", Column("bound"))
    return one(op("x", "exchange", "comm", route="r", transfer=Transfer(100, decision=decision)),
               columns={"bound": [10**8, 10**8]}, routes={"r": all_pairs(2, 10**8)})  # fmt: skip


def test_a_decision_without_activity_is_refused() -> None:
    with pytest.raises(BackendError, match=r"decision 'moved' of op 'x'.*no activity.*--activity"):
        run(decided_exchange(), machine((0, 0)))


def test_a_decision_is_replayed() -> None:
    moved = np.zeros((2, 2, 3, 1), dtype=np.int64)
    moved[0, 1] = [[10**8], [10**7], [0]]
    found = run(decided_exchange(), machine((0, 0)), epochs=3, activity={"moved": moved})
    assert found.epoch_s == pytest.approx([1.0 + 8e-10, 0.1 + 8e-10, 8e-10], abs=3 * TICK)
    assert [int(found.bytes_sent(epoch)[0, 1]) for epoch in range(3)] == [10**10, 10**9, 0]
    assert found.sum_by_rank("control_bytes", 0).tolist() == [8, 8]
    with pytest.raises(BackendError, match="has only 3 epochs"):
        run(decided_exchange(), machine((0, 0)), epochs=4, activity={"moved": moved})
    with pytest.raises(BackendError, match=r"expected 0 to 100000000 \(its bound\)"):
        run(decided_exchange(), machine((0, 0)), activity={"moved": moved + 10**8})
    with pytest.raises(BackendError, match="value for each pair of ranks"):
        run(decided_exchange(), machine((0, 0)), activity={"moved": np.zeros(2, dtype=np.int64)})
    with pytest.raises(BackendError, match=r"got shape \[3\]"):
        run(decided_exchange(), machine((0, 0)), activity={"moved": np.zeros(3, dtype=np.int64)})


def test_a_guard_skips_an_op_and_lets_its_followers_go() -> None:
    prog = one(work("w", 1.0, guard=Guard("go")), work("v", 1.0, "w"))
    go = np.array([[[1], [0]], [[1], [0]]])
    found = run(prog, machine((0, 0)), epochs=2, activity={"go": go})
    assert found.epoch_s == pytest.approx([2.0, 1.0])
    assert int((found.columns["op_id"] == 0).sum()) == 2
    with pytest.raises(BackendError, match="decision 'go' of op 'w'"):
        run(prog, machine((0, 0)))


def test_a_program_that_waits_for_ever_says_for_what() -> None:
    prog = one(work("a", 1.0, "b"), work("b", 1.0, "a"))
    with pytest.raises(BackendError, match="4 ops cannot end, the first of them 'a' of epoch 1 on rank 0"):
        run(prog, machine((0, 0)))


def test_a_run_longer_than_the_clock_says_so() -> None:
    month = op("a", "elementwise", "compute", work=seconds_of_work(20 * 86_400.0))
    talk = op("x", "exchange", "comm", after="a", route="r", transfer=Transfer(10**9))
    for ops in ((month,), (month, talk)):
        prog = one(*ops, routes={"r": route([[0, 10**6], [0, 0]])})
        with pytest.raises(BackendError, match=r"not over after 27 days of simulated time.*train\.epochs"):
            run(prog, machine((0, 0)), epochs=2, fast_forward=False)


def test_evaluation_is_no_training_time() -> None:
    templates = {"epoch": [work("w", 1.0)], "evaluate": [work("e", 5.0)]}
    prog = program("p", templates, Calendar("epoch"), [], STREAMS, (0, 0))
    found = run(prog, machine((0, 0)), epochs=4, evaluate_every=2)
    assert found.epoch_s == pytest.approx([1.0] * 4)
    evaluated = found.columns["step"] == -1
    assert found.columns["epoch"][evaluated].tolist() == [1, 1, 3, 3]
    assert found.columns["ended_s"].max() == pytest.approx(14.0)
    assert run(prog, machine((0, 0)), epochs=4).columns["ended_s"].max() == pytest.approx(4.0)


def test_a_machine_of_other_hosts_is_refused() -> None:
    with pytest.raises(BackendError, match="planned for 2 ranks on hosts"):
        run(one(work("w", 1.0)), machine((0, 1)))
    with pytest.raises(BackendError, match=r"train\.epochs: got 0"):
        run(one(work("w", 1.0)), machine((0, 0)), epochs=0)
