"""Queues of copies: streams of a rank, and a server that the ranks of a host share, in closed form."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from programs.notation import op, program

from sim.engine_programs import STREAMS, TICK, one, work
from sim.worlds import machine, run, times
from simgnn.errors import ProgramError
from simgnn.hardware.price.host_copies import host_route
from simgnn.hardware.price.machine import Machine
from simgnn.hardware.price.work import price_work
from simgnn.hardware.profile.profile import load_profile
from simgnn.program.calendar import Calendar
from simgnn.program.ops import Buffer, Stream, Transfer
from simgnn.program.sizes import Column, Route
from simgnn.program.validate import validate
from simgnn.record.summary import computing_ops
from simgnn.sim.limited_by.critical_path import critical_path
from simgnn.sim.simulate import simulate

MERGE = Stream("merge", in_turn=True)
OUT = Stream("out")
HOSTS = (0, 0, 0, 1)


def cpu(hosts: tuple[int, ...], **options: Any) -> Machine:
    """Copies take 1 s for each GB, and nobody waits for a core."""
    return machine(hosts, kind="cpu", cores=64, threads=1, **options)


def copied(name: str, stream: str, column: str, after: str = "", kind: str = "copy", **fields: Any) -> Any:
    """A copy of as many bytes as a column of the rank says, in GB."""
    return op(name, kind, stream, after=after, transfer=Transfer(10**9, Column(column)), **fields)


def merging(arrive: list[int], lasts: list[int], epochs: int = 1) -> Any:
    ops = (copied("out", "out", "arrive", "merge<<1", kind="d2h"), copied("merge", "merge", "lasts", "out"))
    columns = {"arrive": arrive, "lasts": lasts}
    return one(*ops, hosts=HOSTS, streams=(*STREAMS, OUT, MERGE), columns=columns)


def test_ranks_of_a_host_are_served_in_the_order_in_which_they_come() -> None:
    # rank 1 comes at 1 s, rank 0 at 3 s, rank 2 at 4 s; rank 3 has a host of its own
    found = run(merging([3, 1, 4, 2], [2, 5, 1, 2]), cpu(HOSTS))
    expected = [(3.0, 6.0, 8.0), (1.0, 1.0, 6.0), (4.0, 8.0, 9.0), (2.0, 2.0, 4.0)]
    for rank, spans in enumerate(expected):
        assert times(found, "merge", rank) == pytest.approx(spans, abs=TICK)
    assert found.epoch_s == pytest.approx([9.0], abs=TICK)
    # who waits does not compute
    assert not computing_ops(found.program).any()
    assert found.wait_s[0] == pytest.approx([3.0, 0.0, 4.0, 0.0], abs=TICK)
    assert found.comm_total_s[0] == pytest.approx([5.0, 6.0, 5.0, 4.0], abs=TICK)
    # what the epoch waited for: rank 1's copy and merge, then rank 0's and rank 2's
    path = critical_path(found.compiled, found.columns, sizes(found), 0)
    assert [(piece.rank, piece.compiled.op.name, piece.seconds) for piece in path if piece.compiled] == [
        (2, "merge", pytest.approx(1.0)), (0, "merge", pytest.approx(2.0)), (1, "merge", pytest.approx(5.0)),
        (1, "out", pytest.approx(1.0)),
    ]  # fmt: skip


def sizes(found: Any) -> Any:
    from simgnn.sim.engine.turn_sizes import Sizes

    return Sizes(found.program, {})


def test_ranks_that_come_at_once_are_served_by_number() -> None:
    found = run(merging([1, 1, 1, 1], [1, 2, 3, 4]), cpu(HOSTS))
    assert [times(found, "merge", rank)[1] for rank in range(4)] == pytest.approx([1.0, 2.0, 4.0, 1.0], abs=TICK)


def test_queues_that_cross_epochs_are_fast_forwarded_exactly() -> None:
    made, on = merging([3, 1, 4, 2], [2, 5, 1, 6]), cpu(HOSTS)
    short, long = (run(made, on, epochs=40, fast_forward=forward) for forward in (True, False))
    assert short.copied, "epochs repeat"
    assert short.digest == long.digest
    for host in (0, 1):
        mine = np.array([HOSTS[rank] == host for rank in range(4)])[long.columns["rank"]] & (long.columns["op_id"] == 1)
        issued, started, ended = (long.columns[f"{name}_s"][mine] for name in ("issued", "started", "ended"))
        order = np.argsort(started, kind="stable")
        assert (np.diff(issued[order]) >= 0).all()
        assert all(started[after] >= ended[before] - TICK for before, after in pairwise(order))


P, K, LOAD, U, S, E, F, H, W = 1.0, 1.0, 1.5, 1.0, 4.0, 3.0, 1.0, 2.0, 1.0
"""Seconds: pack, pick, load, put, sum own rows, exchange, fill, add halo rows, update."""


def steady(layers: int, depth: int | None) -> Any:
    """A steady epoch of two ranks on two hosts: with queues, which read ``depth`` layers ahead; None: in one stream."""
    queues, ops, before = depth is not None, [], ""
    for layer in range(1, layers + 1):

        def named(*parts: str, layer: int = layer) -> str:
            return " ".join(f"{part}{layer}" for part in parts)

        ready = f"update{layer - 1 - depth}" if depth is not None and layer - 1 - depth > 0 else ""
        own = f"update{layer - 1}" if layer > 1 else ""
        chain = [
            ("pack", P, own), ("exchange", E, named("pack")), ("pick", K, own), ("load", LOAD, ready),
            ("put", U, named("pick", "load")), ("own", S, own), ("fill", F, named("put", "exchange")),
            ("halo", H, named("own", "fill")), ("update", W, named("halo")),
        ]  # fmt: skip
        for what, lasts, after in chain:
            name, waits = named(what), after if queues else before
            before = name
            if what == "exchange":
                ops.append(op(name, "exchange", "comm", after=waits, route="r", transfer=Transfer(1)))
            elif what == "load":
                load = Transfer(round(lasts * 1e9))
                ops.append(op(name, "h2d", "in" if queues else "compute", after=waits, transfer=load))
            else:
                ops.append(work(name, lasts, waits))
    route = Route.from_matrix(np.array([[0, 1], [1, 0]]) * round(E * 1e9))
    return one(*ops, hosts=(0, 1), streams=(*STREAMS, Stream("in")), routes={"r": route})


def test_a_steady_epoch_with_queues_in_closed_form() -> None:
    on = cpu((0, 1))
    for layers in (1, 2, 3):
        # one after the other; with queues own rows are summed while others travel, and loads take no time of a layer
        bulk = run(steady(layers, None), on)
        assert bulk.epoch_s == pytest.approx([layers * (P + E + K + LOAD + U + S + F + H + W)], abs=TICK)
        queued = run(steady(layers, 1), on)
        assert queued.epoch_s == pytest.approx([layers * (P + K + U + S + F + H + W)], abs=TICK)
    layer_s = P + K + U + S + F + H + W
    found = run(steady(3, 1), on)
    # layers 1 and 2 are read from the start, one after the other; layer 3 as layer 2 begins
    assert [times(found, f"load{layer}")[0] for layer in (1, 2, 3)] == pytest.approx([0, LOAD, layer_s], abs=TICK)
    late = run(steady(3, 0), on)
    assert [times(late, f"load{layer}")[0] for layer in (1, 2, 3)] == pytest.approx([0, layer_s, 2 * layer_s], abs=TICK)
    assert late.epoch_s == pytest.approx(found.epoch_s, abs=TICK), "a layer's own rows take longer than its load"


def test_merges_beside_gpus_are_work_of_the_host_and_follow_one_another() -> None:
    on = Machine.place(load_profile("mixed-pcie3-8"), [0] * 3, 1)
    nbytes, rows = 1 << 30, 1 << 20
    shared = Buffer("shared", rows, 256, space="host-shared", persistent=True)
    staged = Buffer("staged", rows, 256, space="host")
    copies = (
        op("out", "d2h", "out", "", "staged", transfer=Transfer(1024, rows)),
        op("merge", "copy", "merge", "staged", "shared", "out", transfer=Transfer(1024, rows)),
    )
    made = program("p", {"epoch": copies}, Calendar("epoch"), [shared, staged], [*STREAMS, OUT, MERGE], [0] * 3)
    found = simulate(made, on, epochs=1)
    way, worker = host_route(on, 0, to_device=False), on.host_worker(0, "copy")
    assert way is not None
    assert worker is not None
    size = {"bytes": np.array([nbytes]), "item_bytes": np.array([1])}
    price = price_work(worker.device, worker.name, "copy", size, None, 1, 1)
    each = float(price.seconds[0]) / on.threads_per_rank[0]
    arrived = way.latency_s + nbytes / way.message_rate(nbytes)
    merges = sorted(times(found, "merge", rank)[2] for rank in range(3))
    assert merges == pytest.approx([arrived + (place + 1) * each for place in range(3)], rel=1e-3)
    assert not found.extrapolated


def test_a_server_in_turn_is_one_a_host_without_a_group() -> None:
    made = merging([1] * 4, [1] * 4)
    for wrong in (replace(MERGE, servers=2), replace(MERGE, owner="host"), replace(MERGE, group="world")):
        with pytest.raises(ProgramError, match="in turn"):
            validate(replace(made, streams={**made.streams, "merge": wrong}))
