"""Libraries that send from host memory: copies out of the device, the call, copies back, one after the other."""

from collections.abc import Sequence

import numpy as np
import pytest

from simgnn.hardware.price.host_copies import host_route
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.operations import read_question
from simgnn.hardware.profile.profile import load_profile
from simgnn.program.kinds import OpKind
from simgnn.sim.engine.handlers import staged_collective
from simgnn.sim.one_op import one_op_program, time_op
from simgnn.sim.simulate import simulate

MIB = 1 << 20


def server(ranks: int, memory: str = "host") -> Machine:
    """Ranks on the server without peer access whose Gloo takes buffers of ``memory``."""
    profile = load_profile("mixed-pcie3-8")
    gloo = profile.backends["gloo"].model_copy(update={"memory": memory})
    return Machine.place(profile.model_copy(update={"backends": {"gloo": gloo}}), [0] * ranks)


def copy_s(machine: Machine, rank: int, nbytes: float, to_device: bool) -> float:
    path = host_route(machine, rank, to_device)
    assert path is not None
    return path.latency_s + nbytes / path.message_rate(nbytes)


def exchange_s(machine: Machine, matrix: Sequence[Sequence[int]]) -> float:
    return time_op(read_question("exchange", {}, matrix=matrix), machine).seconds


def test_an_exchange_of_two_is_the_sum_of_its_copies_and_its_messages() -> None:
    machine = server(2)
    each = 64 * MIB
    price = machine.message(0, 1, each)
    call = machine.call("exchange", "gloo", (0, 1))
    expected = (
        copy_s(machine, 0, each, False)
        + call.floor_s
        + call.hop_s
        + price.latency_s
        + each / price.rate_bytes_per_s
        + copy_s(machine, 0, each, True)
    )
    assert exchange_s(machine, [[0, each], [each, 0]]) == pytest.approx(expected, rel=1e-6)


def test_a_rank_copies_only_what_it_sends_and_receives() -> None:
    machine = server(2)
    each = 64 * MIB
    found = time_op(read_question("exchange", {}, matrix=[[0, each], [0, 0]]), machine)
    price = machine.message(0, 1, each)
    call = machine.call("exchange", "gloo", (0, 1))
    sender = (
        copy_s(machine, 0, each, False) + call.floor_s + call.hop_s + price.latency_s + each / price.rate_bytes_per_s
    )
    assert found.per_rank_s[0] == pytest.approx(sender, rel=1e-6)
    assert found.per_rank_s[1] == pytest.approx(sender + copy_s(machine, 1, each, True), rel=1e-6)


def test_a_library_that_reads_devices_copies_nothing_around() -> None:
    each = 64 * MIB
    matrix = [[0, each], [each, 0]]
    assert exchange_s(server(2, "device"), matrix) < 0.7 * exchange_s(server(2), matrix)


def test_copies_of_ranks_contend_where_they_share_a_link() -> None:
    each = 64 * MIB
    table = load_profile("mixed-pcie3-8").to_table()
    table["links"]["dram"]["bandwidth"]["value"] = "5 GB/s"
    from simgnn.hardware.profile.profile import parse_profile

    narrow = Machine.place(parse_profile(table), [0] * 3)
    others = [[0, each, each], [each, 0, each], [each, each, 0]]
    assert exchange_s(narrow, others) > 1.2 * exchange_s(server(3), others)


@pytest.mark.parametrize("op", ["allreduce", "broadcast", "allgather", "barrier"])
def test_collectives_are_copied_around_too(op: str) -> None:
    given = {} if op == "barrier" else {"bytes": "64 MiB"}
    question = read_question(op, given, ranks=4)
    host, device = time_op(question, server(4)), time_op(question, server(4, "device"))
    if op == "barrier":
        assert host.seconds == device.seconds
        return
    out = copy_s(server(4), 0, 64 * MIB, False)
    back = copy_s(server(4), 0, 64 * MIB * (4 if op == "allgather" else 1), True)
    price = server(4).collective(op, "gloo", 64 * MIB, (0, 1, 2, 3))
    assert host.seconds == pytest.approx(out + price.seconds_alone + back, rel=1e-3)


def test_bytes_of_collectives() -> None:
    handed, members = np.array([5, 5, 0, 5]), (0, 1, 3)
    assert staged_collective(OpKind.ALLREDUCE, handed, members).back.tolist() == [5, 5, 0, 5]
    assert staged_collective(OpKind.ALLGATHER, handed, members).back.tolist() == [15, 15, 0, 15]
    root = np.array([0, 7, 0, 0])
    assert staged_collective(OpKind.BROADCAST, root, members).out.tolist() == [0, 7, 0, 0]
    assert staged_collective(OpKind.BROADCAST, root, members).back.tolist() == [7, 0, 0, 7]
    assert staged_collective(OpKind.BARRIER, np.zeros(4, dtype=np.int64), members).back.tolist() == [0, 0, 0, 0]


def test_epochs_left_out_are_the_epochs_simulated() -> None:
    machine = server(4)
    matrix = [[0 if i == j else (1 + i + 2 * j) * MIB for j in range(4)] for i in range(4)]
    program = one_op_program(read_question("exchange", {}, matrix=matrix), machine)
    jumped, each = (simulate(program, machine, epochs=12, fast_forward=on) for on in (True, False))
    for name in ("rank", "epoch", "issued_s", "started_s", "ended_s"):
        assert np.array_equal(jumped.columns[name], each.columns[name])


def test_a_question_tells_the_numbers_of_the_copies() -> None:
    found = time_op(read_question("exchange", {}, matrix=[[0, MIB], [MIB, 0]]), server(2))
    assert any(told.key.startswith("links.pcie3-x8") for told in found.numbers)
