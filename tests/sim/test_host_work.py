"""Work on rows in the memory of a GPU's host: the CPU's threads do it, and it shares that memory with copies."""

import numpy as np
import pytest

from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.work import flops_and_bytes, price_work
from simgnn.hardware.profile.profile import load_profile, parse_profile
from simgnn.program.calendar import Calendar
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Access, Buffer, Op, Stream, Transfer, Work
from simgnn.program.program import Program, Template
from simgnn.program.sizes import SizeTable
from tests.sim.worlds import run

ROWS, WIDTH = 400_000, 256
SIZES = {"rows": ROWS, "width": WIDTH, "item_bytes": 4}
DRAM, CPU_THREAD = 107e9, "scatter_add"
SERVER = "mixed-pcie3-8"


def machine(ranks: int, threads: int = 1, **changed: object) -> Machine:
    table = load_profile(SERVER).to_table()
    table["topology"]["hosts"]["server"] |= changed
    return Machine.place(parse_profile(table), [0] * ranks, threads)


def adds(ranks: int, space: str = "host", copies: bool = False) -> Program:
    """Every rank adds rows to others in its host's memory; and copies rows from there to its device meanwhile."""
    work = (Work("scatter_add", SIZES),)
    ops = [Op("add", OpKind.ADD, "cpu", (Access("given"), Access("sums")), (Access("sums"),), work=work)]
    if copies:
        rows = Transfer(WIDTH * 4, ROWS)
        ops.append(Op("copy", OpKind.H2D, "copy_in", (Access("stored"),), (Access("there"),), transfer=rows))
    buffers = {name: Buffer(name, ROWS, WIDTH, space=space, persistent=True) for name in ("given", "sums", "stored")}  # type: ignore[arg-type]
    buffers["there"] = Buffer("there", ROWS, WIDTH, persistent=True)
    return Program(
        "adds", {"steady": Template("steady", tuple(ops))}, Calendar("steady"), buffers,
        {name: Stream(name) for name in ("cpu", "copy_in")}, {}, SizeTable(ranks, {}, {}), (0,) * ranks,
    )  # fmt: skip


def one_thread_s(on: Machine) -> float:
    worker = on.host_worker(0, "scatter_add")
    assert worker is not None
    assert worker.origin, "the profile has no curve of its CPU: it is carried"
    sizes = {name: np.array([float(size)]) for name, size in SIZES.items()}
    return float(price_work(worker.device, worker.name, "scatter_add", sizes, None, 1, 1).seconds[0])


def touched_bytes() -> float:
    return float(flops_and_bytes("scatter_add", {name: np.array([float(size)]) for name, size in SIZES.items()})[1][0])


def test_a_rank_alone_is_as_fast_as_its_threads() -> None:
    one = run(adds(1), machine(1))
    assert one.epoch_s[0] == pytest.approx(one_thread_s(machine(1)), rel=1e-6)
    assert run(adds(1), machine(1, threads=2)).epoch_s[0] == pytest.approx(one.epoch_s[0] / 2, rel=1e-6)
    assert one.extrapolated == ()
    assert one.assumed == ("scatter_add of the CPU beside a GPU",)


def test_ranks_share_the_cores_of_their_host_as_the_executor_starts_them() -> None:
    """Without a stated number of threads each rank has its part of the cores of the CPU beside the GPUs."""
    profile = load_profile(SERVER)
    cpu = profile.topology.host_names()[0][1].cpu
    assert cpu is not None
    cores = profile.devices[cpu].cores
    assert cores is not None
    for ranks in (1, 4):
        on = Machine.place(profile, [0] * ranks)
        assert on.host_threads(0) == max(1, int(cores.value) // ranks)
        assert machine(ranks, threads=3).host_threads(0) == 3


def test_threads_of_ranks_share_the_memory_of_their_socket() -> None:
    """Forty threads want more than the memory gives: it decides. Ranks 0 and 1 have a socket each, 2 and 3 as well."""
    alone, pair, four = (run(adds(ranks), machine(ranks, threads=40)).epoch_s[0] for ranks in (1, 2, 4))
    assert touched_bytes() / (one_thread_s(machine(1)) / 40) > DRAM
    assert alone == pytest.approx(touched_bytes() / DRAM, rel=1e-6)
    assert pair == pytest.approx(alone, rel=1e-6)
    assert four == pytest.approx(2 * alone, rel=1e-6)


def test_copies_to_the_device_take_part_of_the_memory() -> None:
    """A copy at 4.45 GB/s leaves the rest of 107 GB/s to the adds that run meanwhile."""
    on = machine(1, threads=40)
    without, beside = (run(adds(1, copies=copies), on) for copies in (False, True))
    ended = [float(found.columns["ended_s"][found.columns["op_id"] == 0][0]) for found in (without, beside)]
    assert ended[1] / ended[0] == pytest.approx(DRAM / (DRAM - 4.45e9), rel=0.01)


def test_without_a_cpu_in_the_profile_it_is_flagged_as_before() -> None:
    table = load_profile(SERVER).to_table()
    del table["topology"]["hosts"]["server"]["cpu"]
    found = run(adds(1), Machine.place(parse_profile(table), [0]))
    assert found.extrapolated == ("add",)
    assert found.epoch_s[0] == 0


def test_rows_on_the_device_are_work_of_the_gpu() -> None:
    on = machine(1)
    device = run(adds(1, space="device"), on)
    assert device.epoch_s[0] < 0.2 * run(adds(1), on).epoch_s[0]
    assert device.assumed == ()


def test_times_are_those_of_faster_memory_where_it_decides() -> None:
    table = load_profile(SERVER).to_table()
    table["links"]["dram"]["bandwidth"]["value"] = "214 GB/s"
    slow = machine(1, threads=80)
    fast = Machine.place(parse_profile(table), [0], 80)
    assert run(adds(1), fast).epoch_s[0] == pytest.approx(run(adds(1), slow).epoch_s[0] / 2, rel=1e-6)
