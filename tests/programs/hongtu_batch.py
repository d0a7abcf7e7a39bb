"""HongTu: batches of chunks whose rows live on the host; each transition row crosses the host link once, other devices
read it from the one that loaded it, between two barriers (HongTu). A step is a batch. Rows that stay in the merged
buffer from one batch to the next keep their slots: they are neither loaded nor read again."""

from functools import cache

import numpy as np

from programs.chunked_graph import ChunkedGraph
from programs.notation import op, program
from simgnn.program.calendar import Calendar
from simgnn.program.ops import Buffer, Stream, Transfer
from simgnn.program.program import Program
from simgnn.program.sizes import Column

WIDTH, BATCHES = 128, 4
LISTS = {"load_from": "host", "load_to": "device", "sent": "device", "received": "device"}
"""Lists of rows, and the space in which they lie."""


@cache
def graph_of(ranks: int) -> ChunkedGraph:
    return ChunkedGraph(ranks, BATCHES)


def build(ranks: int = 2) -> Program:
    """One layer forward of ``BATCHES`` batches."""
    graph, batches = graph_of(ranks), range(BATCHES)
    columns = {"rows": np.diff(graph.starts), "merged": graph.merged_rows, **graph.chunk_columns(batches)}
    for name in LISTS:
        columns |= graph.columns(name, batches)
    buffers = [
        Buffer("store", Column("rows"), WIDTH, space="host", persistent=True),
        Buffer("merged", Column("merged"), WIDTH, persistent=True),
        Buffer("aggregated", Column("own/rows"), WIDTH),
        Buffer("out", Column("own/rows"), WIDTH),
        Buffer("aggregate_store", Column("rows"), WIDTH, space="host", persistent=True),
        Buffer("out_store", Column("rows"), WIDTH, space="host", persistent=True),
        *(Buffer(name, Column(f"{name}/all"), 1, "int64", space, persistent=True) for name, space in LISTS.items()),
    ]
    row = Transfer(4 * WIDTH)
    ops = [
        op("load", "h2d", "copy_in", "store[load_from]", "merged[load_to]", "placed<1 aggregate<1",
           transfer=Transfer(4 * WIDTH, Column("load_to/rows"))),
        op("loaded", "barrier", "sync", after="load"),
        op("gather", "peer_read", "p2p", "merged[sent]", "merged[received]", "loaded", route="remote", transfer=row),
        op("placed", "barrier", "sync", after="gather"),
        op("aggregate", "aggregate", "compute", "merged", "aggregated", "placed transform<1 keep<1", module="layer",
           action="aggregate"),
        op("transform", "transform", "compute", "aggregated", "out", "aggregate save<1", module="layer",
           action="transform"),
        op("keep", "d2h", "copy_out", "aggregated", "aggregate_store[:own]", "aggregate",
           transfer=Transfer(4 * WIDTH, Column("own/rows"))),
        op("save", "d2h", "copy_out", "out", "out_store[:own]", "transform",
           transfer=Transfer(4 * WIDTH, Column("own/rows"))),
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
            Stream("p2p", group="p2p"),
            Stream("sync", group="world"),
        ],
        hosts=[0] * ranks,
        columns=columns,
        routes={"remote": graph.route(graph.read, BATCHES, batches)},
    )
