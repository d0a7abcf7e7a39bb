"""Prefetched mini-batches against a recurrence: RapidGNN's queue, its cache, DistDGL's trainer, in closed form."""

from dataclasses import replace

import numpy as np
import pytest

from sim.mini_batches import WIDTH, constant, made_sizes, planned
from sim.planned import shipped
from sim.worlds import machine, run, seconds_of_work
from simgnn.hardware.price.machine import Machine
from simgnn.program.ops import Op
from simgnn.program.program import Program, Template
from simgnn.sampling.batches.sizes import BatchSizes
from simgnn.sim.simulate import Simulation

GATHERED = ("batch/stage", "rows/stage", "hot/take")
EPOCHS, STEPS = 2, 7


def apart(hosts: list[int]) -> Machine:
    """Hosts with more cores than streams, on links that only cost latency: nothing slows anything else down."""
    return machine(hosts, kind="cpu", cores=64, threads=1, pcie=1e15, ethernet=1e15, latency=3e-6, call=1e-6)


def test_buffers_of_rows_that_travel_are_held_all_the_time_as_large_as_any_turn_needs() -> None:
    sizes = made_sizes([0, 1], epochs=EPOCHS, steps=STEPS, hot_rows=30)
    program = planned("rapidgnn", [0, 1], sizes, "schedule.window=3").program
    memory = run(program, apart([0, 1]), EPOCHS).memory
    for name, route in (("rows/served", "rows/sent"), ("rows/pulled", "rows/received")):
        most = program.sizes.columns[route].max(axis=(1, 2))
        assert (most > program.sizes.columns[route][:, 0, 0]).any(), "not the first turn's"
        assert memory.kept["host"][name].tolist() == (4 * WIDTH * most).tolist()
        assert name not in memory.spans.names


class Durations:
    """Seconds of every op of a simulation by (step of the run, op), float64 [P]; ends likewise."""

    def __init__(self, simulation: Simulation) -> None:
        self.ranks = simulation.program.ranks
        steps = simulation.program.calendar.steps
        names = [op.name for _, op in simulation.program.ops]
        self.seconds: dict[tuple[int, str], np.ndarray] = {}
        self.ends: dict[tuple[int, str], np.ndarray] = {}
        columns = simulation.columns
        for rank, epoch, step, op, started, ended in zip(
            *(columns[name].tolist() for name in ("rank", "epoch", "step", "op_id", "started_s", "ended_s")),
            strict=True,
        ):
            key = epoch * steps + step, names[op]
            self.seconds.setdefault(key, np.zeros(self.ranks))[rank] = ended - started
            self.ends.setdefault(key, np.zeros(self.ranks))[rank] = ended

    def of(self, step: int, *ops: str) -> np.ndarray:
        return np.sum([self.seconds.get((step, op), np.zeros(self.ranks)) for op in ops], axis=0)

    def training(self, step: int) -> np.ndarray:
        """From the first layer to the end of backward."""
        found = [s for (at, op), s in self.seconds.items() if at == step and op.startswith(("forward", "backward"))]
        return np.sum(found, axis=0)


def together(begin: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """A call that begins when the last rank is there; one that takes no time on any rank was skipped."""
    return begin.max() + seconds if seconds.any() else begin


def recurrence(told: Durations, window: int, across_epochs: bool, epochs: int = EPOCHS, steps: int = STEPS):
    """Ends of staging, of backward and of each step, float64 [steps of the run, P]. Source: docs/systems/rapidgnn.md;
    the owners' gathering goes before an exchange, the copy of a cache's piece to the device after its own."""
    count = epochs * steps
    ready, released, ended = (np.zeros((count, told.ranks)) for _ in range(3))
    free = told.of(0, "setup/hot/serve")
    free = together(free, told.of(0, "setup/hot/exchange")) + told.of(0, "setup/hot/stage")
    before = np.zeros(told.ranks)  # the end of the step before
    for i in range(count):
        begin = free
        if i >= window:
            begin = np.maximum(begin, released[i - window])
        if i % steps == 0 and not across_epochs and i:
            begin = np.maximum(begin, before)
        served = begin + told.of(i, "rows/serve")
        ready[i] = together(served, told.of(i, "rows/exchange")) + told.of(i, *GATHERED)
        piece = together(ready[i] + told.of(i, "hot/serve"), told.of(i, "hot/exchange"))
        free = piece + told.of(i, "hot/stage", "hot/keep")
        released[i] = np.maximum(before, ready[i]) + told.training(i)
        summed = together(together(released[i], told.of(i, "update/gradients")), told.of(i, "update/metrics"))
        before = ended[i] = summed + told.of(i, "update/optimize")
    return ready, released, ended


@pytest.mark.parametrize(("hot_rows", "pull"), [(0, "full"), (60, "full"), (60, "delta")])
@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("window", [1, 2, 4, 8])
def test_random_times_follow_the_recurrence(window: int, across: bool, hot_rows: int, pull: str) -> None:
    hosts = [0, 1, 2]
    sizes = made_sizes(hosts, EPOCHS, STEPS, hot_rows=hot_rows, seed=window)
    options = [f"schedule.window={window}", f"schedule.across_epochs={str(across).lower()}", f"placement.pull={pull}"]
    told = Durations(run(planned("rapidgnn", hosts, sizes, *options).program, apart(hosts), EPOCHS))
    ready, released, ended = recurrence(told, window, across)
    last = "hot/take" if hot_rows else "rows/stage"
    for i in range(EPOCHS * STEPS):
        np.testing.assert_allclose(told.ends[i, last], ready[i], rtol=1e-9)
        np.testing.assert_allclose(told.ends[i, "backward/1/prepare"], released[i], rtol=1e-9)
        np.testing.assert_allclose(told.ends[i, "update/optimize"], ended[i], rtol=1e-9)
    assert any(not told.of(i, "rows/exchange").any() for i in range(STEPS))  # one step of the made-up sizes is empty
    assert told.of(0, "rows/exchange").all()


def seconds(sizes: BatchSizes, hosts: list[int], window: int, *options: str) -> float:
    stated = [f"schedule.window={window}", "schedule.across_epochs=true", *options]
    return sum(run(planned("rapidgnn", hosts, sizes, *stated).program, apart(hosts), EPOCHS).epoch_s)


def test_a_larger_window_never_takes_longer() -> None:
    hosts = [0, 1, 2]
    sizes = made_sizes(hosts, EPOCHS, STEPS, hot_rows=60, seed=5)
    times = [seconds(sizes, hosts, window) for window in (1, 2, 3, 4, 8, 14)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 1.05 * times[-1]


def test_one_rank_with_constant_times_has_closed_forms() -> None:
    """A window of one: staging and training in turn. Any larger one: the slower of the two, and the first staging."""
    sizes = constant(made_sizes([0], EPOCHS, STEPS, seed=1))
    stated = ["schedule.window=1", "schedule.across_epochs=true"]
    serial = run(planned("rapidgnn", [0], sizes, *stated).program, apart([0]), EPOCHS)
    told = Durations(serial)
    staging, training = float(told.of(0, *GATHERED)[0]), float(told.training(0)[0])
    update = float(told.of(0, "update/optimize")[0])
    count = EPOCHS * STEPS
    # the next batch is staged while the optimizer runs, which is shorter
    assert update < staging
    assert sum(serial.epoch_s) == pytest.approx(count * (staging + training) + update, rel=1e-9)
    slower = max(staging, training + update)
    rest = min(staging, training + update)
    assert seconds(sizes, [0], 8) == pytest.approx(count * slower + rest, rel=1e-9)


def test_without_prefetching_everything_is_in_turn() -> None:
    hosts = [0, 1]
    sizes = made_sizes(hosts, EPOCHS, STEPS, seed=3)
    simulation = run(planned("rapidgnn", hosts, sizes, "schedule.kind=bsp").program, apart(hosts), EPOCHS)
    told = Durations(simulation)
    ended = np.zeros(2)
    for i in range(EPOCHS * STEPS):
        ended = together(ended + told.of(i, "rows/serve"), told.of(i, "rows/exchange"))
        ended = ended + told.of(i, *GATHERED) + told.training(i)
        ended = together(together(ended, told.of(i, "update/gradients")), told.of(i, "update/metrics"))
        ended = ended + told.of(i, "update/optimize")
    assert sum(simulation.epoch_s) == pytest.approx(float(ended.max()), rel=1e-9)


def drawing(program: Program, seconds: float) -> Program:
    """The program with batches that take so long to draw."""

    def slower(op: Op) -> Op:
        return replace(op, work=seconds_of_work(seconds)) if op.name == "batch/draw" else op

    templates = {name: Template(name, tuple(map(slower, one.ops))) for name, one in program.templates.items()}
    return replace(program, templates=templates)


@pytest.mark.parametrize("drawn_s", [1e-7, 2e-2])
@pytest.mark.parametrize("lanes", [1, 2])
def test_sampling_ahead_hides_behind_training_or_bounds_it(lanes: int, drawn_s: float) -> None:
    """DistDGL's check value: with constant times a step lasts as long as the slower of the lanes' drawing, shared among
    them, and the trainer's own chain (docs/systems/distdgl.md)."""
    hosts = [0, 1]
    sizes = constant(made_sizes(hosts, 1, 40, seed=2))
    options = [f"schedule.lanes={lanes}", f"schedule.window={lanes + 3}", "batching.structure=replicated"]
    told = Durations(run(drawing(planned("distdgl", hosts, sizes, *options).program, drawn_s), apart(hosts), 1))
    trained = (told.of(20, "rows/fetch", *GATHERED) + told.training(20)).max()
    trained += told.of(20, "update/gradients", "update/metrics", "update/optimize").max()
    step = float(told.ends[30, "update/optimize"].max() - told.ends[10, "update/optimize"].max()) / 20
    assert step == pytest.approx(max(drawn_s / lanes, trained), rel=0.02)


@pytest.mark.parametrize("hosts", [[0, 1], [0, 0, 1, 1]])
def test_bytes_are_those_of_the_store(hosts: list[int]) -> None:
    """Payload by rank pair and step: ids there and rows back on request, rows alone by a plan, and pieces of caches
    (docs/systems/distdgl.md, docs/systems/rapidgnn.md); no difference."""
    sizes = made_sizes(hosts, EPOCHS, STEPS, hot_rows=60)
    ranks, row = len(hosts), 4 * WIDTH
    batches = np.zeros((ranks, ranks, EPOCHS, STEPS), np.int64)
    batches[sizes.pulled.source, sizes.pulled.target] = sizes.pulled.rows
    assert sizes.cache is not None
    caches = np.zeros_like(batches)
    caches[sizes.cache.pulled.source, sizes.cache.pulled.target] = sizes.cache.pulled.rows
    scheduled = run(planned("rapidgnn", hosts, sizes).program, apart(hosts), EPOCHS)
    for epoch in range(EPOCHS):
        expected = row * (batches + caches)[:, :, epoch].sum(axis=2)
        if epoch == 0:
            expected += row * sizes.cache.first.matrix(ranks)
        assert np.array_equal(scheduled.bytes_sent(epoch), expected)
    online = run(
        planned("distdgl", hosts, made_sizes(hosts, EPOCHS, STEPS), "schedule.window=2").program, apart(hosts), EPOCHS
    )
    pulled = made_sizes(hosts, EPOCHS, STEPS).pulled
    batches = np.zeros_like(batches)
    batches[pulled.source, pulled.target] = pulled.rows
    for epoch in range(EPOCHS):
        rows = batches[:, :, epoch].sum(axis=2)
        assert np.array_equal(online.bytes_sent(epoch), row * rows + 8 * rows.T)
    metrics = STEPS * 4 * 8
    assert np.array_equal(online.sum_by_rank("control_bytes"), np.full(ranks, STEPS * 8 * (ranks - 1) + metrics))
    assert np.array_equal(scheduled.sum_by_rank("control_bytes"), np.full(ranks, metrics))  # counts are known


@pytest.mark.parametrize(("epochs", "told"), [(1, [0]), (2, [1]), (3, [1]), (5, [1, 2, 3])])
def test_payload_is_the_mean_of_epochs_that_fill_a_cache(epochs: int, told: list[int]) -> None:
    """All but the first, which fills its own too, and the last, which fills none, where there are others."""
    hosts = [0, 1, 1]
    sizes = made_sizes(hosts, epochs, 4, hot_rows=60)
    assert sizes.cache is not None
    found = run(planned("rapidgnn", hosts, sizes).program, apart(hosts), epochs)
    expected = np.zeros((3, 3))
    for epoch in told:
        for route in (sizes.pulled, sizes.cache.pulled):
            expected += 4 * WIDTH / len(told) * sum(route.matrix(3, epoch, step) for step in range(4))
    if told == [0]:
        expected += 4 * WIDTH * sizes.cache.first.matrix(3)
    np.testing.assert_allclose(found.bytes_sent(), expected, rtol=1e-12)
    assert list(found.payload_epochs) == told
    assert any(sizes.cache.pulled.matrix(3, epoch, step).any() for epoch in told for step in range(4)) == (epochs > 2)
    collective = [found.sum_by_rank("collective_bytes", epoch) for epoch in told]
    np.testing.assert_allclose(found.sum_by_rank("collective_bytes"), np.mean(collective, axis=0))
    np.testing.assert_allclose(found.messages(), np.mean([found.messages(epoch) for epoch in told], axis=0))


def test_memory_holds_two_caches_and_the_window() -> None:
    hosts = [0, 1]
    sizes = made_sizes(hosts, EPOCHS, STEPS, hot_rows=60)
    held = []
    for hot_rows, window in ((60, 3), (60, 5), (70, 3)):
        assert sizes.cache is not None
        changed = replace(sizes, cache=replace(sizes.cache, rows=np.full(2, hot_rows)))
        program = planned("rapidgnn", hosts, changed, f"schedule.window={window}").program
        kept = run(program, apart(hosts), EPOCHS).memory.kept["device"]
        held.append((kept["inputs"], kept["hot"]))
    largest = sizes.rows[-1].max(axis=(1, 2))
    assert np.array_equal(held[0][0], 4 * WIDTH * 3 * largest)
    assert np.array_equal(held[1][0], 4 * WIDTH * 5 * largest)
    assert held[0][1].tolist() == [4 * WIDTH * 2 * 60] * 2
    assert held[2][1].tolist() == [4 * WIDTH * 2 * 70] * 2


def cut(sizes: BatchSizes, steps: int) -> BatchSizes:
    """The first steps of every epoch."""
    cache = sizes.cache
    assert cache is not None
    kept = {name: getattr(sizes, name)[..., :steps] for name in ("rows", "edges", "local", "hits")}
    pulled, filled = (replace(route, rows=route.rows[..., :steps]) for route in (sizes.pulled, cache.pulled))
    return replace(sizes, **kept, pulled=pulled, cache=replace(cache, pulled=filled, kept=cache.kept[..., :steps]))


@pytest.mark.parametrize(("epochs", "steps"), [(1, 7), (3, 1), (1, 1), (2, 2)])
def test_short_runs_leave_templates_that_no_turn_has(epochs: int, steps: int) -> None:
    """Runs of one epoch, and epochs of one step: what begins an epoch, or goes on in it, never runs."""
    hosts = [0, 1]
    sizes = cut(made_sizes(hosts, epochs, 7, hot_rows=60), steps)
    found = run(planned("rapidgnn", hosts, sizes).program, apart(hosts), epochs)
    assert len(found.epoch_s) == epochs
    assert min(found.epoch_s) > 0
    assert found.program.buffers["inputs"].depth == min(4, steps)


@pytest.mark.parametrize(("system", "op"), [("distdgl", "rows/fetch"), ("rapidgnn", "rows/exchange")])
def test_rows_in_host_memory_are_not_copied_around_a_call(system: str, op: str) -> None:
    """What a GPU's rank gives a library that sends from host memory lies there already."""
    hosts = [0, 1]
    on = shipped("p100-10gbe-4x2", hosts)
    program = planned(system, hosts, made_sizes(hosts, 1, STEPS), "batching.kind=seeded").program
    moved = {name: replace(b, space="device") for name, b in program.buffers.items() if name.startswith("rows/")}
    copied = replace(program, buffers={**program.buffers, **moved})
    simulation = run(program, on, 1)
    there, around = (Durations(one).of(0, op) for one in (simulation, run(copied, on, 1)))
    assert np.all(there < around)
    assert "rows/serve" not in simulation.extrapolated
    if system == "rapidgnn":  # the CPU beside the GPUs gathers the rows, at a rate carried from another machine
        assert Durations(simulation).of(0, "rows/serve").min() > 0
        assert "gather of the CPU beside a GPU" in simulation.assumed
