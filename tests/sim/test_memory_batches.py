"""Memory of batches' rows and edges, in closed form: of buffers, and what ops state beside them."""

import numpy as np
from programs.notation import op, program

from sim.worlds import machine, run
from simgnn.program.calendar import Calendar
from simgnn.program.ops import Buffer, Op, Stream, Transfer
from simgnn.program.program import Program
from simgnn.program.sizes import Scratch
from simgnn.sim.engine.turn_sizes import Sizes
from simgnn.sim.memory.spans import scratch_bytes
from tests.sim.mini_batches import CLASSES, WIDTH, made_sizes, parted_sizes, planned

ROWS, WIDE = 1000, 64
TURN = 1, 3


def op_of(made: Program, name: str) -> Op:
    return next(one for _, one in made.ops if one.name == name)


def held(made: Program, name: str) -> list[int]:
    """Bytes that an op holds on each rank in the fourth step of the second epoch."""
    return scratch_bytes(Sizes(made), op_of(made, name).scratch, *TURN, name).tolist()


def test_input_rows_of_batches_lie_where_they_are_put_together_all_the_time() -> None:
    ops = [op("stage", "h2d", "compute", "", "inputs", transfer=Transfer(4 * WIDE, ROWS)),
           op("use", "transform", "compute", "inputs", "y", "stage"),
           op("later", "transform", "compute", "y", "z", "use")]  # fmt: skip
    buffers = [Buffer("inputs", ROWS, WIDE, lasting=True), Buffer("y", ROWS, WIDE), Buffer("z", ROWS, WIDE)]
    made = program("p", {"epoch": ops}, Calendar("epoch"), buffers, [Stream("compute")], (0,))
    assert run(made, machine((0,))).memory.both.tolist() == [3 * 4 * ROWS * WIDE]


def test_what_is_handed_from_host_to_device_lies_in_one_place_on_a_cpu() -> None:
    ops = [op("draw", "sample", "compute", "", "drawn ids"),
           op("stage", "h2d", "compute", "drawn ids", "block seeds", "draw", transfer=Transfer(1, ROWS),
              scratch=Scratch(handed_over=True)),
           op("use", "aggregate", "compute", "block seeds", "y", "stage")]  # fmt: skip
    spaces = {"drawn": "host", "ids": "host", "block": "device", "seeds": "device", "y": "device"}
    for depth, on_cpu, on_gpu in ((1, 4, 4), (3, 2 * 3 + 1, 4 * 3 + 1)):
        buffers = [Buffer(name, ROWS, WIDE, space=space, ring="step", depth=1 if name == "y" else depth)
                   for name, space in spaces.items()]  # fmt: skip
        made = program("p", {"epoch": ops}, Calendar("epoch"), buffers, [Stream("compute")], (0,))
        assert run(made, machine((0,), kind="cpu")).memory.both.tolist() == [on_cpu * 4 * ROWS * WIDE]
        assert run(made, machine((0,))).memory.both.tolist() == [on_gpu * 4 * ROWS * WIDE]
    assert op_of(planned("distdgl", [0], made_sizes([0])).program, "batch/stage").scratch.handed_over


def test_sums_over_edges_of_a_batch_make_pointers_and_when_reversed_edges_by_source() -> None:
    sizes = made_sizes([0])
    made = planned("distdgl", [0], sizes, "model.order=aggregate-first", "batching.evaluation=exact").program
    (seeds,), (between,), (inputs,) = (rows[:, *TURN].tolist() for rows in sizes.rows)
    first, second = (int(edges[0, *TURN]) for edges in sizes.edges)
    assert held(made, "forward/1/aggregate") == [8 * between]
    assert held(made, "forward/2/aggregate") == [8 * seeds]
    assert held(made, "backward/2/aggregate") == [8 * (seeds + between) + 4 * first]
    assert held(made, "evaluate/forward/1/aggregate") == [0], "of the rank's own edges they are stored as int64"
    assert "adjacency" not in made.kept
    learned = planned("distdgl", [0], sizes, "placement.sparse_embedding=4", "model.order=aggregate-first").program
    assert held(learned, "backward/1/aggregate") == [8 * (between + inputs) + 4 * second]


def test_losses_of_batches_pick_no_scores() -> None:
    sizes = made_sizes([0])
    made = planned("distdgl", [0], sizes).program
    assert held(made, "forward/loss") == [int(sizes.rows[0][0, *TURN]) * (4 * CLASSES + 16)]


def test_rows_that_a_rank_asks_for_lie_beside_those_that_it_sends() -> None:
    hosts = [0, 1]
    sizes = made_sizes(hosts)
    sent = np.bincount(sizes.pulled.source, sizes.pulled.at(*TURN), minlength=2)
    assert held(planned("distdgl", hosts, sizes).program, "rows/fetch") == (4 * WIDTH * sent).tolist()
    parted = parted_sizes(hosts, sizes)
    made = planned("distdgl", hosts, type(sizes)(**{**vars(sizes), "parted": parted})).program
    answered = parted.requests.answering(1)
    degrees = np.bincount(answered.source, answered.at(*TURN), minlength=2)
    assert held(made, "draw/1/request") == (4 * degrees).tolist()


def test_learned_vectors_are_put_in_order_to_be_summed_and_change_by_two_tensors_more() -> None:
    width, sizes = 4, made_sizes([0, 0])
    made = planned("distdgl", [0, 0], sizes, f"placement.sparse_embedding={width}").program
    summed, most = (made.sizes.columns[name] for name in ("push/summed", "largest/pushed"))
    assert summed.any()
    assert held(made, "embeddings/sum") == (summed[:, *TURN] * (4 * width + 3 * 8)).tolist()
    assert held(made, "embeddings/apply") == (most * 2 * 4 * width).tolist()
