"""HongTu: batches of chunks whose rows live on the host; each transition row crosses the host link once, other devices
read it from the one that loaded it, between two barriers (HongTu). A step is a batch."""

import numpy as np

from programs.notation import op, program
from simgnn.program.calendar import Calendar
from simgnn.program.ops import Buffer, Stream, Transfer
from simgnn.program.program import Program
from simgnn.program.sizes import Column, Route

WIDTH, BATCHES, ROWS = 128, 4, 3000


def build(ranks: int = 2) -> Program:
    """One layer forward of ``BATCHES`` batches."""
    pairs = [(i, j) for i in range(ranks) for j in range(ranks) if i != j]
    rows = np.array([[500 + 10 * batch for batch in range(BATCHES)] for _ in pairs], dtype=np.int64)
    route = Route(np.array([i for i, _ in pairs], np.int32), np.array([j for _, j in pairs], np.int32), rows)
    loads = np.array([[900 - 50 * batch for batch in range(BATCHES)] for _ in range(ranks)])
    buffers = [
        Buffer("store", Column("rows"), WIDTH, space="host", persistent=True),
        Buffer("merged", 1500, WIDTH, persistent=True),
        Buffer("aggregated", 700, WIDTH),
        Buffer("out", 700, WIDTH),
        Buffer("aggregate_store", Column("rows"), WIDTH, space="host", persistent=True),
        Buffer("out_store", Column("rows"), WIDTH, space="host", persistent=True),
    ]
    ops = [
        op("load", "h2d", "copy_in", "store merged", "merged", "placed<1 aggregate<1",
           transfer=Transfer(4 * WIDTH, Column("loads"))),
        op("loaded", "barrier", "sync", after="load"),
        op("gather", "peer_read", "p2p", "merged", "merged", "loaded", route="remote", transfer=Transfer(4 * WIDTH)),
        op("placed", "barrier", "sync", after="gather"),
        op("aggregate", "aggregate", "compute", "merged", "aggregated", "placed transform<1 keep<1"),
        op("transform", "transform", "compute", "aggregated", "out", "aggregate save<1"),
        op("keep", "d2h", "copy_out", "aggregated", "aggregate_store", "aggregate keep<1"),
        op("save", "d2h", "copy_out", "out", "out_store", "transform save<1"),
    ]  # fmt: skip
    return program(
        "hongtu-batch",
        {"batch": ops},
        Calendar("batch", steps=BATCHES),
        buffers,
        [
            Stream("compute"),
            Stream("copy_in"),
            Stream("copy_out"),
            Stream("p2p"),
            Stream("sync", group="world"),
        ],
        hosts=[0] * ranks,
        columns={"rows": np.full(ranks, ROWS), "loads": loads},
        routes={"remote": route},
    )
