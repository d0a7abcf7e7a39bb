"""Programs of six systems to come, simulated: every op runs, dependencies and bytes are the program's, times scale."""

import numpy as np
import pytest
from programs import cached_halo, guarded_broadcast, hongtu_batch, mirror_sync, prefetched_step, task_graph

from sim.engine_programs import TICK
from sim.worlds import machine, run
from simgnn.program.kinds import GROUP_KINDS, PAIRWISE_KINDS, OpKind

SYSTEMS = {
    module.__name__.split(".")[-1]: module.build
    for module in (mirror_sync, guarded_broadcast, cached_halo, hongtu_batch, prefetched_step, task_graph)
}


def some_activity(prog, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """A value below the bound for every decision and guard."""
    activity: dict[str, np.ndarray] = {}
    for _, found in prog.ops:
        if found.guard is not None:
            activity[found.guard.decision] = np.full(prog.ranks, rng.integers(0, 2))
        decision = None if found.transfer is None else found.transfer.decision
        if decision is not None:
            rows = prog.sizes.routes[found.route].matrix(prog.ranks)
            activity[decision.name] = rng.integers(0, rows + 1)
    return activity


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", SYSTEMS)
def test_the_systems_to_come_are_simulated(name: str, ranks: int) -> None:
    prog = SYSTEMS[name](ranks)
    activity = some_activity(prog, np.random.default_rng(0))
    on = machine(prog.hosts, latency=1e-6, floor=1e-5, hop=1e-6, call=1e-6)
    found = run(prog, on, epochs=3, activity=activity)
    assert found.status == "ok"
    assert min(found.epoch_s) > 0
    columns = found.columns
    assert np.all(columns["issued_s"] <= columns["started_s"])
    assert np.all(columns["started_s"] <= columns["ended_s"])
    ran = {prog.ops[op_id][1].name for op_id in np.unique(columns["op_id"])}
    guarded = {f.name for _, f in prog.ops if f.guard is not None and not activity[f.guard.decision].any()}
    templates = {prog.calendar.template(e, s) for e in range(3) for s in range(prog.calendar.steps)}
    assert ran == {f.name for t in templates for f in prog.templates[t].ops} - guarded


@pytest.mark.parametrize("name", SYSTEMS)
def test_dependencies_are_kept_and_bytes_are_the_programs(name: str) -> None:
    prog = SYSTEMS[name](3)
    activity = some_activity(prog, np.random.default_rng(1))
    found = run(prog, machine(prog.hosts, latency=1e-6), epochs=2, activity=activity)
    columns = found.columns
    rows = {
        (int(r), int(e), int(s), prog.ops[o][1].name): k
        for k, (r, e, s, o) in enumerate(
            zip(columns["rank"], columns["epoch"], columns["step"], columns["op_id"], strict=True)
        )
    }
    steps = prog.calendar.steps
    for (rank, epoch, step, op_name), row in rows.items():
        template = prog.templates[prog.calendar.template(epoch, step)]
        for dependency in template.ops[template.index[op_name]].after:
            before = (epoch - dependency.epochs_back) * steps + step - dependency.steps_back
            parent = rows.get((rank, before // steps, before % steps, dependency.op))
            assert parent is None or columns["ended_s"][parent] <= columns["issued_s"][row]
    for op_id, (_, found_op) in enumerate(prog.ops):
        mine = columns["op_id"] == op_id
        if found_op.kind in PAIRWISE_KINDS - {OpKind.FETCH} and found_op.transfer.decision is None:
            total = sum(
                int(prog.sizes.routes[found_op.route].at(int(e), int(s)).sum()) * found_op.transfer.row_bytes
                for e, s in np.unique(np.stack([columns["epoch"][mine], columns["step"][mine]], axis=1), axis=0)
            )
            counted = "control_bytes" if found_op.transfer.control else "bytes_sent"
            assert int(columns[counted][mine].sum()) == total
        elif found_op.kind not in GROUP_KINDS | PAIRWISE_KINDS:
            assert not columns["bytes_sent"][mine].any()


@pytest.mark.parametrize("factor", [2.0, 4.0])
@pytest.mark.parametrize("name", SYSTEMS)
def test_scaling_the_machine_scales_every_time(name: str, factor: float) -> None:
    prog = SYSTEMS[name](4)
    activity = some_activity(prog, np.random.default_rng(2))
    fields = {"latency": 2.0**-16, "floor": 2.0**-14, "hop": 2.0**-18, "call": 2.0**-17}
    slow = run(prog, machine(prog.hosts, **fields), epochs=3, activity=activity)
    fast = run(prog, machine(prog.hosts, faster=factor, **fields), epochs=3, activity=activity)
    for column in ("issued_s", "ended_s"):
        # every op rounds to a tick, and an epoch is a chain of some hundred
        assert fast.columns[column] * factor == pytest.approx(slow.columns[column], abs=1000 * TICK, rel=0)
