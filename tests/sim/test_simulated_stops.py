"""Where a run waits for all its ops, its simulation does: nothing of the next epoch has begun."""

from collections.abc import Iterable
from types import ModuleType

import numpy as np
import pytest
from programs import notation, prefetched_step, task_graph

from sim.mini_batches import made_sizes, planned
from sim.planned import shipped, spread, statistics, vanilla
from sim.test_fast_forward import same
from sim.worlds import machine, run
from simgnn.experiment.load import load_experiment
from simgnn.planner.make_plan import plan
from simgnn.program.calendar import Calendar
from simgnn.program.drain_points import Stops, ranks_in_turn
from simgnn.program.ops import Buffer, Op, Stream, Transfer
from simgnn.program.program import Program
from simgnn.sim.simulate import Simulation
from tests.experiment.test_plan_blocks import blocks

HOSTS, EPOCHS = [0, 1, 2], 10


def prefetching() -> Program:
    sizes = made_sizes(HOSTS, EPOCHS, 5, seed=2)
    return planned("rapidgnn", HOSTS, sizes, "schedule.window=4", "schedule.across_epochs=true").program


def overlaps(simulation: Simulation, ranks: Iterable[int]) -> list[bool]:
    """Of each epoch but the last, whether any of these ranks issued an op of a later one before its own ended."""
    columns = simulation.columns
    found = []
    for epoch in range(EPOCHS - 1):
        earlier, later = columns["epoch"] <= epoch, columns["epoch"] > epoch
        found.append(
            any(
                columns["issued_s"][later & mine].min() < columns["ended_s"][earlier & mine].max()
                for mine in (columns["rank"] == rank for rank in ranks)
            )
        )
    return found


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_nothing_runs_ahead_over_a_stop_and_something_over_all_else(keep: int) -> None:
    program, stops = prefetching(), Stops(EPOCHS, checkpoint_every=keep)
    on = machine(HOSTS, kind="cpu", cores=64, threads=1)
    simulation = run(program, on, EPOCHS, stops=stops)
    assert overlaps(simulation, HOSTS) == [not stops.after(epoch + 1) for epoch in range(EPOCHS - 1)]
    assert all(overlaps(run(program, on, EPOCHS), HOSTS))


@pytest.mark.parametrize("system", [prefetched_step, task_graph])
def test_epochs_between_stops_are_fast_forwarded(system: ModuleType) -> None:
    program, stops = system.build(3), Stops(40, checkpoint_every=4)
    on = machine(program.hosts, latency=1e-6, call=1e-6, floor=1e-5)
    fast = run(program, on, 40, stops=stops)
    same(fast, run(program, on, 40, stops=stops, fast_forward=False))
    assert sum(count for _, count in fast.copied) >= 20
    assert fast.epoch_s != run(program, on, 40).epoch_s


def test_a_program_that_runs_in_turn_has_nothing_to_wait_for() -> None:
    hosts = spread(4, 2)
    stats = statistics(hosts)
    program, on = vanilla(stats), shipped("a800-pcie-ib-2x8", hosts)
    assert all(ranks_in_turn(program))
    assert not any(ranks_in_turn(prefetching()))
    stopped = run(program, on, 12, stats=stats, stops=Stops(12, checkpoint_every=5))
    free = run(program, on, 12, stats=stats)
    assert np.array_equal(stopped.epoch_s, free.epoch_s)
    assert stopped.copied == free.copied


def packing(*more: Op, hosts: tuple[int, ...] = (0, 0)) -> Program:
    """Inputs are packed anew in each epoch: they wait for a buffer alone, and their stream is idle at times."""
    ops = [notation.op("pack", "elementwise", "compute", "", "packed", "send<<1"),
           notation.op("send", "allreduce", "comm", "packed", "sum", "pack", transfer=Transfer(10**6)),
           notation.op("train", "elementwise", "compute", "sum", "sum", "send"),
           notation.op("reduce", "allreduce", "comm", "sum", "sum", "train", transfer=Transfer(10**6)),
           notation.op("update", "elementwise", "compute", "sum", "", "reduce"), *more]  # fmt: skip
    streams = [Stream("compute"), Stream("comm", group="world"), Stream("staging")]
    buffers = [Buffer("packed", 9, 9), Buffer("sum", 9, 9), Buffer("aside", 9, 9)]
    columns = {"first": [1] + [0] * (len(hosts) - 1)}
    return notation.program("p", {"epoch": ops}, Calendar("epoch"), buffers, streams, hosts, columns)


def test_an_epoch_of_a_program_in_turn_begins_when_the_one_before_it_has_ended() -> None:
    made = packing()
    assert ranks_in_turn(made) == (True, True)
    assert not any(overlaps(run(made, machine((0, 0)), EPOCHS), [0, 1]))


def test_a_rank_that_works_in_turn_does_not_run_ahead_beside_one_that_does() -> None:
    """What only rank 0 does beside the rest gives it a thread a stream."""
    made = packing(notation.op("aside", "elementwise", "staging", "", "aside", "pack", ranks="first"))
    assert ranks_in_turn(made) == (False, True)
    simulation = run(made, machine((0, 0)), EPOCHS)
    assert any(overlaps(simulation, [0]))
    assert not any(overlaps(simulation, [1]))


def test_where_roots_alone_encode_their_blocks_no_epoch_runs_ahead_on_any_rank() -> None:
    stats = blocks(3)
    program = plan(load_experiment("cagnet", ["codec.kind=linear"]), stats).program
    assert any(op.ranks is not None for _, op in program.ops)
    assert all(ranks_in_turn(program))
    assert not any(overlaps(run(program, machine((0, 0, 0)), EPOCHS, stats=stats), range(3)))
