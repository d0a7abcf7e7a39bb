"""Programs in closed form: transfers, collectives, overlap, streams, schedules."""

from dataclasses import replace

import pytest
from programs.notation import all_pairs, op, program

from sim.engine_programs import STREAMS, TICK, one, route, work
from sim.worlds import machine, run, times
from simgnn.program.calendar import Calendar
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Buffer, Stream, Transfer, Work
from simgnn.program.sizes import Column
from simgnn.sim.engine.handlers import HANDLERS


def test_every_kind_has_a_handler() -> None:
    assert set(HANDLERS) == set(OpKind)


def test_two_ranks_transfer() -> None:
    # 5e9 bytes over links of 10 GB/s with 1 ms of latency each, after a call of 2 ms and one peer of 3 ms
    on = machine((0, 0), latency=1e-3, floor=2e-3, hop=3e-3)
    found = run(one(op("x", "exchange", "comm", route="r", transfer=Transfer(1000)),
                    routes={"r": route([[0, 5_000_000], [0, 0]])}), on)  # fmt: skip
    assert found.epoch_s == pytest.approx([0.002 + 0.003 + 2 * 0.001 + 0.5], abs=TICK)
    assert found.bytes_sent().tolist() == [[0, 5_000_000_000], [0, 0]]
    assert found.messages().tolist() == [[0, 1], [0, 0]]


def test_an_exchange_starts_with_both_ends_and_a_rank_leaves_with_its_last_message() -> None:
    # rank 2 computes 1 s first; 0 and 1 do not wait for it to talk to one another
    matrix = [[0, 10, 0], [10, 0, 10], [0, 0, 0]]
    exchange = op("x", "exchange", "comm", after="w", route="r", transfer=Transfer(10**9))
    prog = one(work("w", 1.0, ranks="late"), exchange,
               hosts=(0, 0, 0), routes={"r": route(matrix)}, columns={"late": [0, 0, 1]})  # fmt: skip
    found = run(prog, machine((0, 0, 0)))
    assert times(found, "x", 0) == pytest.approx((0.0, 1.0, 1.0), abs=TICK), "through at 1 s, started is not after that"
    assert times(found, "x", 1) == pytest.approx((0.0, 1.0, 2.0), abs=TICK)
    assert times(found, "x", 2) == pytest.approx((1.0, 1.0, 2.0), abs=TICK)


def test_an_exchange_with_nothing_to_send_takes_no_time() -> None:
    prog = one(op("x", "exchange", "comm", route="r", transfer=Transfer(8)), routes={"r": route([[0, 0], [0, 0]])})
    assert run(prog, machine((0, 0), floor=1.0)).epoch_s == [0.0]


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_ring_allreduce(ranks: int) -> None:
    # 2 (P - 1) hops, and 2 (P - 1) / P of the buffer on each link of the ring
    on = machine((0,) * ranks, floor=0.1, hop=0.01)
    found = run(one(op("a", "allreduce", "comm", transfer=Transfer(10**9)), hosts=(0,) * ranks), on)
    assert found.epoch_s == pytest.approx([0.1 + 2 * (ranks - 1) * 0.01 + 2 * (ranks - 1) / ranks * 0.1], abs=TICK)
    assert found.sum_by_rank("collective_bytes").tolist() == [10**9] * ranks
    assert found.bytes_sent().sum() == 0


@pytest.mark.parametrize("kind", ["allreduce", "broadcast", "allgather", "barrier"])
@pytest.mark.parametrize("hosts", [(0, 0, 0), (0, 0, 1, 1)])
def test_a_collective_alone_takes_exactly_its_price(kind: str, hosts) -> None:
    on = machine(hosts, floor=1e-3, hop=1e-4, latency=1e-5)
    fields = {} if kind == "barrier" else {"transfer": Transfer(1000, 123_457)}
    root = {"root": 1} if kind == "broadcast" else {}
    found = run(one(op("c", kind, "comm", **fields, **root), hosts=hosts), on)
    nbytes = 0 if kind == "barrier" else 123_457_000
    price = on.collective(kind, "default", nbytes, range(len(hosts)), root.get("root"))
    assert found.epoch_s == pytest.approx([price.seconds_alone], abs=TICK)


def test_a_collective_shares_its_links() -> None:
    # an all-reduce of two ranks moves 1e10 bytes each way, as does the exchange beside it: both take twice as long
    streams = (Stream("comm", group="a"), Stream("other", group="b"))
    prog = one(op("a", "allreduce", "comm", transfer=Transfer(10**10)),
               op("x", "exchange", "other", route="r", transfer=Transfer(10**9)),
               streams=streams, routes={"r": all_pairs(2, 10)})  # fmt: skip
    assert run(prog, machine((0, 0))).epoch_s == pytest.approx([2.0], abs=TICK)


def test_a_perfectly_overlapped_chain() -> None:
    # four pieces, each 1 s of work then 1 s of transfer: 5 s, of which 1 s is exposed
    ops = []
    for piece in range(4):
        ops.append(work(f"w{piece}", 1.0))
        ops.append(op(f"x{piece}", "exchange", "comm", after=f"w{piece}", route="r", transfer=Transfer(10**9)))
    found = run(one(*ops, routes={"r": all_pairs(2, 10)}), machine((0, 0)))
    assert found.epoch_s == pytest.approx([5.0], abs=TICK)
    assert found.compute_s[0] == pytest.approx([4.0, 4.0])
    assert found.comm_total_s[0] == pytest.approx([4.0, 4.0])
    assert found.comm_exposed_s[0] == pytest.approx([1.0, 1.0])
    assert found.wait_s[0] == pytest.approx([0.0, 0.0])


def test_waiting_and_transfer_are_told_apart() -> None:
    prog = one(work("w", 3.0, ranks="slow"), op("a", "allreduce", "comm", after="w", transfer=Transfer(10**10)),
               columns={"slow": [0, 1]})  # fmt: skip
    found = run(prog, machine((0, 0)))
    assert found.wait_s[0] == pytest.approx([3.0, 0.0])
    assert found.comm_total_s[0] == pytest.approx([1.0, 1.0])
    assert found.comm_exposed_s[0] == pytest.approx([4.0, 1.0])


def test_groups_by_host_and_by_column() -> None:
    hosts = (0, 0, 1, 1)
    for members, slow in (("host", {0, 1}), ("pairs", {0, 2})):
        prog = one(work("w", 1.0, ranks="late"), op("b", "barrier", "comm", after="w"), hosts=hosts,
                   columns={"late": [1, 0, 0, 0], "pairs": [0, 1, 0, 1]})  # fmt: skip
        group = replace(prog.groups["world"], members=members)
        found = run(replace(prog, groups={"world": group}), machine(hosts))
        assert {rank for rank in range(4) if times(found, "b", rank)[2] > 0.5} == slow


def test_ranks_that_want_more_cores_share_them() -> None:
    # four ranks of one thread on two cores
    on = machine((0,) * 4, kind="cpu", cores=2)
    found = run(one(work("w", 1.0), hosts=(0,) * 4), on)
    assert found.epoch_s == pytest.approx([2.0], abs=TICK)
    alone = run(one(work("w", 1.0, ranks="first"), hosts=(0,) * 4, columns={"first": [1, 0, 0, 0]}), on)
    assert alone.epoch_s == pytest.approx([1.0], abs=TICK)


def test_a_stream_of_the_host_runs_once_and_all_its_ranks_wait() -> None:
    streams = (*STREAMS, Stream("cpu", owner="host"))
    prog = one(work("w", 1.0, ranks="slow"), work("shared", 1.0, "w", "cpu"), work("after", 1.0, "shared"),
               hosts=(0, 0, 1, 1), streams=streams, columns={"slow": [0, 1, 0, 0]})  # fmt: skip
    found = run(prog, machine((0, 0, 1, 1)))
    assert [times(found, "after", rank)[2] for rank in range(4)] == pytest.approx([3.0, 3.0, 2.0, 2.0])
    mask = found.columns["op_id"] == 1
    assert found.columns["rank"][mask].tolist() == [0, 2]


def test_servers_of_a_stream_work_at_once() -> None:
    streams = (*STREAMS, Stream("pool", servers=3))
    prog = one(*(work(f"s{k}", 1.0, stream="pool") for k in range(7)), streams=streams)
    assert run(prog, cores(8, (0, 0))).epoch_s == pytest.approx([3.0], abs=TICK)


def cores(count: int, hosts):
    """Ranks of one thread each on the cores of their host."""
    return machine(hosts, kind="cpu", cores=count, threads=1)


def test_streams_of_a_rank_share_its_device() -> None:
    streams = (*STREAMS, Stream("other"))
    prog = one(work("a", 1.0), work("b", 3.0, stream="other"), streams=streams)
    # a GPU, or one core for both: halved until the shorter is through at 2 s; then 2 s of the longer are left
    for on in (machine((0,)), cores(1, (0,))):
        found = run(replace(prog, hosts=(0,), sizes=replace(prog.sizes, ranks=1)), on)
        assert (times(found, "a")[2], times(found, "b")[2]) == pytest.approx((2.0, 4.0), abs=2 * TICK)
    # two ranks of two streams: four pieces on three cores, each at 3/4 until 4/3 s; then two pieces on three cores
    found = run(prog, cores(3, (0, 0)))
    assert times(found, "a")[2] == pytest.approx(4 / 3, abs=2 * TICK)
    assert times(found, "b")[2] == pytest.approx(4 / 3 + 2, abs=2 * TICK)
    assert run(prog, cores(4, (0, 0))).epoch_s == pytest.approx([3.0], abs=TICK), "cores enough: nobody waits"


def test_sampling_does_not_slow_a_gpu() -> None:
    sample = op("s", "sample", "other", work=(Work("sample", {"edges": 10**9, "vertices": 0}),))
    prog = one(work("a", 1.0), sample, streams=(*STREAMS, Stream("other")), hosts=(0,))
    assert run(prog, machine((0,))).epoch_s == pytest.approx([1.0], abs=TICK)


def test_a_stream_that_does_not_communicate_runs_what_is_ready() -> None:
    # "late" comes first in program order but waits for a transfer of 1 s; "early" runs meanwhile
    prog = one(op("x", "exchange", "comm", route="r", transfer=Transfer(10**9)), work("late", 1.0, "x"),
               work("early", 1.0), routes={"r": all_pairs(2, 10)})  # fmt: skip
    found = run(prog, machine((0, 0)))
    assert times(found, "early")[0] == 0.0
    assert found.epoch_s == pytest.approx([2.0], abs=TICK)


class Last:
    """A schedule that takes the last ready op, and counts its choices."""

    picks = True

    def init_pick(self) -> int:
        return 0

    def pick(self, ready, observed, state: int) -> tuple[int, int]:
        assert [found.op_id for found in ready] == sorted(found.op_id for found in ready)
        assert observed.ended["compute"] == state
        return len(ready) - 1, state + 1


def test_a_schedule_chooses_among_ready_ops() -> None:
    prog = one(*(work(f"w{k}", 1.0) for k in range(3)))
    found = run(prog, machine((0, 0)), schedule=Last())
    assert [times(found, f"w{k}")[0] for k in range(3)] == pytest.approx([2.0, 1.0, 0.0])


def test_dependencies_reach_over_steps_and_epochs() -> None:
    # the producer may be two steps ahead of the consumer, which takes twice as long
    ops = (work("produce", 1.0, "consume<2", "copy"), work("consume", 2.0, "produce"))
    prog = program("p", {"step": ops}, Calendar("step", steps=4), [], (Stream("compute"), Stream("copy")), (0,))
    found = run(prog, cores(8, (0,)), epochs=2)
    assert [times(found, "produce", epoch=e, step=s)[0] for e in (0, 1) for s in range(4)] == pytest.approx(
        [0, 1, 3, 5, 7, 9, 11, 13]
    )
    assert found.epoch_s == pytest.approx([9.0, 8.0])


def test_h2d_and_d2h_take_the_way_to_host_memory() -> None:
    prog = one(op("in", "h2d", "compute", transfer=Transfer(10**9, 5)), op("out", "d2h", "compute", after="in",
               transfer=Transfer(10**9, Column("rows"))), columns={"rows": [10, 20]})  # fmt: skip
    found = run(prog, machine((0, 0), latency=0.25))
    assert times(found, "in")[2] == pytest.approx(0.25 + 0.5, abs=TICK)
    assert times(found, "out", 1)[2] == pytest.approx(0.75 + 0.25 + 2.0, abs=TICK)
    cpu = run(prog, machine((0, 0), kind="cpu", cores=2))
    assert times(cpu, "in")[2] == pytest.approx(5.0, abs=TICK), "on a CPU it is a copy in memory, at 1 GB/s"


def test_peer_reads_pay_no_call() -> None:
    prog = one(op("p", "peer_read", "compute", route="r", transfer=Transfer(10**9)), routes={"r": all_pairs(2, 10)})
    assert run(prog, machine((0, 0), floor=5.0, hop=5.0)).epoch_s == pytest.approx([1.0], abs=TICK)


def test_a_fetch_is_counts_positions_and_rows() -> None:
    # rank 1 wants 1e9 rows of 10 bytes from rank 0: 8 bytes a pair, 8 GB of positions there, 10 GB of rows back
    prog = one(op("f", "fetch", "comm", route="r", transfer=Transfer(10)), routes={"r": route([[0, 10**9], [0, 0]])})
    found = run(prog, machine((0, 0)))
    assert found.epoch_s == pytest.approx([8e-10 + 0.8 + 1.0], abs=3 * TICK)
    assert found.bytes_sent().tolist() == [[0, 10**10], [8 * 10**9, 0]]
    assert found.sum_by_rank("control_bytes").tolist() == [8, 8]
    assert found.sum_by_rank("messages").tolist() == [1, 1]
    rounds = one(op("f", "fetch", "comm", route="r", transfer=Transfer(10), options={"round_rows": 4 * 10**8}),
                 routes={"r": route([[0, 10**9], [0, 0]])})  # fmt: skip
    cut = run(rounds, machine((0, 0)))
    assert cut.bytes_sent().tolist() == found.bytes_sent().tolist()
    assert cut.sum_by_rank("control_bytes").tolist() == [8 * 4, 8 * 4], "agreeing, then three rounds"
    assert cut.epoch_s[0] >= found.epoch_s[0]


def test_buffers_of_a_ring_let_a_later_turn_start() -> None:
    # nothing but the depth of a ring lets turns overlap
    for depth, expected in ((1, 8.0), (3, 5.0)):
        ops = (work("a", 1.0, stream="copy"), work("b", 1.0, "a"))
        prog = program("p", {"epoch": ops}, Calendar("epoch"), [Buffer("r", 1, 1, depth=depth)],
                       (Stream("compute"), Stream("copy")), (0,))  # fmt: skip
        assert run(prog, cores(8, (0,)), epochs=4).columns["ended_s"].max() == pytest.approx(expected)
