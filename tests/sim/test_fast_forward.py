"""Epochs that repeat are copied, and nobody can tell."""

from dataclasses import replace

import numpy as np
import pytest
from programs import cached_halo, hongtu_batch, prefetched_step, task_graph
from programs.notation import op, program

from sim.planned import shipped, spread, statistics, vanilla
from sim.worlds import machine, run, seconds_of_work
from simgnn.program.calendar import Calendar, Cycle
from simgnn.program.ops import Guard, Stream, Work
from simgnn.program.sizes import Column
from simgnn.sim.simulate import Simulation


def same(one: Simulation, other: Simulation) -> None:
    """Every number of two simulations is equal, to the last bit."""
    assert one.digest == other.digest
    for name, column in one.columns.items():
        assert np.array_equal(column, other.columns[name]), name
    assert one.epoch_s == other.epoch_s
    assert one.memory.devices == other.memory.devices
    assert one.traffic_table.equals(other.traffic_table)
    assert np.array_equal(one.comm_exposed_s, other.comm_exposed_s)


@pytest.mark.parametrize("window", [0.0, 0.01])
@pytest.mark.parametrize("kind", ["gcn", "sage", "gin"])
def test_planned_training_is_fast_forwarded(kind: str, window: float) -> None:
    hosts = spread(4, 2)
    stats = statistics(hosts)
    prog, on = vanilla(stats, f"model.kind={kind}"), shipped("a800-pcie-ib-2x8", hosts)
    fast = run(prog, on, epochs=12, stats=stats, window=window)
    same(fast, run(prog, on, epochs=12, stats=stats, window=window, fast_forward=False))
    assert sum(count for _, count in fast.copied) >= 7


@pytest.mark.parametrize("system", [prefetched_step, hongtu_batch, task_graph, cached_halo])
def test_pipelines_with_transfers_in_flight_at_the_boundary(system) -> None:
    prog = system.build(3)
    on = machine(prog.hosts, latency=1e-6, call=1e-6, floor=1e-5)
    fast = run(prog, on, epochs=24)
    same(fast, run(prog, on, epochs=24, fast_forward=False))
    assert sum(count for _, count in fast.copied) >= 8


def test_evaluations_repeat_with_their_own_period() -> None:
    work = [op("w", "elementwise", "compute", work=seconds_of_work(0.5))]
    prog = program("p", {"epoch": work, "evaluate": [op("e", "elementwise", "compute", work=seconds_of_work(2.0))]},
                   Calendar("epoch"), [], [Stream("compute")], (0,))  # fmt: skip
    fast = run(prog, machine((0,)), epochs=31, evaluate_every=3)
    same(fast, run(prog, machine((0,)), epochs=31, evaluate_every=3, fast_forward=False))
    assert fast.copied
    assert int((fast.columns["step"] == -1).sum()) == 11, "every third, and the last"


def test_sizes_and_guards_that_change_are_not_copied_over() -> None:
    epochs = 20
    rows = np.full((1, epochs, 1), 10**9)
    rows[0, 11:] = 2 * 10**9
    go = np.ones((1, epochs, 1), dtype=np.int64)
    go[0, 16] = 0
    ops = [op("w", "elementwise", "compute", work=(Work("copy", {"bytes": Column("rows"), "item_bytes": 1}),)),
           op("g", "elementwise", "compute", after="w", work=seconds_of_work(1.0), guard=Guard("go"))]  # fmt: skip
    prog = program("p", {"epoch": ops}, Calendar("epoch"), [], [Stream("compute")], (0,), columns={"rows": rows})
    fast = run(prog, machine((0,)), epochs=epochs, activity={"go": go})
    same(fast, run(prog, machine((0,)), epochs=epochs, activity={"go": go}, fast_forward=False))
    assert fast.epoch_s == pytest.approx([2.0] * 11 + [3.0] * 5 + [2.0] + [3.0] * 3)
    assert sum(count for _, count in fast.copied) >= 6


def test_guards_of_an_epoch_that_has_not_ended_count() -> None:
    """Each epoch begins before the guard of the one before is reached: what is left of that one is not copied over."""
    epochs = 24
    go = np.ones((1, epochs, 1), dtype=np.int64)
    go[0, [7, 13, 14, 20]] = 0
    ops = [
        op("w", "elementwise", "compute", after="w<<1", work=seconds_of_work(1.0)),
        op("x", "elementwise", "other", after="w x<<1", work=seconds_of_work(0.5)),
        op("g", "elementwise", "side", after="x g<<1", work=seconds_of_work(0.25), guard=Guard("go")),
    ]
    streams = [Stream("compute"), Stream("other"), Stream("side")]
    prog = program("p", {"epoch": ops}, Calendar("epoch"), [], streams, (0,))
    fast = run(prog, machine((0,)), epochs=epochs, activity={"go": go})
    same(fast, run(prog, machine((0,)), epochs=epochs, activity={"go": go}, fast_forward=False))
    guarded = fast.columns["epoch"][fast.columns["op_id"] == 2]
    assert guarded.tolist() == np.flatnonzero(go[0, :, 0]).tolist()


def test_refreshes_repeat_with_their_interval() -> None:
    lengths = {"r": 3.0, "s": 1.0}
    templates = {name: [op("w", "elementwise", "compute", work=seconds_of_work(s))] for name, s in lengths.items()}
    prog = program("p", templates, Calendar("s", cycles=(Cycle("r", 4),)), [], [Stream("compute")], (0,))
    fast = run(prog, machine((0,)), epochs=42)
    same(fast, run(prog, machine((0,)), epochs=42, fast_forward=False))
    assert sum(count for _, count in fast.copied) >= 28


def simulated_turns(found: Simulation) -> int:
    """The epochs that were not copied."""
    return len(found.epoch_s) - sum(count for _, count in found.copied)


@pytest.mark.parametrize(
    "cycles", [(Cycle("refresh", 10),), (Cycle("refresh", 10, 9),), (Cycle("refresh", 5), Cycle("assign", 10, 9))]
)
def test_a_hundred_epochs_that_repeat_every_ten_cost_no_more_than_a_few(cycles: tuple[Cycle, ...]) -> None:
    made = cached_halo.build(3)
    assign = replace(made.templates["steady"], name="assign")
    made = replace(made, templates={**made.templates, "assign": assign}, calendar=Calendar("steady", cycles=cycles))
    on = machine(made.hosts, latency=1e-6, call=1e-6, floor=1e-5)
    few, many = (run(made, on, epochs=epochs) for epochs in (21, 100))
    same(many, run(made, on, epochs=100, fast_forward=False))
    assert simulated_turns(many) <= 2 * simulated_turns(few)
    assert many.events <= 2 * few.events
    assert simulated_turns(few) <= 21
    starts = many.epoch_s[20:90]
    assert starts == pytest.approx(many.epoch_s[10:80], rel=1e-9), "they repeat"
    assert many.epoch_s_median == pytest.approx(np.mean(starts), rel=1e-9), "what is reported is the mean over a period"


def test_ranks_that_share_cores_are_fast_forwarded() -> None:
    ops = [op("w", "elementwise", "compute", work=seconds_of_work(1.0)), op("b", "barrier", "comm", after="w")]
    prog = program("p", {"epoch": ops}, Calendar("epoch"), [], [Stream("compute"), Stream("comm", group="g")], (0,) * 3)
    on = machine((0,) * 3, kind="cpu", cores=2)
    fast = run(prog, on, epochs=20)
    same(fast, run(prog, on, epochs=20, fast_forward=False))
    assert fast.epoch_s == pytest.approx([1.5] * 20)
    assert fast.copied


def test_the_last_epoch_is_a_copy_too_where_epochs_do_not_overlap() -> None:
    hosts = spread(8, 2)
    stats = statistics(hosts)
    fast = run(vanilla(stats), shipped("cpu-100gbe-8", hosts), epochs=9, stats=stats)
    same(fast, run(vanilla(stats), shipped("cpu-100gbe-8", hosts), epochs=9, stats=stats, fast_forward=False))
    assert fast.copied == ((2, 7),)
    evaluated = run(vanilla(stats), shipped("cpu-100gbe-8", hosts), epochs=9, stats=stats, evaluate_every=4)
    slow = run(vanilla(stats), shipped("cpu-100gbe-8", hosts), epochs=9, stats=stats, evaluate_every=4,
               fast_forward=False)  # fmt: skip
    same(evaluated, slow)


def test_an_epoch_that_others_overlap_is_not_taken_for_the_last() -> None:
    # the slow rank's epochs end after the quick one's next has begun, and the shared link feels it
    seconds = Work("copy", {"bytes": Column("bytes"), "item_bytes": 1})
    ops = [op("w", "elementwise", "compute", work=(seconds,)), op("g", "copy", "compute", after="w", work=(seconds,))]
    prog = program("p", {"epoch": ops}, Calendar("epoch"), [], [Stream("compute")], (0, 0),
                   columns={"bytes": np.array([10**9, 10**9 + 10**6])})  # fmt: skip
    on = machine((0, 0), kind="cpu", cores=1)
    fast = run(prog, on, epochs=15)
    same(fast, run(prog, on, epochs=15, fast_forward=False))
    assert not fast.copied or sum(fast.copied[-1]) < 15


@pytest.mark.parametrize(("evaluate_every", "simulated"), [(0, 2), (100, 5)])
def test_of_a_hundred_epochs_few_are_simulated(evaluate_every: int, simulated: int) -> None:
    # three templates: the first epoch sends inputs, which the others do not, and an evaluation follows the last
    hosts = spread(4, 2)
    stats = statistics(hosts)
    prog, on = vanilla(stats), shipped("a800-pcie-ib-2x8", hosts)
    assert set(prog.templates) == {"first", "steady", "evaluate"}
    options = {"stats": stats, "epochs": 100, "evaluate_every": evaluate_every}
    fast = run(prog, on, **options)
    same(fast, run(prog, on, **options, fast_forward=False))
    assert 100 - sum(count for _, count in fast.copied) <= simulated
