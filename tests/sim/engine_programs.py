"""Small programs of one template for tests of the engine."""

import numpy as np
from programs.notation import op, program

from sim.worlds import seconds_of_work
from simgnn.program.calendar import Calendar
from simgnn.program.ops import Stream
from simgnn.program.sizes import Route

TICK = 2e-12
STREAMS = (Stream("compute"), Stream("comm", group="world"))


def one(*ops, hosts=(0, 0), streams=STREAMS, **fields):
    """A program of one template without buffers."""
    return program("p", {"epoch": ops}, Calendar("epoch"), [], streams, hosts, **fields)


def work(name: str, seconds: float, after: str = "", stream: str = "compute", **fields):
    return op(name, "elementwise", stream, after=after, work=seconds_of_work(seconds), **fields)


def route(matrix) -> Route:
    return Route.from_matrix(np.array(matrix, dtype=np.int64))
