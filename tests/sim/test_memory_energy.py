"""Memory from buffer lifetimes, and energy from busy time, in closed form."""

from dataclasses import replace

import numpy as np
import pytest
from programs.notation import op, program

from sim.planned import shipped, spread, statistics, vanilla
from sim.worlds import PS, machine, run, seconds_of_work
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.profile.profile import parse_profile
from simgnn.program.calendar import Calendar
from simgnn.program.ops import Buffer, Dependency, Stream, Transfer
from simgnn.program.sizes import Column, Decision
from simgnn.sim.energy import active_time
from simgnn.sim.memory.caching_allocator import ROUND_LARGE

GB = 10**9


def chain(*buffers: Buffer, hosts=(0,), **fields):
    """a writes x; b reads x, writes y; c reads y: one second each."""
    ops = [
        op("a", "elementwise", "compute", "", "x", work=seconds_of_work(1.0)),
        op("b", "elementwise", "compute", "x", "y", "a", work=seconds_of_work(1.0)),
        op("c", "elementwise", "compute", "y", "", "b", work=seconds_of_work(1.0)),
    ]
    return program("p", {"epoch": ops}, Calendar("epoch"), buffers, [Stream("compute")], hosts, **fields)


def test_buffers_live_from_their_first_write_to_their_last_read() -> None:
    found = run(chain(Buffer("x", GB, 3, "uint8"), Buffer("y", GB, 4, "uint8")), machine((0,)), epochs=2)
    assert found.memory.device.tolist() == [7 * GB]
    assert found.memory.devices == {"node/dev": 7 * GB}
    assert found.status == "ok"


def test_persistent_buffers_and_rings_are_always_there() -> None:
    buffers = (Buffer("x", GB, 3, "uint8"), Buffer("y", GB, 4, "uint8", persistent=True),
               Buffer("ring", GB, 5, "uint8", depth=3))  # fmt: skip
    assert run(chain(*buffers), machine((0,))).memory.device.tolist() == [(3 + 4 + 15) * GB]


def test_what_is_made_once_is_there_from_the_op_on_that_makes_it() -> None:
    once = [op("pack", "copy", "compute", "", "wire"), op("send", "copy", "compute", "wire", "rows", "pack"),
            op("sum", "aggregate", "compute", "rows", "sums", "send")]  # fmt: skip
    use = op("use", "transform", "compute", "sums", "y")
    kept = [Buffer(name, GB, wide, "uint8", persistent=True) for name, wide in (("p", 1), ("rows", 3), ("sums", 3))]
    buffers = [Buffer("wire", GB, 3, "uint8"), Buffer("y", GB, 1, "uint8"), *kept]
    templates = {"first": [*once, replace(use, after=(Dependency("sum"),))], "steady": [use]}
    made = program("p", templates, Calendar("steady", first="first"), buffers, [Stream("compute")], (0,))
    assert run(made, machine((0,)), epochs=3).memory.device.tolist() == [8 * GB], "what was sent is gone by the sum"


def test_turns_in_flight_hold_their_own_copies() -> None:
    # the copies of three turns are held where the producer is ahead of the consumer
    ops = [op("a", "elementwise", "copy", "", "x", work=seconds_of_work(1.0)),
           op("b", "elementwise", "compute", "x", "", "a", work=seconds_of_work(2.5))]  # fmt: skip
    buffers = [Buffer("x", GB, 1, "uint8"), Buffer("r", 0, 1, depth=3)]
    prog = program("p", {"epoch": ops}, Calendar("epoch"), buffers, [Stream("compute"), Stream("copy")], (0,))
    assert run(prog, machine((0,)), epochs=8).memory.device.tolist() == [3 * GB]


def test_host_memory_is_counted_apart_on_a_gpu_and_with_it_on_a_cpu() -> None:
    buffers = (Buffer("x", GB, 3, "uint8"), Buffer("y", GB, 4, "uint8", space="host"),
               Buffer("all", GB, 2, "uint8", space="host-shared", persistent=True))  # fmt: skip
    prog = chain(*buffers, hosts=(0, 0))
    gpu = run(prog, machine((0, 0))).memory
    assert gpu.device.tolist() == [3 * GB, 3 * GB]
    assert gpu.host.tolist() == [6 * GB, 4 * GB], "what is shared counts once, with the first rank"
    assert gpu.both.tolist() == [9 * GB, 7 * GB]
    assert gpu.devices == {"node/dev0": 3 * GB, "node/dev1": 3 * GB}
    assert run(prog, machine((0, 0), kind="cpu")).memory.devices == {"node/dev": 16 * GB}


def test_running_out_is_a_result() -> None:
    prog = chain(Buffer("x", Column("rows"), 3, "uint8"), Buffer("y", Column("rows"), 4, "uint8"), hosts=(0, 0),
                 columns={"rows": [GB, 2 * GB]})  # fmt: skip
    found = run(prog, machine((0, 0), memory="13 GB"))
    assert found.status == "oom"
    out = found.memory.out_of_memory
    assert out is not None
    assert (out.rank, out.op, out.epoch, out.held_bytes, out.available_bytes) == (1, "b", 0, 14 * GB, 13 * GB)
    assert 0 < out.needed_bytes - 14 * GB < 2 * ROUND_LARGE, "each buffer has a segment of its own"
    assert "rank 1 runs out of memory at op 'b' of epoch 1" in found.message
    assert run(prog, machine((0, 0), memory="14 GB")).status == "oom"
    assert run(prog, machine((0, 0), memory=f"{out.needed_bytes} B")).status == "ok"
    together = run(prog, machine((0, 0), kind="cpu", memory="13 GB")).memory.out_of_memory
    assert together is not None
    assert together.needed_bytes > 13 * GB
    always = run(chain(Buffer("x", 1, 1), Buffer("y", 30, GB, "uint8", persistent=True)), machine((0,), memory="29 GB"))
    assert always.memory.out_of_memory is not None
    assert always.memory.out_of_memory.held_bytes == 30 * GB


def test_all_that_is_resident_counts_against_the_capacity() -> None:
    # x is cut from the freed segment of w, whose rest then is too small for y: 7 GB of buffers need 13 GB
    ops = [op("a", "elementwise", "compute", "", "w", work=seconds_of_work(1.0)),
           op("b", "elementwise", "compute", "", "x", "a", work=seconds_of_work(1.0)),
           op("c", "elementwise", "compute", "x", "y", "b", work=seconds_of_work(1.0))]  # fmt: skip
    sizes = {"w": 6, "x": 1, "y": 6}
    buffers = [Buffer(name, GB, width, "uint8") for name, width in sizes.items()]
    prog = program("p", {"epoch": ops}, Calendar("epoch"), buffers, [Stream("compute")], (0,))
    found = run(prog, machine((0,), memory="13.1 GB"))
    assert found.memory.device.tolist() == [7 * GB]
    assert found.status == "ok"
    [peak] = found.memory.peaks
    assert peak.peak_bytes == pytest.approx(12 * GB, rel=0.001)
    assert peak.parts["kept free by the allocator"] == pytest.approx(5 * GB, rel=0.001)
    assert peak.text() == "Peak 11.2 of 12.2 GiB (92 %) on rank 0"
    full = run(prog, machine((0,), memory="11 GB"))
    assert full.status == "oom", "its buffers alone would fit"
    assert full.memory.peaks[0].peak_bytes == peak.peak_bytes, "the peak is what a larger device would show"
    assert "would hold 11.18 GiB, of which buffers hold 6.519 GiB" in full.message


def test_ranks_on_one_cpu_share_its_memory() -> None:
    prog = chain(Buffer("x", Column("rows"), 3, "uint8"), Buffer("y", Column("rows"), 4, "uint8"), hosts=(0, 0),
                 columns={"rows": [GB, 2 * GB]})  # fmt: skip
    [peak] = run(prog, machine((0, 0), kind="cpu", cores=2)).memory.peaks
    assert (peak.place, peak.ranks, peak.fullest, peak.peak_bytes) == ("device", [0, 1], 1, 21 * GB)
    assert peak.text() == "Peak 19.6 of 74.5 GiB (26 %) on node/dev (ranks 0-1)"


def test_host_memory_runs_out_beside_gpus() -> None:
    buffers = (Buffer("x", GB, 3, "uint8"), Buffer("y", GB, 4, "uint8", space="host"),
               Buffer("all", GB, 2, "uint8", space="host-shared", persistent=True))  # fmt: skip
    prog, on = chain(*buffers, hosts=(0, 0)), machine((0, 0))
    assert run(prog, on).status == "ok", "the profile states no host memory, so nothing is known to run out"
    table = on.profile.to_table()
    for text, status in (("10 GB", "ok"), ("9 GB", "oom")):
        table["topology"]["hosts"]["node"]["memory"] = {"value": text, "source": "assumed"}
        found = run(prog, Machine.place(parse_profile(table), (0, 0)))
        assert found.status == status
    out = found.memory.out_of_memory
    assert out is not None
    assert (out.op, out.needed_bytes, out.available_bytes) == ("b", 10 * GB, 9 * GB)
    assert "its host's memory would hold 9.313 GiB, and has 8.382 GiB" in found.message
    table["topology"]["hosts"]["node"]["memory"]["value"] = "1 GB"
    always = run(prog, Machine.place(parse_profile(table), (0, 0))).memory.out_of_memory
    assert always is not None
    assert always.needed_bytes == 2 * GB


def test_what_nobody_decided_counts_as_its_bound() -> None:
    prog = chain(Buffer("x", Decision("moved", 10 * GB), 1, "uint8"), Buffer("y", 1, 1, "uint8"))
    assert run(prog, machine((0,))).memory.device.tolist() == [10 * GB + 1]
    moved = np.full((1, 2, 1), 2 * GB)
    moved[0, 1] = 3 * GB
    assert run(prog, machine((0,)), epochs=2, activity={"moved": moved}).memory.device.tolist() == [3 * GB + 1]


def test_a_plans_memory_is_between_its_largest_and_all_of_its_buffers() -> None:
    hosts = spread(4, 2)
    stats = statistics(hosts)
    prog = vanilla(stats)
    found = run(prog, shipped("a800-pcie-ib-2x8", hosts), epochs=3, stats=stats).memory
    sizes = [prog.sizes.per_rank(b.rows, 0, 0) * b.row_bytes for b in prog.buffers.values()]
    assert np.all(found.both >= np.max(sizes, axis=0))
    assert np.all(found.both <= np.sum(sizes, axis=0))


def joules(found) -> dict[str, float | None]:
    return {figure.name: figure.total_J for figure in found.energy}


def test_energy_is_power_over_time() -> None:
    # rank 0 computes 2 s, rank 1 1 s; then 1 s of transfer
    prog = program("p", {"epoch": [op("w", "elementwise", "compute", work=seconds_of_work(1.0)),
                                   op("v", "elementwise", "compute", after="w", ranks="two", work=seconds_of_work(1.0)),
                                   op("a", "allreduce", "comm", after="w v", transfer=Transfer(10 * GB))]},
                   Calendar("epoch"), [], [Stream("compute"), Stream("comm", group="g")], (0, 0),
                   columns={"two": [1, 0]})  # fmt: skip
    power = {"idle_power": "50 W", "active_power": "300 W"}
    found = run(prog, machine((0, 0), power=power), epochs=2)
    assert joules(found) == pytest.approx({"node/dev0": 4 * 300 + 2 * 50, "node/dev1": 2 * 300 + 4 * 50})
    for figure, each in zip(found.energy, (650, 400), strict=True):
        assert (figure.status, figure.host, figure.duration_s) == ("estimated", "node", pytest.approx(6.0))
        assert figure.mean_power_W == pytest.approx(each / 3)
        assert (figure.epoch_mean_J, figure.epoch_min_J, figure.epoch_max_J) == pytest.approx((each, each, each))
    # two ranks on one device: it is active while either computes
    [shared] = run(prog, machine((0, 0), kind="cpu", cores=2, power=power)).energy
    ends = run(prog, machine((0, 0), kind="cpu", cores=2, power=power)).columns["ended_s"].max()
    assert shared.total_J == pytest.approx(2 * 300 + (ends - 2) * 50)
    assert shared.ranks == [0, 1]


def test_a_device_that_never_computes_draws_its_idle_power() -> None:
    prog = program("p", {"epoch": [op("a", "allreduce", "comm", transfer=Transfer(10 * GB))]}, Calendar("epoch"), [],
                   [Stream("comm", group="g")], (0, 0))  # fmt: skip
    found = run(prog, machine((0, 0), power={"idle_power": "50 W", "active_power": "300 W"}), epochs=3)
    ends = float(found.columns["ended_s"].max())
    assert ends > 0
    assert joules(found) == pytest.approx({"node/dev0": 50 * ends, "node/dev1": 50 * ends})


def test_energy_is_never_made_up() -> None:
    prog = chain(Buffer("x", 1, 1), Buffer("y", 1, 1))
    for power in (None, {"active_power": "300 W"}, {"idle_power": "50 W"}):
        [figure] = run(prog, machine((0,), power=power)).energy
        assert (figure.status, figure.total_J, figure.epoch_mean_J) == ("unavailable", None, None)
        assert "set devices.dev.idle_power and devices.dev.active_power" in figure.source


def test_time_in_a_union_of_stretches() -> None:
    begin, end = np.array([5, 0, 2, 9]) * PS, np.array([6, 3, 3, 9]) * PS
    moments = np.array([0.0, 1.0, 3.0, 4.0, 5.5, 8.0, 20.0])
    assert active_time(begin, end)(moments).tolist() == [0.0, 1.0, 3.0, 3.0, 3.5, 4.0, 4.0]
    assert active_time(begin[:0], end[:0])(moments).tolist() == [0.0] * 7
