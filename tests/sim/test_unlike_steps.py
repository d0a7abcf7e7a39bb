"""What is derived from a simulation of epochs of unlike steps: traffic, times, limits and spread, step by step."""

import numpy as np
import pytest
from programs import chunked_epoch
from programs.test_simulated import machine_for

from simgnn.hardware.price.machine import Machine
from simgnn.planner.memory.program_memory import program_bytes
from simgnn.record.batches import draws_batches
from simgnn.record.epoch_kinds import kinds_of
from simgnn.record.summary import Columns, buffer_bytes, described_kinds, evaluation_s, payload_epochs, rank_times
from simgnn.sim.limited_by.find import Resimulation, find_limits
from simgnn.sim.link_traffic import traffic_by_link
from simgnn.sim.simulate import Simulation, simulate
from simgnn.sim.spread.intervals import estimate_spread
from simgnn.study.validate.baselines import demand

EPOCHS, LAYERS, CHUNKS, RANKS = 5, 3, 6, 4


@pytest.fixture(scope="module")
def found() -> Simulation:
    program = chunked_epoch.drawn(RANKS, LAYERS, CHUNKS)
    return simulate(program, machine_for(program), epochs=EPOCHS)


def test_traffic_is_counted_step_by_step(found: Simulation) -> None:
    program = found.program
    calendar = program.calendar
    seen = 0
    for step in range(calendar.steps):
        template = program.templates[calendar.template(2, step)]
        for op in template.ops:
            if op.route is None or op.transfer is None or op.kind.value != "peer_read":
                continue
            sent = found.traffic.epochs[2][program.op_ids[template.name, op.name]][calendar.ordinal(2, step)]
            rows = program.sizes.routes[op.route].matrix(RANKS, 2, step)
            np.testing.assert_array_equal(sent.nbytes, rows * op.transfer.row_bytes)
            seen += 1
    assert seen == (2 * LAYERS - 1) * CHUNKS
    np.testing.assert_array_equal(found.bytes_sent(3), found.bytes_sent())
    assert found.columns["bytes_sent"][found.columns["epoch"] == 3].sum() == found.bytes_sent().sum()


def test_epochs_are_of_one_kind(found: Simulation) -> None:
    calendar = found.program.calendar
    (kind,) = kinds_of(calendar, EPOCHS)
    assert kind.epochs.tolist() == [1, 2, 3, 4]
    assert described_kinds(found.epoch_s, calendar) == []
    assert list(payload_epochs(EPOCHS, calendar)) == [1, 2, 3]
    assert not draws_batches(found.program), "steps of chunks are no mini-batches: no table of batches"
    times = rank_times(Columns.of(found.trace, found.program), RANKS, calendar)
    for rank, of_rank in enumerate(times):
        assert of_rank.compute_s == pytest.approx(float(np.median(found.compute_s[1:, rank])))
        assert of_rank.comm_exposed_s == pytest.approx(float(np.median(found.comm_exposed_s[1:, rank])))


def test_memory_of_a_step_among_unlike_ones_is_the_largest(found: Simulation) -> None:
    """Buffers of single turns are as large as in their turn, and the sum without a simulation counts them all."""
    summed = np.array(buffer_bytes(found.program))
    assert np.all(summed >= found.memory.both)
    assert np.all(summed <= 1.05 * found.memory.both)


def test_limits_spread_and_demand(found: Simulation) -> None:
    program = found.program
    machine = machine_for(program)
    again = Resimulation(
        lambda profile: Machine.place(profile, program.hosts),
        lambda other, epochs: simulate(program, other, epochs=epochs),
    )
    limits = find_limits(found, machine, again)
    assert sum(part.share for part in limits.time) == pytest.approx(1.0)
    spread = estimate_spread(found, machine)
    assert spread.epoch_s_median >= found.epoch_s_median
    needed = demand(program, machine, {})
    assert needed.inside_bytes.sum() + needed.across_bytes.sum() >= found.bytes_sent().sum()
    assert traffic_by_link(found, machine, {})[0].total_bytes > 0


def test_evaluations_of_several_steps_are_apart_from_epochs() -> None:
    program = chunked_epoch.build(RANKS, CHUNKS)
    machine = machine_for(program)
    plain = simulate(program, machine, epochs=EPOCHS)
    evaluated = simulate(program, machine, epochs=EPOCHS, evaluate_every=2, fast_forward=False)
    np.testing.assert_allclose(evaluated.epoch_s, plain.epoch_s, rtol=1e-12)
    np.testing.assert_array_equal(evaluated.bytes_sent(), plain.bytes_sent())
    columns = evaluated.columns
    swept = columns["step"] < 0
    assert sorted(set(columns["epoch"][swept].tolist())) == [1, 3, 4]
    assert sorted(set(columns["step"][swept].tolist())) == list(range(-2 * CHUNKS - 1, 0))
    assert evaluation_s(columns) > 0
    first, second = chunked_epoch.WIDTHS[:2]
    route, steps = program.sizes.routes["read"], program.calendar.steps
    rows = route.rows[:, steps:].sum(axis=0)
    assert columns["bytes_sent"][swept & (columns["epoch"] == 3)].sum() == 4 * (
        first * rows[:CHUNKS].sum() + second * rows[CHUNKS:].sum()
    )
    for epoch in (1, 3):
        for rank in range(RANKS):
            mine = columns["rank"] == rank
            trained, during, after = (
                mine & ~swept & (columns["epoch"] == epoch), mine & swept & (columns["epoch"] == epoch),
                mine & ~swept & (columns["epoch"] == epoch + 1),
            )  # fmt: skip
            assert columns["issued_s"][during].min() >= columns["ended_s"][trained].max()
            assert columns["issued_s"][after].min() >= columns["ended_s"][during].max()


def test_epochs_with_evaluations_are_fast_forwarded() -> None:
    program = chunked_epoch.build(2, CHUNKS)
    whole, jumped = (
        simulate(program, machine_for(program), epochs=20, evaluate_every=3, fast_forward=fast)
        for fast in (False, True)
    )
    assert sum(epochs for _, epochs in jumped.copied) >= 6
    assert jumped.digest == whole.digest
    assert jumped.epoch_s == whole.epoch_s
    assert jumped.memory.peaks == whole.memory.peaks


def test_rows_of_hosts_in_mappings_are_no_memory_of_devices() -> None:
    plain = chunked_epoch.build(RANKS, CHUNKS)
    mapped = chunked_epoch.mapped(plain)
    names = [name for name, buffer in plain.buffers.items() if buffer.space == "host"]
    needed = sum(mapped.sizes.most(mapped.buffers[name].rows) * mapped.buffers[name].row_bytes for name in names)
    machine = machine_for(plain)
    beside, apart = (simulate(one, machine, epochs=2, evaluate_every=1).memory for one in (plain, mapped))
    np.testing.assert_array_equal(apart.shared, needed)
    np.testing.assert_array_equal(apart.own + apart.shared, apart.both)
    assert np.all(beside.shared == 0)
    assert np.all(apart.own < beside.own)
    on_cpu = np.array([machine.device(rank).kind == "cpu" for rank in range(RANKS)])
    assert on_cpu.all() or np.all(apart.own == apart.device)
    bound = program_bytes(mapped, on_cpu)
    assert np.all(apart.own <= bound)
    assert np.all(bound <= 1.3 * apart.own)
    assert simulate(plain, machine, epochs=2).epoch_s == simulate(mapped, machine, epochs=2).epoch_s
