"""CDFGNN: one sync point of one layer. Mirrors that changed send deltas to masters (gather), masters send sums back
(scatter); masks say which rows are there (docs/systems/cdfgnn.md)."""

import numpy as np

from programs.notation import all_pairs, op, program
from simgnn.program.calendar import Calendar
from simgnn.program.ops import Buffer, Stream, Transfer
from simgnn.program.program import Program
from simgnn.program.sizes import Column, Decision, Route

WIDTH, MIRRORS, BITS = 64, 1000, 8
ROW_BYTES = 8 + WIDTH * BITS // 8
POINT = "sync/1/forward"


def build(ranks: int = 2) -> Program:
    """P ranks, each with ``MIRRORS`` mirrors of every other rank's masters."""
    mirrors = all_pairs(ranks, MIRRORS)
    masks = Route(mirrors.source, mirrors.target, (mirrors.rows + 7) // 8)
    shared = np.full(ranks, MIRRORS * (ranks - 1))
    mask_bytes = np.full(ranks, (MIRRORS + 7) // 8 * (ranks - 1))
    gather = Decision(f"{POINT}/gather/rows", Column("mirrors"))
    scatter = Decision(f"{POINT}/scatter/rows", Column("mirrors"))
    buffers = [
        Buffer("hidden", Column("rows"), WIDTH, persistent=True),
        Buffer("partial", Column("rows"), WIDTH),
        Buffer("own", Column("shared"), WIDTH, persistent=True),
        Buffer("agg", Column("shared"), WIDTH, persistent=True),
        Buffer("pub", Column("shared"), WIDTH, persistent=True),
    ]
    for phase, rows in (("g", gather), ("s", scatter)):
        buffers += [
            Buffer(f"mask_{phase}", Column("mask_bytes"), 1, "uint8"),
            Buffer(f"mask_in_{phase}", Column("mask_bytes"), 1, "uint8"),
            Buffer(f"delta_{phase}", rows, WIDTH),
            Buffer(f"packed_{phase}", rows, ROW_BYTES, "uint8"),
            Buffer(f"arrived_{phase}", rows, ROW_BYTES, "uint8"),
        ]

    def phase(name: str, reads: str, state: str, after: str, rows: Decision) -> list:
        return [
            op(f"{name}/select", "select", "compute", f"{reads} {state}", f"mask_{name} delta_{name} {state}", after),
            op(f"{name}/encode", "encode", "compute", f"delta_{name}", f"packed_{name}", f"{name}/select"),
            op(f"{name}/mask", "exchange", "comm", f"mask_{name}", f"mask_in_{name}", f"{name}/select",
               transfer=Transfer(1, control=True), route="masks", category="comm"),
            op(f"{name}/rows", "exchange", "comm", f"packed_{name}", f"arrived_{name}", f"{name}/encode",
               transfer=Transfer(ROW_BYTES, decision=rows), route="mirrors", category="comm"),
        ]  # fmt: skip

    ops = [
        op("aggregate", "aggregate", "compute", "hidden", "partial", "update<<1"),
        *phase("g", "partial", "own", "aggregate g/decode<<1", gather),
        op("g/decode", "decode", "compute", "arrived_g mask_in_g agg", "agg", "g/rows s/select<<1"),
        op("barrier", "barrier", "comm", after="g/decode"),
        *phase("s", "agg", "pub", "barrier s/decode<<1", scatter),
        op("s/decode", "decode", "compute", "arrived_s mask_in_s pub", "pub", "s/rows"),
        op("update", "transform", "compute", "partial pub", "hidden", "s/decode g/select aggregate"),
    ]
    # the next epoch's select overwrites the delta that encode read: encode precedes decode, which precedes update
    return program(
        "mirror-sync",
        {"epoch": ops},
        Calendar("epoch"),
        buffers,
        [Stream("compute"), Stream("comm", group="world")],
        hosts=[rank % 2 for rank in range(ranks)],
        columns={"rows": np.full(ranks, 5000), "shared": shared, "mirrors": shared, "mask_bytes": mask_bytes},
        routes={"mirrors": mirrors, "masks": masks},
    )
