"""Memory beside buffers, in closed form on the planned program."""

from dataclasses import replace

import numpy as np
import pytest
from programs.notation import op, program

from sim.worlds import machine, run
from simgnn.policies.minibatch import EMBEDDINGS
from simgnn.program.kinds import Segment
from simgnn.program.ops import Buffer, Op, Stream, Transfer, Work
from simgnn.program.program import Calendar, Program
from simgnn.sim.decided import Sizes
from simgnn.sim.memory_work import kept_beside, work_space

ROWS, WIDE, NARROW = 1000, 64, 8


def layers(last: int) -> Program:
    """The backward of one layer's update, of ``last`` layers: [1000, 64] gradient in, [1000, 8] out."""
    product = (Work("matmul", {"rows": ROWS, "inner": WIDE, "outer": NARROW, "item_bytes": 4}),)
    ops = [op("forward/1/update", "transform", "compute", "x p", "y", segment=Segment.UPDATE, work=product, layer=1),
           op("loss", "loss", "compute", "y", "dy", "forward/1/update"),
           op("backward/1/update", "transform", "compute", "dy x y p", "dx g", "loss", segment=Segment.UPDATE,
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


def sums(reverses: str, writes: str, gradients: dict[str, str], *pieces: Work) -> int:
    """Bytes that a backward op of a hidden layer with these products holds; [1000, 64] gradient "dy" comes in."""
    ops = [op("forward/1/prepare", "transform", "compute", "x", "z", layer=1, segment=Segment.PREPARE),
           op("forward/1/update", "transform", "compute", "z", "y", layer=1, segment=Segment.UPDATE),
           op("b", "transform", "compute", "dy x", writes, reverses=reverses, gradients=gradients, layer=1,
              segment=Segment(reverses.rpartition("/")[2]), work=pieces),
           op("end", "optimize", "compute", "g", "g", layer=2)]  # fmt: skip
    buffers = [Buffer(name, ROWS, WIDE) for name in ("x", "y", "z", "dy", "dx", "dz")]
    made = program("p", {"epoch": ops}, Calendar("epoch"), [*buffers, Buffer("g", 10**6, 1, persistent=True)],
                   [Stream("compute")], (0,))  # fmt: skip
    return int(work_space(made, Sizes(made), ops[2], 0, 0)[0])


WEIGHTS = Work("matmul", {"rows": WIDE, "inner": ROWS, "outer": WIDE, "item_bytes": 4, "crossed": 1})
ROWS_GRADIENT = Work("matmul", {"rows": ROWS, "inner": WIDE, "outer": WIDE, "item_bytes": 4})
SPARSE = Work("sparse_matmul", {"nonzeros": 9, "rows": 500, "sources": ROWS, "width": WIDE, "item_bytes": 4})


def test_gradients_of_weights_are_held_together_or_one_after_the_other() -> None:
    square, sparse, masked = 4 * WIDE * WIDE, 4 * 500 * WIDE, 4 * ROWS * WIDE
    update, into = "forward/1/update", {"dy": "y", "dx": "x"}
    assert sums(update, "dx g", into, WEIGHTS, ROWS_GRADIENT) == masked + square
    assert sums(update, "dx g", into, WEIGHTS, SPARSE, ROWS_GRADIENT) == masked + square + sparse
    assert sums("forward/1/prepare", "dx g", into, WEIGHTS, SPARSE, ROWS_GRADIENT) == sparse, "own and halo rows apart"


def test_forward_products_with_rows_less_their_mean_hold_a_copy_of_the_weights_each_in_turn() -> None:
    product = Work("sparse_matmul", {"nonzeros": 9, "rows": ROWS, "sources": 501, "width": WIDE, "item_bytes": 4})
    copies = [Work("copy", {"rows": rows, "width": WIDE, "item_bytes": 4}) for rows in (501, 301)]
    ops = [op("forward/1/prepare", "transform", "compute", "x", "y", work=(copies[0], product, copies[1], product)),
           op("other", "transform", "compute", "y", "y", "forward/1/prepare", work=(product, copies[0]))]  # fmt: skip
    made = program("p", {"epoch": ops}, Calendar("epoch"), [Buffer("x", ROWS, WIDE), Buffer("y", ROWS, WIDE)],
                   [Stream("compute")], (0, 0))  # fmt: skip
    assert work_space(made, Sizes(made), ops[0], 0, 0).tolist() == [4 * 501 * WIDE] * 2
    assert work_space(made, Sizes(made), ops[1], 0, 0).tolist() == [0, 0]


def test_a_gradient_that_is_written_as_it_is_masked_is_held_once() -> None:
    into = {"dy": "y", "dz": "z", "dx": "x"}
    assert sums("forward/1/update", "dz dx g", into, WEIGHTS, ROWS_GRADIENT) == 4 * WIDE * WIDE
    assert sums("forward/1/update", "dz g", into, SPARSE) == 4 * 500 * WIDE


def test_products_of_products_hold_the_gradient_between_and_those_of_weights_in_turn() -> None:
    ops = [op("forward/1/update", "transform", "compute", "x", "y saved", layer=1, segment=Segment.UPDATE),
           op("b", "transform", "compute", "dy x saved", "dx dsaved g", reverses="forward/1/update", layer=1,
              segment=Segment.UPDATE,
              gradients={"dy": "y", "dx": "x", "dsaved": "saved"},
              work=(WEIGHTS, ROWS_GRADIENT, SPARSE, ROWS_GRADIENT)),
           op("end", "optimize", "compute", "g", "g", layer=2)]  # fmt: skip
    buffers = [*(Buffer(name, ROWS, WIDE) for name in ("x", "y", "dy", "dx")),
               *(Buffer(name, ROWS, WIDE, inner=True) for name in ("saved", "dsaved")),
               Buffer("g", 1, 1, persistent=True)]  # fmt: skip
    made = program("p", {"epoch": ops}, Calendar("epoch"), buffers, [Stream("compute")], (0,))
    assert work_space(made, Sizes(made), ops[1], 0, 0).tolist() == [4 * (500 + ROWS) * WIDE]


def test_parts_of_a_sum_get_copies_of_its_gradient_after_the_products() -> None:
    ops = [op("forward/1/update", "transform", "compute", "x z", "y saved", layer=1, segment=Segment.UPDATE),
           op("b", "transform", "compute", "dy saved", "dx dz dsaved", "forward/1/update", reverses="forward/1/update",
              segment=Segment.UPDATE,
              layer=2, gradients={"dy": "y", "dx": "x", "dz": "z", "dsaved": "saved"},
              work=(ROWS_GRADIENT, ROWS_GRADIENT)),
           op("end", "elementwise", "compute", "dx dz", "", "b", layer=2)]  # fmt: skip
    wide = [Buffer(name, ROWS, WIDE, persistent=name in "xz") for name in ("x", "z", "dx", "dz")]
    narrow = [*(Buffer(name, ROWS, NARROW) for name in ("y", "dy")),
              *(Buffer(name, ROWS, NARROW, inner=True) for name in ("saved", "dsaved"))]  # fmt: skip
    made = program("p", {"epoch": ops}, Calendar("epoch"), [*wide, *narrow], [Stream("compute")], (0,))
    assert work_space(made, Sizes(made), ops[1], 0, 0).tolist() == [4 * ROWS * NARROW], "the gradient inside, masked"
    products = 3 * WIDE + 5 * NARROW  # x, z, dx; y, saved, dy, dsaved and that masked
    copies = 4 * WIDE + NARROW  # x, z, dx, dz, dy
    assert run(made, machine((0,))).memory.both.tolist() == [4 * ROWS * max(products, copies)]


def test_a_sum_that_adds_to_another_makes_a_new_one_beside_it() -> None:
    ops = [op("first", "aggregate", "compute", "x", "y", options={"block": 0}),
           op("second", "aggregate", "compute", "x y", "y", "first", options={"block": 1})]  # fmt: skip
    made = program("p", {"epoch": ops}, Calendar("epoch"), [Buffer("x", ROWS, WIDE), Buffer("y", ROWS, NARROW)],
                   [Stream("compute")], (0,))  # fmt: skip
    assert [work_space(made, Sizes(made), one, 0, 0).tolist() for one in ops] == [[0], [4 * ROWS * NARROW]]


def held(one: Op, *buffers: Buffer) -> int:
    """Bytes that an op of a program of its own holds."""
    made = program("p", {"epoch": [one]}, Calendar("epoch"), buffers, [Stream("compute"), Stream(EMBEDDINGS)],
                   (0,))  # fmt: skip
    return int(work_space(made, Sizes(made), one, 0, 0)[0])


def test_attention_to_a_block_holds_scores_and_what_arrived_taken_apart() -> None:
    heads, payload = 2, WIDE + 8
    score, rows, block = 4 * ROWS * heads, 4 * ROWS * WIDE, 4 * ROWS * payload
    state = [Buffer("m", ROWS, heads), Buffer("y", ROWS, WIDE)]
    back = [Buffer("dx", ROWS, WIDE), Buffer("ds", ROWS, heads), Buffer("dt", ROWS, heads)]
    first, later = (2 * score, block + score), (5 * score + rows, block + rows + 3 * score)
    for read, (forward, backward) in ((("x", "x"), first), (("x m y", "x dx ds dt"), later)):
        named = {"block": 1, "own": "x"}
        ahead = op("a", "aggregate", "compute", read[0], "m y", segment=Segment.ADD_BLOCK,
                   options={**named, "transposed": 0})  # fmt: skip
        reverse = op("a", "aggregate", "compute", read[1], "dx ds dt", segment=Segment.BLOCK_GRADIENTS,
                     options={**named, "transposed": 1})  # fmt: skip
        assert held(ahead, Buffer("x", ROWS, WIDE), *state) == forward
        assert held(reverse, Buffer("x", ROWS, payload), *back) == backward


@pytest.mark.parametrize(
    ("kind", "face", "work", "copies"),
    [
        ("select", None, "select", 0),
        ("select", "fold", "gather select elementwise", 2),
        ("select", "reset_mirrors", "elementwise elementwise", 0),
        ("encode", None, "gather gather", 0),
        ("encode", "encode_change", "gather gather", 1),
        ("encode", None, "gather gather gather elementwise encode decode elementwise", 2),
        ("encode", None, "gather gather gather elementwise encode elementwise decode elementwise", 3),
        ("decode", None, "gather copy", 0),
        ("decode", None, "decode gather elementwise gather copy", 1),
        ("decode", "take_sums", "decode gather elementwise gather gather gather", 2),
        ("decode", "add_parts", "decode gather elementwise scatter_add", 1),
    ],
)
def test_ops_of_caches_hold_copies_of_rows_that_they_pick(kind: str, face: str | None, work: str, copies: int) -> None:
    """As many as the executor does, see tests/executor/test_rows_held.py."""
    pieces = tuple(Work(name, {"rows": ROWS, "width": WIDE, "item_bytes": 4}) for name in work.split())
    named = {} if face is None else {"face": face}
    one = op("a", kind, "compute", "x", "y", module="freshness", work=pieces, options=named)
    assert held(one, Buffer("x", ROWS, WIDE), Buffer("y", ROWS, 1)) == copies * 4 * ROWS * WIDE


def test_rounding_at_random_copies_rows_and_nearest_codes_do_not() -> None:
    for names, copies in ((["encode"], 0), (["encode", "elementwise"], 1)):
        work = tuple(Work(name, {"rows": ROWS, "width": WIDE, "item_bytes": 4}) for name in names)
        one = op("a", "encode", "compute", "x", "y", module="codec", work=work)
        assert held(one, Buffer("x", ROWS, WIDE), Buffer("y", ROWS, 1)) == copies * 4 * ROWS * WIDE


def test_learned_vectors_are_put_in_order_to_be_summed_and_change_by_two_tensors_more() -> None:
    gradients = Work("scatter_add", {"rows": ROWS, "width": WIDE, "item_bytes": 4})
    step = Work("optimizer", {"elements": 5 * ROWS * WIDE, "item_bytes": 4})
    buffers = Buffer("ids", ROWS, 1, "int64"), Buffer("x", ROWS, WIDE), Buffer("y", ROWS, WIDE)
    add = op("a", "add", EMBEDDINGS, "ids x", "y", work=(gradients,))
    apply = op("a", "optimize", EMBEDDINGS, "ids x", "y", work=(step,))
    assert held(add, *buffers) == ROWS * (4 * WIDE + 3 * 8)
    assert held(apply, *buffers) == 2 * 4 * ROWS * WIDE, "different vertices, of which more may have been pushed"
    assert held(replace(apply, stream="compute"), *buffers) == 0


def test_of_sparse_rows_that_a_module_adds_up_their_sum_is_kept_transposed() -> None:
    product = (Work("sparse_matmul", {"nonzeros": 100, "rows": ROWS, "sources": 50, "width": 8, "item_bytes": 4}),)
    ops = [op("a", "transform", "compute", "features summed", "y total", work=product)]
    buffers = [Buffer("features", 4000, 1, "uint8", persistent=True), Buffer("summed", 5000, 1, "uint8"),
               Buffer("total", 6000, 1, "uint8", persistent=True, inner=True), Buffer("y", ROWS, 8)]  # fmt: skip
    made = program("p", {"epoch": ops}, Calendar("epoch"), buffers, [Stream("compute")], (0,))
    assert kept_beside(made, Sizes(made))["total transposed"].tolist() == [6000 + 4 * (ROWS + 50)]
    assert set(kept_beside(made, Sizes(made))) == {"total transposed"}


def test_a_gradient_that_is_scaled_down_is_held_beside_the_masked_one() -> None:
    ops = [op("forward/1/update", "transform", "compute", "z", "y", layer=1, segment=Segment.UPDATE),
           op("b", "transform", "compute", "dy", "dz", reverses="forward/1/update", gradients={"dy": "y", "dz": "z"},
              segment=Segment.UPDATE,
              layer=1, options={"gradient_limit": 1.0}),
           op("end", "optimize", "compute", "dz", "dz", "b", layer=2)]  # fmt: skip
    held = []
    for narrow in (WIDE, NARROW):
        buffers = [*(Buffer(name, ROWS, WIDE) for name in ("y", "dy")),
                   *(Buffer(name, ROWS, narrow) for name in ("z", "dz"))]  # fmt: skip
        made = program("p", {"epoch": ops}, Calendar("epoch"), buffers, [Stream("compute")], (0,))
        held.append(int(work_space(made, Sizes(made), ops[1], 0, 0)[0]))
    assert held == [4 * ROWS * WIDE, 4 * ROWS * (2 * WIDE - NARROW)]


def test_of_blocks_of_edges_each_has_degrees_and_in_either_direction_scalings() -> None:
    def sums(root: int, sources: int, turned: int, reads: str) -> Op:
        piece = Work("spmm", {"edges": 9, "rows": ROWS, "sources": sources, "width": WIDE, "item_bytes": 4})
        return op(f"{turned}/{root}", "aggregate", "compute", reads, "y", work=(piece,),
                  options={"block": root, "transposed": turned})  # fmt: skip

    ops = [sums(0, 700, 0, "x"), sums(1, 700, 0, "x y"), sums(0, 700, 1, "x"), sums(1, 700, 1, "x y")]
    made = program("p", {"epoch": ops}, Calendar("epoch"), [Buffer("x", 700, WIDE), Buffer("y", ROWS, WIDE)],
                   [Stream("compute")], (0, 0))  # fmt: skip
    first, later = 4 * (700 + ROWS), 4 * (2 * ROWS + 700)
    assert {name: found.tolist() for name, found in kept_beside(made, Sizes(made)).items()} == {
        "degrees of block 0": [5600] * 2, "degrees of block 1": [5600] * 2,
        "scalings of block 0/0": [first] * 2, "scalings of block 1/0": [later] * 2,
        "scalings of block 0/1": [first] * 2, "scalings of block 1/1": [later] * 2,
    }  # fmt: skip


def test_a_rank_reads_what_it_broadcasts_where_it_is() -> None:
    ops = [op("send", "broadcast", "comm", "x", "block", root=1, transfer=Transfer(4 * WIDE, ROWS)),
           op("sum", "aggregate", "compute", "x block", "y", "send", options={"block": 1})]  # fmt: skip
    made = program("p", {"epoch": ops}, Calendar("epoch"),
                   [Buffer("x", ROWS, WIDE, persistent=True), Buffer("block", ROWS, WIDE), Buffer("y", ROWS, NARROW)],
                   [Stream("compute"), Stream("comm", group="world")], (0, 0))  # fmt: skip
    peaks = run(made, machine((0, 0))).memory.both
    assert (peaks[0] - peaks[1], peaks[1]) == (4 * ROWS * WIDE, 4 * ROWS * (WIDE + NARROW))


@pytest.mark.parametrize(
    ("labels", "writes", "options", "rows", "copies", "numbers"),
    [
        (Buffer("t", ROWS, 8, "uint8"), "dy m", {}, [500, 500], 2, 2),
        (Buffer("t", ROWS, WIDE), "dy m", {}, [500, 500], 5, 0),
        (Buffer("t", ROWS, 8, "uint8"), "dy m n", {}, [500, 500], 1, 2),
        (Buffer("t", ROWS, WIDE), "dy m n", {}, [500, 500], 4, 0),
        (Buffer("t", ROWS, 8, "uint8"), "m", {"split": "split_rows"}, [700, 300], 2, 2),
        (Buffer("t", ROWS, WIDE), "m", {"split": "split_rows"}, [700, 300], 5, 0),
    ],
)
def test_losses_hold_scores_that_they_pick_and_what_is_made_of_them(labels, writes, options, rows, copies, numbers):
    trained = (Work("loss", {"rows": 500, "width": WIDE, "item_bytes": 4}),)
    work = {} if "split" in options else {"work": trained}
    ops = [op("loss", "loss", "compute", "y t", writes, options=options, **work)]
    buffers = [Buffer("y", ROWS, WIDE), labels, Buffer("dy", ROWS, WIDE), Buffer("m", 1, 4), Buffer("n", 1, 1)]
    made = program("p", {"epoch": ops}, Calendar("epoch"), buffers, [Stream("compute")], (0, 0),
                   columns={"split_rows": [700, 300]})  # fmt: skip
    held = work_space(made, Sizes(made), ops[0], 0, 0).tolist()
    assert held == [count * (copies * WIDE * 4 + numbers * 8) for count in rows]


def test_sums_over_edges_of_a_batch_make_pointers_and_when_reversed_edges_by_source() -> None:
    sizes = {"edges": 900, "width": WIDE, "item_bytes": 4}
    forward = Work("spmm", {**sizes, "rows": 300, "sources": ROWS})
    backward = Work("spmm", {**sizes, "rows": ROWS, "sources": 300})
    ops = [op("sum", "aggregate", "compute", "edges x", "y", work=(forward,)),
           op("turned", "aggregate", "compute", "edges y", "x", "sum", work=(backward,), reverses="sum")]  # fmt: skip
    held = {}
    for dtype in ("int32", "uint8"):
        buffers = [Buffer("edges", ROWS, 1, dtype), Buffer("x", ROWS, WIDE), Buffer("y", 300, WIDE)]
        made = program("p", {"epoch": ops}, Calendar("epoch"), buffers, [Stream("compute")], (0,))
        held[dtype] = [int(work_space(made, Sizes(made), each, 0, 0)[0]) for each in ops]
    assert held == {"int32": [8 * 300, 8 * (ROWS + 300) + 4 * 900], "uint8": [0, 0]}


@pytest.mark.parametrize(("source", "copies"), [("features", 0), ("hidden", 1)])
def test_what_was_sent_last_is_memory_of_its_own_unless_it_never_changes(source: str, copies: int) -> None:
    ops = [op("make", "elementwise", "compute", "features", "hidden"),
           op("send", "broadcast", "comm", source, "block age sent", "make", root=0,
              transfer=Transfer(4, ROWS))]  # fmt: skip
    buffers = [Buffer("features", ROWS, WIDE, persistent=True), Buffer("hidden", ROWS, WIDE, persistent=True),
               Buffer("block", 0, WIDE), Buffer("age", 0, 1), Buffer("sent", ROWS, WIDE, persistent=True)]  # fmt: skip
    made = program("p", {"epoch": ops}, Calendar("epoch"), buffers, [Stream("compute"), Stream("comm", group="world")],
                   (0, 0))  # fmt: skip
    assert run(made, machine((0, 0))).memory.both.tolist() == [(2 + copies) * 4 * ROWS * WIDE] * 2
