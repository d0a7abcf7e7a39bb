"""Memory of batches' rows and edges beside buffers, in closed form."""

import numpy as np
from programs.notation import op, program

from sim.worlds import machine, run
from simgnn.program.kinds import Form
from simgnn.program.ops import Buffer, Stream, Transfer, Work
from simgnn.program.program import Calendar
from simgnn.program.sizes import Route
from simgnn.sim.decided import Sizes
from simgnn.sim.memory_work import kept_beside, work_space

ROWS, WIDE, NARROW = 1000, 64, 8


def test_input_rows_of_batches_lie_where_they_are_put_together_all_the_time() -> None:
    ops = [op("stage", "h2d", "compute", "", "inputs", transfer=Transfer(4 * WIDE, ROWS)),
           op("use", "transform", "compute", "inputs", "y", "stage"),
           op("later", "transform", "compute", "y", "z", "use")]  # fmt: skip
    buffers = [Buffer("inputs", ROWS, WIDE, lasting=True), Buffer("y", ROWS, WIDE), Buffer("z", ROWS, WIDE)]
    made = program("p", {"epoch": ops}, Calendar("epoch"), buffers, [Stream("compute")], (0,))
    assert run(made, machine((0,))).memory.both.tolist() == [3 * 4 * ROWS * WIDE]


def test_edges_of_a_batch_have_no_scalings_that_are_kept() -> None:
    piece = Work("spmm", {"edges": 9, "rows": ROWS, "sources": ROWS, "width": WIDE, "item_bytes": 4})
    ops = [op("sum", "aggregate", "compute", "edges x", "y", work=(piece,))]
    for dtype, names in (("int32", 0), ("float32", 1)):
        buffers = [Buffer("edges", ROWS, 1, dtype), Buffer("x", ROWS, WIDE), Buffer("y", ROWS, WIDE)]
        made = program("p", {"epoch": ops}, Calendar("epoch"), buffers, [Stream("compute")], (0,))
        assert len(kept_beside(made, Sizes(made))) == names


def test_what_is_handed_from_host_to_device_lies_in_one_place_on_a_cpu() -> None:
    ops = [op("draw", "sample", "compute", "", "drawn ids"),
           op("stage", "h2d", "compute", "drawn ids", "block seeds", "draw", transfer=Transfer(1, ROWS)),
           op("use", "aggregate", "compute", "block seeds", "y", "stage")]  # fmt: skip
    spaces = {"drawn": "host", "ids": "host", "block": "device", "seeds": "device", "y": "device"}
    for depth, on_cpu, on_gpu in ((1, 4, 4), (3, 2 * 3 + 1, 4 * 3 + 1)):
        buffers = [Buffer(name, ROWS, WIDE, space=space, ring="step", depth=1 if name == "y" else depth)
                   for name, space in spaces.items()]  # fmt: skip
        made = program("p", {"epoch": ops}, Calendar("epoch"), buffers, [Stream("compute")], (0,))
        assert run(made, machine((0,), kind="cpu")).memory.both.tolist() == [on_cpu * 4 * ROWS * WIDE]
        assert run(made, machine((0,))).memory.both.tolist() == [on_gpu * 4 * ROWS * WIDE]


def test_rows_that_a_rank_asks_for_lie_beside_those_that_it_sends() -> None:
    route = Route.from_matrix(np.array([[0, 30], [50, 0]]))
    for form, rows in ((Form.REMOTE_ROWS, [30, 50]), (None, [80, 80])):
        fetch = op("f", "fetch", "comm", "ids x", "y", route="r", transfer=Transfer(4 * WIDE), form=form)
        buffers = [Buffer(name, ROWS, WIDE) for name in ("ids", "x", "y")]
        made = program("p", {"epoch": [fetch]}, Calendar("epoch"), buffers, [Stream("comm", group="world")], (0, 1),
                       routes={"r": route})  # fmt: skip
        assert work_space(made, Sizes(made), fetch, 0, 0).tolist() == [4 * WIDE * count for count in rows]
