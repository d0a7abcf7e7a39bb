"""Batches drawn over hosts, simulated: own draws beside requests, hop after hop, by a recurrence; bytes exactly."""

from dataclasses import replace

import numpy as np
import pytest

from sim.mini_batches import made_sizes, parted_sizes, planned
from sim.test_prefetch import Durations, apart, together
from sim.worlds import run, seconds_of_work
from simgnn.program.ops import Op
from simgnn.program.program import Program, Template
from tests.sampling.parted_sampling import payload_bytes

EPOCHS, STEPS, HOPS = 2, 5, 2


def _priced(program: Program, own_s: float, served_s: float) -> Program:
    """Own draws and those for others take so long."""
    seconds = {}
    for hop in range(1, HOPS + 1):
        seconds |= {f"draw/{hop}/here": own_s, f"draw/{hop}/serve": served_s}

    def priced(op: Op) -> Op:
        return replace(op, work=seconds_of_work(seconds[op.name])) if op.name in seconds else op

    templates = {name: Template(name, tuple(map(priced, one.ops))) for name, one in program.templates.items()}
    return replace(program, templates=templates)


@pytest.mark.parametrize("own_s", [0.0, 1e-6, 1.0])
def test_a_hop_takes_the_longer_of_own_draws_and_requests(own_s: float) -> None:
    """Each batch's chain begins when the one before has been drawn. Source: docs/systems/distdgl.md, but a rank draws
    for others after its own draws, in one thread."""
    hosts = [0, 1, 2]
    sizes = made_sizes(hosts, EPOCHS, STEPS, hops=HOPS)
    sizes = replace(sizes, parted=parted_sizes(hosts, sizes))
    program = _priced(planned("distdgl", hosts, sizes, f"schedule.window={EPOCHS * STEPS}").program, own_s, 0.25)
    told = Durations(run(program, apart(hosts), EPOCHS))
    end = np.zeros(len(hosts))
    for i in range(EPOCHS * STEPS):
        for hop in range(1, HOPS + 1):
            name = f"draw/{hop}"
            asked = end + told.of(i, f"{name}/ask")
            replied = together(asked, told.of(i, f"{name}/request"))
            own = asked + told.of(i, f"{name}/here")
            served = np.maximum(replied, own) + told.of(i, f"{name}/serve")
            found = together(served, told.of(i, f"{name}/return"))
            end = found + told.of(i, f"{name}/stitch" if hop < HOPS else "batch/draw")
        np.testing.assert_allclose(told.ends[i, "batch/draw"], end, rtol=1e-9)


def test_bytes_of_the_trace_are_those_of_the_requests() -> None:
    hosts = [0, 0, 1, 1]
    sizes = made_sizes(hosts, EPOCHS, STEPS, hops=HOPS)
    sizes = replace(sizes, parted=parted_sizes(hosts, sizes))
    assert sizes.parted is not None
    simulation = run(planned("distdgl", hosts, sizes).program, apart(hosts), EPOCHS)
    names = [op.name for _, op in simulation.program.ops]
    columns, found = simulation.columns, np.zeros((len(hosts), EPOCHS, STEPS), np.int64)
    for rank, epoch, step, op, nbytes in zip(
        *(columns[name].tolist() for name in ("rank", "epoch", "step", "op_id", "bytes_sent")), strict=True
    ):
        if names[op].startswith("draw/"):
            found[rank, epoch, step] += nbytes
    np.testing.assert_array_equal(found, payload_bytes(sizes.parted.requests).sum(axis=1))
