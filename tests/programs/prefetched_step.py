"""RapidGNN: rows of later batches arrive in a ring of Q = 2 slots while earlier ones are trained
(docs/systems/rapidgnn.md). Exchange i waits until batch i - Q has given its slot back."""

import numpy as np

from programs.notation import op, program
from simgnn.program.calendar import Calendar
from simgnn.program.ops import Buffer, Stream, Transfer
from simgnn.program.program import Program
from simgnn.program.sizes import Column, Route

WIDTH, STEPS, QUEUE = 100, 6, 2


def build(ranks: int = 2) -> Program:
    """``STEPS`` steps an epoch; batch sizes differ by step and rank."""
    pairs = [(i, j) for i in range(ranks) for j in range(ranks) if i != j]
    rows = np.array([[200 + 20 * step + 5 * place for step in range(STEPS)] for place, _ in enumerate(pairs)])
    route = Route(np.array([i for i, _ in pairs], np.int32), np.array([j for _, j in pairs], np.int32), rows)
    answered, pulled = (
        np.array([[sum(rows[p][s] for p, pair in enumerate(pairs) if pair[end] == r) for s in range(STEPS)]
                  for r in range(ranks)])
        for end in (0, 1)
    )  # fmt: skip
    buffers = [
        Buffer("features", Column("rows"), WIDTH, space="host", persistent=True),
        Buffer("hot", 400, WIDTH, persistent=True),
        Buffer("answered", Column("answered"), WIDTH, space="host", depth=QUEUE, ring="step"),
        Buffer("pulled", Column("pulled"), WIDTH, space="host", depth=QUEUE, ring="step"),
        Buffer("slot", 2000, WIDTH, depth=QUEUE, ring="step"),
        Buffer("hidden", 1000, WIDTH),
        Buffer("parameters", 1, 10_000, persistent=True),
        Buffer("gradients", 1, 10_000, persistent=True),
    ]
    ops = [
        op("answer", "copy", "answer", "features", "answered", f"exchange<{QUEUE}"),
        op("exchange", "exchange", "fetch", "answered", "pulled", f"answer copy<{QUEUE} backward<{QUEUE}", route="pull",
           transfer=Transfer(4 * WIDTH)),
        op("copy", "h2d", "copy_in", "pulled features", "slot", f"exchange backward<{QUEUE}",
           transfer=Transfer(4 * WIDTH, Column("pulled"))),
        op("hits", "select", "copy_in", "hot slot", "slot", "copy"),
        op("forward", "aggregate", "compute", "slot parameters", "hidden", "hits optimize<1 backward<1"),
        op("backward", "transform", "compute", "slot hidden parameters", "gradients", "forward gradients<1 optimize<1"),
        op("gradients", "allreduce", "grad", "gradients", "gradients", "backward"),
        op("optimize", "optimize", "compute", "gradients parameters", "parameters", "gradients"),
    ]  # fmt: skip
    return program(
        "prefetched-step",
        {"step": ops},
        Calendar("step", steps=STEPS),
        buffers,
        [
            Stream("compute"),
            Stream("answer"),
            Stream("copy_in"),
            Stream("fetch", group="fetch"),
            Stream("grad", group="grad"),
        ],
        hosts=list(range(ranks)),
        columns={"rows": np.full(ranks, 10_000), "answered": answered, "pulled": pulled},
        routes={"pull": route},
    )
