"""ByteGNN: the sampling DAG of a batch as ops on a pool of sampling threads, remote parts in numbered rounds, batches
trained in order from a queue of two (ByteGNN)."""

import numpy as np

from programs.notation import all_pairs, op, program
from simgnn.program.calendar import Calendar
from simgnn.program.ops import Buffer, Stream, Transfer
from simgnn.program.program import Program
from simgnn.program.sizes import Column

WIDTH, STEPS, QUEUE, THREADS = 64, 4, 2, 3


def build(ranks: int = 2) -> Program:
    """Supervised DAG, two hops, two chunks at each."""
    buffers = [
        Buffer("graph", Column("rows"), 8, "int32", space="host", persistent=True),
        Buffer("rows", Column("rows"), WIDTH, space="host", persistent=True),
        Buffer("seeds", 512, 1, "int64", space="host", depth=QUEUE, ring="step"),
        Buffer("batch", 4000, WIDTH, space="host", depth=QUEUE, ring="step"),
        Buffer("hidden", 512, WIDTH),
        Buffer("parameters", 1, 5000, persistent=True),
        Buffer("gradients", 1, 5000, persistent=True),
    ]
    for hop in (1, 2):
        for chunk in (0, 1):
            buffers.append(Buffer(f"front/{hop}/{chunk}", 800, 2, "int64", space="host", depth=QUEUE, ring="step"))
            buffers.append(Buffer(f"part/{hop}/{chunk}", 800, WIDTH, space="host", depth=QUEUE, ring="step"))
    release = f"backward<{QUEUE} end<{QUEUE}"
    ops = [op("seed", "sample", "pool", "graph", "seeds", release)]
    for chunk in (0, 1):
        ops.append(op(f"hop/1/{chunk}", "sample", "pool", "graph seeds", f"front/1/{chunk}", f"seed {release}"))
    for chunk in (0, 1):
        ops.append(op(f"hop/2/{chunk}", "sample", "pool", f"graph front/1/{chunk}", f"front/2/{chunk}",
                      f"hop/1/{chunk} end<{QUEUE}"))  # fmt: skip
    for hop in (1, 2):
        for chunk in (0, 1):
            ops.append(op(f"fetch/{hop}/{chunk}", "fetch", "rounds", f"rows front/{hop}/{chunk}", f"part/{hop}/{chunk}",
                          f"hop/{hop}/{chunk} end<{QUEUE}", route="remote", transfer=Transfer(4 * WIDTH)))  # fmt: skip
    parts = [f"{hop}/{chunk}" for hop in (1, 2) for chunk in (0, 1)]
    ops += [
        op("end", "select", "pool", " ".join(f"part/{part}" for part in parts), "batch",
           " ".join(f"fetch/{part}" for part in parts) + f" backward<{QUEUE}"),
        op("forward", "aggregate", "train", "batch parameters", "hidden", "end optimize<1 backward<1"),
        op("backward", "transform", "train", "batch hidden parameters", "gradients", "forward gradients<1 optimize<1"),
        op("gradients", "allreduce", "grad", "gradients", "gradients", "backward"),
        op("optimize", "optimize", "train", "gradients parameters", "parameters", "gradients"),
    ]  # fmt: skip
    return program(
        "task-graph",
        {"batch": ops},
        Calendar("batch", steps=STEPS),
        buffers,
        [
            Stream("pool", servers=THREADS),
            Stream("train"),
            Stream("rounds", group="rounds"),
            Stream("grad", group="grad"),
        ],
        hosts=list(range(ranks)),
        columns={"rows": np.full(ranks, 10_000)},
        routes={"remote": all_pairs(ranks, 100)},
    )
