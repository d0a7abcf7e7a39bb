"""CaPGNN: halo rows in a device cache and in a cache that the ranks of a host share; refreshed every third epoch, only
misses are exchanged otherwise (CaPGNN)."""

import numpy as np

from programs.notation import all_pairs, op, program
from simgnn.program.calendar import Calendar, Cycle
from simgnn.program.kinds import Form
from simgnn.program.ops import Buffer, Stream, Transfer
from simgnn.program.program import Program
from simgnn.program.sizes import Column

WIDTH, MISSES, UNCACHED = 32, 50, 300
INTERVAL = 3


def build(ranks: int = 2) -> Program:
    """One layer forward on one host."""
    buffers = [
        Buffer("hidden", Column("rows"), WIDTH, persistent=True),
        Buffer("local", Column("local"), WIDTH, persistent=True),
        Buffer("global", Column("global"), WIDTH, space="host-shared", persistent=True),
        Buffer("from_global", Column("global"), WIDTH),
        Buffer("from_local", Column("local"), WIDTH),
        Buffer("send_misses", Column("misses"), WIDTH),
        Buffer("misses", Column("misses"), WIDTH),
        Buffer("send_rest", Column("rest"), WIDTH),
        Buffer("rest", Column("rest"), WIDTH),
        Buffer("sum", Column("rows"), WIDTH),
    ]
    end = op("update", "transform", "compute", "sum", "hidden", "aggregate/out")
    inner = op("aggregate/in", "aggregate", "compute", "hidden", "sum", "update<<1")
    # the allreduce at the end is also what keeps a refresh from overwriting rows that another rank still reads
    gradients = op("gradients", "allreduce", "comm", after="update")
    steady = [
        inner,
        op("local", "copy", "copy_in", "local", "from_local", "update<<1 fill<<1"),
        op("global", "h2d", "copy_in", "global", "from_global", "gradients<<1"),
        op("pack", "copy", "compute", "hidden", "send_misses", "update<<1"),
        op("misses", "exchange", "comm", "send_misses", "misses", "pack", route="misses", transfer=Transfer(4 * WIDTH)),
        op("aggregate/out", "aggregate", "compute", "from_local from_global misses sum", "sum",
           "aggregate/in local global misses"),
        end,
        gradients,
    ]  # fmt: skip
    refresh = [
        inner,
        op("store", "d2h", "copy_out", "hidden global", "global", "gradients<<1", form=Form.OWN_ROWS),
        op("stored", "barrier", "comm", after="store"),
        op("global", "h2d", "copy_in", "global", "from_global", "stored"),
        op("pack", "copy", "compute", "hidden", "send_rest", "update<<1"),
        op("rest", "exchange", "comm", "send_rest", "rest", "pack", route="rest", transfer=Transfer(4 * WIDTH)),
        op("fill", "copy", "compute", "from_global rest", "local", "global rest local<<1"),
        op("aggregate/out", "aggregate", "compute", "from_global rest sum", "sum", "aggregate/in global rest"),
        op("update", "transform", "compute", "sum", "hidden", "aggregate/out pack store fill"),
        gradients,
    ]
    ones = np.ones(ranks, dtype=np.int64)
    return program(
        "cached-halo",
        {"refresh": refresh, "steady": steady},
        Calendar("steady", cycles=(Cycle("refresh", INTERVAL),)),
        buffers,
        [Stream("compute"), Stream("copy_in"), Stream("copy_out"), Stream("comm", group="world")],
        hosts=[0] * ranks,
        columns={
            "rows": 4000 * ones,
            "local": 200 * ones,
            "global": 500 * ones,
            "misses": MISSES * (ranks - 1) * ones,
            "rest": UNCACHED * (ranks - 1) * ones,
        },
        routes={"misses": all_pairs(ranks, MISSES), "rest": all_pairs(ranks, UNCACHED)},
    )
