"""Memory beside buffers, in closed form on the planned program."""

import numpy as np
from programs.notation import op, program

from sim.worlds import machine, run
from simgnn.program.ops import Buffer, Stream, Work
from simgnn.program.program import Calendar, Program

ROWS, WIDE, NARROW = 1000, 64, 8


def layers(last: int) -> Program:
    """The backward of one layer's update, of ``last`` layers: [1000, 64] gradient in, [1000, 8] out."""
    product = (Work("matmul", {"rows": ROWS, "inner": WIDE, "outer": NARROW, "item_bytes": 4}),)
    ops = [op("forward/1/update", "transform", "compute", "x p", "y", module="layers.1.update", work=product, layer=1),
           op("loss", "loss", "compute", "y", "dy", "forward/1/update"),
           op("backward/1/update", "transform", "compute", "dy x y p", "dx g", "loss", module="layers.1.update",
              reverses="forward/1/update", gradients={"dy": "y", "dx": "x"}, work=product, layer=1),
           op("end", "optimize", "compute", "g p", "p", "backward/1/update", layer=last)]  # fmt: skip
    buffers = [Buffer("x", ROWS, NARROW, persistent=True), Buffer("dx", ROWS, NARROW), Buffer("y", ROWS, WIDE),
               Buffer("dy", ROWS, WIDE), Buffer("p", 256, 1, persistent=True),
               Buffer("g", 256, 1, persistent=True)]  # fmt: skip
    return program("p", {"epoch": ops}, Calendar("epoch"), buffers, [Stream("compute")], (0,))


def test_a_hidden_layers_backward_holds_its_masked_gradient_and_that_of_its_parameters() -> None:
    held = 4 * ROWS * (2 * WIDE + 2 * NARROW) + 2 * 1024
    hidden, output = (run(layers(last), machine((0,))).memory.both[0] for last in (2, 1))
    assert hidden == held + 4 * ROWS * WIDE + 1024
    assert output == held + 1024, "scores have no activation"


def test_sparse_input_rows_are_kept_transposed_too_with_their_pointers() -> None:
    product = (Work("sparse_matmul", {"nonzeros": 100, "rows": ROWS, "sources": 50, "width": 8, "item_bytes": 4}),)
    ops = [op("a", "transform", "compute", "features", "y", work=product)]
    buffers = [Buffer("features", 4000, 1, "uint8", persistent=True), Buffer("y", ROWS, 8)]
    prog = program("p", {"epoch": ops}, Calendar("epoch"), buffers, [Stream("compute")], (0, 0))
    assert run(prog, machine((0, 0))).memory.both.tolist() == [2 * 4000 + 4 * (ROWS + 50) + 4 * 8 * ROWS] * 2
    assert np.all(run(prog, machine((0, 0))).memory.device == run(prog, machine((0, 0))).memory.both)
