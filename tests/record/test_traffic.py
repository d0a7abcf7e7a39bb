"""One definition of traffic: collectives count what their algorithms send, as many bytes whichever algorithm it is."""

from dataclasses import replace

import numpy as np
import pytest
from programs.notation import op, program

from simgnn.hardware.price.collectives import binomial_rounds, flow_bytes, flow_pairs
from simgnn.program.calendar import Calendar
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Group, Stream, Transfer
from simgnn.record.traffic import bytes_per_handed_byte, traffic_by_rank

ALGORITHMS = [("allreduce", "ring"), ("allreduce", "tree"), ("broadcast", "ring"), ("broadcast", "tree"),
              ("broadcast", "binomial"), ("allgather", "ring"), ("allgather", "tree"), ("barrier", "tree")]  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(("kind", "algorithm"), ALGORITHMS)
def test_every_algorithm_sends_as_much_as_the_definition(kind: str, algorithm: str, ranks: int) -> None:
    members = list(range(ranks))
    if algorithm == "binomial":
        pairs = [pair for part in binomial_rounds(members, ranks - 1) for pair in part]
    else:
        pairs = flow_pairs(kind, algorithm, members, ranks - 1)
    sent = len(pairs) * flow_bytes(kind, algorithm, ranks, 1000.0)
    handing = 1 if kind == "broadcast" else ranks
    assert sent == pytest.approx(handing * 1000.0 * bytes_per_handed_byte(OpKind(kind), ranks))


def test_ranks_count_payload_and_control_of_messages_and_collectives() -> None:
    ops = [
        op("sum", "allreduce", "comm", transfer=Transfer(10)),
        op("agree", "allreduce", "comm", after="sum", transfer=Transfer(1, control=True)),
        op("rows", "broadcast", "comm", after="agree", root=1, transfer=Transfer(10)),
        op("pairs", "allgather", "near", after="rows", transfer=Transfer(10)),
    ]
    streams = [Stream("comm", group="all"), Stream("near", group="host")]
    made = program("p", {"epoch": ops}, Calendar("epoch"), [], streams, (0, 0, 1, 1))
    made = replace(made, groups={"all": Group("all"), "host": Group("host", "host")})
    rows = [
        (0, 0, 0, 0, 100, 0),  # of a first epoch, which does not count
        *((rank, 1, 0, 0, 100, 0) for rank in range(4)),
        *((rank, 1, 1, 0, 0, 8) for rank in range(4)),
        (1, 1, 2, 0, 100, 0),
        *((rank, 1, 3, 0, 100, 0) for rank in range(4)),
        (3, 1, 2, 7, 0, 5),
    ]
    names = ("rank", "epoch", "op_id", "bytes_sent", "collective_bytes", "control_bytes")
    trace = dict(zip(names, np.array(rows).T, strict=True))
    trace["step"] = np.zeros(len(rows))
    found = traffic_by_rank(made, trace, range(1, 2))
    # 2 (P - 1) / P of an all-reduce, P - 1 times a broadcast from its root, once a part of two ranks
    assert found.payload == pytest.approx([150 + 100, 150 + 300 + 100, 150 + 100, 150 + 100 + 7])
    assert found.control == pytest.approx([12, 12, 12, 12 + 15])
    assert found.total == pytest.approx(np.add(found.payload, found.control))
