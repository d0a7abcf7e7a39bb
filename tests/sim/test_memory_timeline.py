"""Memory of device and host over time, and what PyTorch's allocator keeps of it, in closed form."""

import numpy as np
import pytest
from programs.notation import op, program

from sim.planned import shipped, spread, statistics, vanilla
from sim.worlds import machine, run, seconds_of_work
from simgnn.program.calendar import Calendar
from simgnn.program.ops import Buffer, Stream
from simgnn.program.program import Program
from simgnn.sim.memory.timeline import always_bytes

GB = 10**9


def chain() -> Program:
    """a writes x; b reads x, writes y; c reads y: one second each. ``y`` lies in the host's memory."""
    ops = [
        op("a", "elementwise", "compute", "", "x", work=seconds_of_work(1.0)),
        op("b", "elementwise", "compute", "x", "y", "a", work=seconds_of_work(1.0)),
        op("c", "elementwise", "compute", "y", "", "b", work=seconds_of_work(1.0)),
    ]
    buffers = [Buffer("x", GB, 3, "uint8"), Buffer("y", GB, 4, "uint8", space="host"),
               Buffer("z", GB, 1, "uint8", persistent=True)]  # fmt: skip
    return program("p", {"epoch": ops}, Calendar("epoch"), buffers, [Stream("compute")], (0, 0))


def test_each_change_of_what_a_rank_holds_is_a_row() -> None:
    found = run(chain(), machine((0, 0))).memory.timeline
    for rank in (0, 1):
        rows = [row for row in found.to_pylist() if row["rank"] == rank]
        assert [row["time_s"] for row in rows] == [0.0, 1.0, 2.0, 3.0]
        assert [row["device_bytes"] for row in rows] == [4 * GB, 4 * GB, GB, GB]
        assert [row["host_bytes"] for row in rows] == [0, 4 * GB, 4 * GB, 0]


@pytest.mark.parametrize("epochs", [1, 6])
def test_the_timeline_reaches_the_peaks_and_nothing_above(epochs: int) -> None:
    hosts = spread(4, 2)
    stats = statistics(hosts)
    memory = run(vanilla(stats), shipped("a800-pcie-ib-2x8", hosts), epochs=epochs, stats=stats).memory
    found = memory.timeline
    table = {name: found[name].to_numpy() for name in found.column_names}
    for rank in range(4):
        mine = table["rank"] == rank
        assert table["device_bytes"][mine].max() == memory.device[rank]
        assert table["host_bytes"][mine].max() == memory.host[rank]
        assert (table["device_bytes"] + table["host_bytes"])[mine].max() == memory.both[rank]
        assert np.all(np.diff(table["time_s"][mine]) > 0)
        assert table["device_bytes"][mine][-1] == always_bytes(memory.kept, "device")[rank], "what dies is given back"


def test_a_gpu_reserves_more_than_it_holds_and_a_cpu_has_no_such_allocator() -> None:
    hosts = spread(4, 2)
    stats = statistics(hosts)
    program = vanilla(stats)
    memory = run(program, shipped("a800-pcie-ib-2x8", hosts), epochs=2, stats=stats).memory
    again = run(program, shipped("a800-pcie-ib-2x8", hosts), epochs=20, stats=stats).memory
    assert memory.reserved is not None
    assert np.all(memory.reserved >= memory.device)
    assert np.all(memory.reserved % 2**21 == 0)
    assert again.reserved is not None
    assert again.reserved.tolist() == memory.reserved.tolist(), "epochs that repeat reserve nothing more"
    assert run(chain(), machine((0, 0), kind="cpu")).memory.reserved is None
