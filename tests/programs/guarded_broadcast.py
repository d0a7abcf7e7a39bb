"""SANCUS rule H: ranks agree on flags, then only active roots broadcast their block; everybody multiplies with what it
has (docs/systems/sancus.md)."""

import numpy as np

from programs.notation import op, program
from simgnn.program.calendar import Calendar
from simgnn.program.ops import Buffer, Guard, Stream, Transfer
from simgnn.program.program import Program
from simgnn.program.sizes import Column

WIDTH, BLOCK = 16, 2000


def build(ranks: int = 3) -> Program:
    """P roots, one layer forward."""
    buffers = [
        Buffer("hidden", Column("rows"), WIDTH, persistent=True),
        Buffer("flags", ranks, 1, "uint8"),
        Buffer("sum", Column("rows"), WIDTH),
        *(Buffer(f"cache/{root}", BLOCK, WIDTH, persistent=True) for root in range(ranks)),
    ]
    ops = [
        op("gap", "select", "compute", "hidden", "flags", "update<<1 flags<<1"),
        op("flags", "allgather", "comm", "flags", "flags", "gap", transfer=Transfer(1, control=True)),
    ]
    for root in range(ranks):
        previous = f"multiply/{root - 1}" if root else "update<<1"
        ops += [
            op(f"broadcast/{root}", "broadcast", "comm", "hidden flags", f"cache/{root}", f"flags multiply/{root}<<1",
               root=root, guard=Guard(f"agreed/forward/1/root/{root}", agreed=True),
               transfer=Transfer(4 * WIDTH, BLOCK)),
            op(f"multiply/{root}", "aggregate", "compute", f"cache/{root} sum" if root else "cache/0", "sum",
               f"broadcast/{root} {previous}"),
        ]  # fmt: skip
    ops.append(op("update", "transform", "compute", "sum", "hidden", f"multiply/{ranks - 1}"))
    return program(
        "guarded-broadcast",
        {"epoch": ops},
        Calendar("epoch"),
        buffers,
        [Stream("compute"), Stream("comm", group="world")],
        hosts=[0] * ranks,
        columns={"rows": np.full(ranks, BLOCK)},
    )
