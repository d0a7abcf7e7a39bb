"""HongTu: a whole epoch of two layers in chunks, with unlike steps. Forward chunks of layer 1, of layer 2, backward
chunks of layer 2 (of which the first also clears the gradients of its inputs), of layer 1, then the update. Aggregates
are kept on the host and only updates are computed again.

Layer l: a = A h, h' = a W, after layer 1 with ReLU; the loss is the squared distance from targets, halved and summed.
"""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np

from programs.chunked_graph import ChunkedGraph
from programs.notation import op, program
from simgnn.program.calendar import Calendar, Stretch
from simgnn.program.ops import ITEM_BYTES, Buffer, Op, Stream, Transfer, Work
from simgnn.program.program import Program
from simgnn.program.sizes import Column, reverse_of

WIDTHS, LAYERS = (6, 5, 3), (1, 2)
LISTS = {
    "load_from": "host", "load_to": "device", "sent": "device", "received": "device",
    "owned": "device", "collected": "device", "evict_from": "device", "evict_to": "host",
}  # fmt: skip
"""Lists of rows, and the space in which they lie."""


@cache
def graph_of(ranks: int, chunks: int) -> ChunkedGraph:
    return ChunkedGraph(ranks, chunks)


def calendar_of(chunks: int) -> Calendar:
    """Steps of an epoch."""
    return Calendar.of_steps(
        (
            Stretch("forward/1", chunks),
            Stretch("forward/2", chunks),
            Stretch("backward/2/open"),
            Stretch("backward/2", chunks - 1),
            Stretch("backward/1", chunks),
            Stretch("update"),
        )
    )


def batches_of(chunks: int) -> list[int]:
    """The batch of each step; the update has none."""
    return [*(list(range(chunks)) * 4), -1]


def forward(layer: int, item: int) -> list[Op]:
    """One chunk of a layer. All chunks of a layer read rows that any chunk of the one before may have saved: the first
    load of a layer waits for the last save, and saves end one after the other."""
    width, up = WIDTHS[layer - 1], WIDTHS[layer]
    last = layer == LAYERS[-1]
    ops = [
        # "saved" closes each step: it waits for that of the step before, and so for all steps before
        op("load", "h2d", "copy_in", f"h{layer - 1}[load_from]", f"merged{layer}[load_to]",
           "saved<1 aggregate<1 gather<1", transfer=Transfer(item * width, Column("load_to/rows"))),
        op("gather", "peer_read", "p2p", f"merged{layer}[sent]", f"merged{layer}[received]", "load", route="read",
           transfer=Transfer(item * width)),
        op("aggregate", "aggregate", "compute", f"merged{layer}", f"a{layer}", "gather",
           work=(Work("elementwise", {"rows": Column("own/rows"), "width": width, "passes": 3, "item_bytes": item}),),
           module="layer", action=f"aggregate{layer}"),
        op("keep", "d2h", "copy_out", f"a{layer}", f"kept{layer}[:own]", "aggregate",
           transfer=Transfer(item * width, Column("own/rows"))),
        op("transform", "transform", "compute", f"a{layer} W{layer}", f"out{layer}", "aggregate optimize<1",
           module="layer", action=f"transform{layer}"),
    ]  # fmt: skip
    if last:
        ops.append(op("loss", "loss", "compute", f"out{layer} targets[:own]", "gout", "transform", module="layer",
                      action="loss"))  # fmt: skip
    source, target, made = ("gout", "g2", "loss") if last else (f"out{layer}", f"h{layer}", "transform")
    ops += [
        op(
            "save", "d2h", "copy_out", source, f"{target}[:own]", made, transfer=Transfer(item * up, Column("own/rows"))
        ),
        op("saved", "select", "host", after="save keep saved<1", module="layer", action="join"),
    ]
    return ops


def backward(layer: int, item: int, opens: bool = False) -> list[Op]:
    """One chunk of a layer, backward: the gradient of its output comes from the host, with the kept aggregate."""
    width, up = WIDTHS[layer - 1], WIDTHS[layer]
    ops = [
        op("take", "h2d", "copy_in", f"g{layer}[:own]", f"gin{layer}", "saved<1 transform/backward<1",
           transfer=Transfer(item * up, Column("own/rows"))),
        op("again", "h2d", "copy_in", f"kept{layer}[:own]", f"a{layer}", "saved<1 transform/backward<1",
           transfer=Transfer(item * width, Column("own/rows"))),
        op("transform/backward", "transform", "compute", f"gin{layer} a{layer} W{layer} dW{layer}",
           f"da{layer} dW{layer}", "take again transform/backward<1 optimize<1", module="layer",
           action=f"backward{layer}"),
    ]  # fmt: skip
    if layer == 1:
        return [*ops, op("saved", "select", "host", after="transform/backward saved<1", module="layer", action="join")]
    row, clear = Transfer(item * width), "clear " if opens else ""
    return [
        *([op("clear", "elementwise", "host", "", "g1", "saved<1", module="layer", action="clear")] if opens else []),
        *ops,
        op("spread", "aggregate", "compute", f"da{layer} gmerged", "gown gremote gmerged",
           "transform/backward evict<1 push<1", module="layer", action="spread"),
        op("push", "peer_read", "p2p", "gremote[:remote]", "arrived", "spread", route=reverse_of("need"), transfer=row),
        op("own", "add", "compute", "gown", "gmerged[owned]", "spread"),
        op("collect", "add", "compute", "arrived", "gmerged[collected]", "push own", route="need"),
        op("evict", "d2h", "copy_out", "gmerged[evict_from]", "evicted", "collect add<1",
           transfer=Transfer(item * width, Column("evict_from/rows"))),
        op("add", "add", "host", "evicted", "g1[evict_to]", f"{clear}evict add<1"),
        op("saved", "select", "host", after="add saved<1", module="layer", action="join"),
    ]  # fmt: skip


def update(item: int) -> list[Op]:
    """Sum the weights' gradients over ranks, and take a step."""
    return [
        op(
            "sum",
            "allreduce",
            "comm",
            "dW1 dW2",
            "dW1 dW2",
            "saved<1",
            transfer=Transfer(item * sum(width * up for width, up in pairwise(WIDTHS))),
        ),
        op("optimize", "optimize", "compute", "dW1 dW2 W1 W2", "dW1 dW2 W1 W2", "sum", module="layer", action="step"),
        op("saved", "select", "host", after="optimize saved<1", module="layer", action="join"),
    ]


def build(ranks: int = 2, chunks: int = 3, dtype: str = "float32") -> Program:
    """An epoch of 4 ``chunks`` + 1 steps, of rows of a type."""
    item = ITEM_BYTES[dtype]
    graph, batches = graph_of(ranks, chunks), batches_of(chunks)
    columns = {"rows": np.diff(graph.starts), "merged": graph.merged_rows, **graph.chunk_columns(batches)}
    for name in LISTS:
        columns |= graph.columns(name, batches)
    remote = np.array([[len(graph.remote(rank, batch)) for batch in range(chunks)] for rank in range(ranks)])
    need = graph.route(graph.remote, len(batches), batches)
    asked = np.zeros((ranks, len(batches)), np.int64)
    np.add.at(asked, need.source, need.rows)
    columns |= {
        "remote/rows": np.concatenate([np.tile(remote, 4), np.zeros((ranks, 1), np.int64)], axis=1),
        "remote/first": np.zeros((ranks, len(batches)), np.int64),
        "remote/all": remote.max(axis=1),
        "asked": asked,
    }
    stored = {"h0": 0, "h1": 1, "g1": 1, "g2": 2, "kept1": 0, "kept2": 1}
    buffers = [
        *(
            Buffer(name, Column("rows"), WIDTHS[of], space="host", persistent=name == "h0")
            for name, of in stored.items()
        ),
        Buffer("targets", Column("rows"), WIDTHS[-1], persistent=True),
        *(Buffer(name, Column(f"{name}/all"), 1, "int64", space, persistent=True) for name, space in LISTS.items()),
        Buffer("gmerged", Column("merged"), WIDTHS[1], persistent=True),
        Buffer("gown", Column("owned/rows"), WIDTHS[1]),
        Buffer("gremote", Column("remote/all"), WIDTHS[1]),
        Buffer("arrived", Column("asked"), WIDTHS[1]),
        Buffer("evicted", Column("evict_from/rows"), WIDTHS[1], space="host"),
        Buffer("gout", Column("own/rows"), WIDTHS[2]),
    ]
    for layer in LAYERS:
        width, up = WIDTHS[layer - 1], WIDTHS[layer]
        buffers += [
            Buffer(f"merged{layer}", Column("merged"), width, persistent=True),
            Buffer(f"a{layer}", Column("own/rows"), width),
            Buffer(f"out{layer}", Column("own/rows"), up),
            Buffer(f"gin{layer}", Column("own/rows"), up),
            Buffer(f"da{layer}", Column("own/rows"), width),
            Buffer(f"W{layer}", width, up, persistent=True),
            Buffer(f"dW{layer}", width, up, persistent=True),
        ]
    return program(
        "chunked-epoch",
        {
            "forward/1": forward(1, item),
            "forward/2": forward(2, item),
            "backward/2/open": backward(2, item, opens=True),
            "backward/2": backward(2, item),
            "backward/1": backward(1, item),
            "update": update(item),
        },
        calendar_of(chunks),
        [replace(buffer, dtype=dtype) if buffer.dtype == "float32" else buffer for buffer in buffers],
        [
            Stream("compute"),
            Stream("copy_in"),
            Stream("copy_out"),
            Stream("host"),
            Stream("p2p", group="p2p"),
            Stream("comm", group="world"),
        ],
        hosts=[0] * ranks,
        columns=columns,
        routes={
            "read": graph.route(graph.read, len(batches), batches),
            "need": need,
            reverse_of("need"): need.reversed(),
        },
    )
