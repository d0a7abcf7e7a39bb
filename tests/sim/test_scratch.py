"""Memory beside buffers: what planned ops state, in closed form, and how the simulator adds it up."""

from dataclasses import replace

import numpy as np
import pytest
from programs.notation import op, program

from sim.worlds import machine, run
from simgnn.errors import ProgramError
from simgnn.experiment.load import load_experiment
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.planner.make_plan import plan
from simgnn.program.calendar import Calendar
from simgnn.program.ops import Buffer, Stream, Transfer
from simgnn.program.program import Program
from simgnn.program.sizes import Column, Scratch, Term, rows_of
from simgnn.program.validate import validate
from simgnn.sim.engine.turn_sizes import Sizes
from simgnn.sim.memory.spans import scratch_bytes
from tests.experiment import test_master_mirror, test_plan_blocks, test_planner

ROWS, WIDE, NARROW = 1000, 64, 8
HIDDEN, CLASSES = 8, 4


def planned(system: str, stats: PartitionStats, *settings: str) -> Program:
    """Two layers, 30 features, 8 hidden elements, 4 classes."""
    return plan(load_experiment(system, [f"model.hidden={HIDDEN}", *settings]), stats).program


def held(made: Program, name: str) -> list[int]:
    """Bytes that an op holds on each rank in the first turn; the same in all templates that have it."""
    found = {
        tuple(scratch_bytes(Sizes(made), one.scratch, 0, 0, name).tolist()) for _, one in made.ops if one.name == name
    }
    assert len(found) == 1, name
    return list(found.pop())


def kept(made: Program) -> dict[str, list[int]]:
    return {name: scratch_bytes(Sizes(made), one, 0, 0, name).tolist() for name, one in made.kept.items()}


def labelled_twice(stats: PartitionStats) -> PartitionStats:
    return replace(stats, facts=replace(stats.facts, multilabel=True))


# -- the simulator's sum -----------------------------------------------------------------------------------------------


def one_op(scratch: Scratch, **fields: object) -> Program:
    """x is read and y written, [1000, 64] both, by one op."""
    ops = [op("a", "transform", "compute", "x", "y", scratch=scratch)]
    buffers = [Buffer("x", ROWS, WIDE, persistent=True), Buffer("y", ROWS, WIDE)]
    return replace(program("p", {"epoch": ops}, Calendar("epoch"), buffers, [Stream("compute")], (0, 0),
                           columns={"some": [3, 5]}), **fields)  # fmt: skip


def test_memory_is_the_sum_of_buffers_and_scratch() -> None:
    some, row = Column("some"), 4 * WIDE
    buffers = 2 * ROWS * row
    for scratch, more in (
        (Scratch(), [0, 0]),
        (Scratch((Term(some, 7), Term(10, 1))), [31, 45]),
        (Scratch((Term(some, 7),), at_least=(Term(29, 1),)), [29, 35]),
    ):
        made = one_op(scratch, kept={"lists": Scratch((Term(some, 100),))})
        assert run(made, machine((0, 0))).memory.both.tolist() == [buffers + 300 + more[0], buffers + 500 + more[1]]


def test_a_copy_that_is_made_last_exists_when_its_op_has_ended() -> None:
    for copied, most in (((), 3 * ROWS * 4), (("y",), 2 * ROWS * 4)):
        made = one_op(Scratch(rows_of(ROWS, 4), copied_last=copied))
        made = replace(made, buffers={name: replace(one, width=1) for name, one in made.buffers.items()})
        assert run(made, machine((0, 0))).memory.both.tolist() == [most] * 2


def test_a_rank_reads_what_it_broadcasts_where_it_is() -> None:
    ops = [op("send", "broadcast", "comm", "x", "block", root=1, transfer=Transfer(4 * WIDE, ROWS)),
           op("sum", "aggregate", "compute", "x block", "y", "send", scratch=Scratch(own_block=1))]  # fmt: skip
    made = program("p", {"epoch": ops}, Calendar("epoch"),
                   [Buffer("x", ROWS, WIDE, persistent=True), Buffer("block", ROWS, WIDE), Buffer("y", ROWS, NARROW)],
                   [Stream("compute"), Stream("comm", group="world")], (0, 0))  # fmt: skip
    peaks = run(made, machine((0, 0))).memory.both
    assert (peaks[0] - peaks[1], peaks[1]) == (4 * ROWS * WIDE, 4 * ROWS * (WIDE + NARROW))


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


@pytest.mark.parametrize("kind", ["gcn", "sage", "gin", "gat"])
def test_all_that_ops_state_is_tracked_and_nothing_else(kind: str) -> None:
    """Bytes of scratch over a run are the sum over its ops; what is kept is there all the time."""
    made = planned("vanilla", test_planner.statistics(2), f"model.kind={kind}")
    epochs, sizes = 2, Sizes(made)
    simulated = run(made, machine((0, 0)), epochs=epochs)
    spans = simulated.memory.spans
    tracked = spans.where(spans.named(set(spans.names) - made.buffers.keys()))
    ended = simulated.columns
    stated = [scratch_bytes(sizes, one.scratch, 0, 0, one.name) for _, one in made.ops]
    assert int(tracked.nbytes.sum()) == sum(stated[i][r] for i, r in zip(ended["op_id"], ended["rank"], strict=True))
    always = simulated.memory.kept["device"]
    assert {name: always[name].tolist() for name in made.kept} == kept(made)


def test_sizes_of_scratch_are_validated() -> None:
    for fields in (
        {"scratch": Scratch((Term(Column("gone"), 1),))},
        {"kept": {"k": Scratch((Term(Column("gone"), 1),))}},
    ):
        made = one_op(fields.pop("scratch", Scratch()), **fields)
        with pytest.raises(ProgramError, match="unknown column 'gone'"):
            validate(made)


# -- layers ------------------------------------------------------------------------------------------------------------


def test_a_hidden_layers_backward_holds_its_masked_gradient_and_those_of_its_weights() -> None:
    made = planned("vanilla", test_planner.statistics(2))
    assert held(made, "backward/1/update") == [4 * (100 * HIDDEN + 30 * HIDDEN)] * 2
    assert held(made, "backward/2/prepare") == [4 * HIDDEN * CLASSES] * 2
    biases_too = HIDDEN * CLASSES + CLASSES
    assert held(made, "backward/2/update") == [4 * biases_too] * 2, "no product: as many as the layer's parameters"
    made = planned("vanilla", test_planner.statistics(2), "model.kind=sage", "model.order=aggregate-first")
    assert held(made, "backward/1/update") == [4 * (100 * HIDDEN + 2 * 30 * HIDDEN)] * 2, "of both products at once"


def test_a_gradient_that_is_written_as_it_is_masked_is_held_once() -> None:
    made = planned("vanilla", test_planner.statistics(2), "model.kind=sage", "model.order=transform-first")
    assert held(made, "backward/1/update") == [4 * 30 * HIDDEN] * 2


def test_products_of_products_hold_gradients_of_weights_in_turn_and_copy_that_of_a_sum_last() -> None:
    made = planned("vanilla", test_planner.statistics(2), "model.kind=gin", "model.layers=3")
    first, second, last = (f"backward/{index}/update" for index in (1, 2, 3))
    assert held(made, first) == [4 * (30 * HIDDEN + 100 * HIDDEN)] * 2, "of constant sums: no gradient of rows"
    assert held(made, second) == [4 * (HIDDEN * HIDDEN + 100 * HIDDEN)] * 2, "the gradient inside, masked"
    assert held(made, last) == [4 * (HIDDEN * CLASSES + 100 * CLASSES)] * 2
    late = {one.name: one.scratch.copied_last for _, one in made.ops if one.scratch.copied_last}
    assert late == {second: ("d/own/2",), last: ("d/own/3",)}


def test_forward_products_with_rows_less_their_mean_hold_a_copy_of_the_weights_each_in_turn() -> None:
    stats = test_planner.statistics(2, sparse=True)
    stats = replace(stats, facts=replace(stats.facts, centred_features=True))
    made = planned("vanilla", stats, "communication.rows=input", "model.kind=sage")
    assert held(made, "forward/1/prepare") == held(made, "forward/1/update") == [4 * 31 * HIDDEN] * 2
    assert held(made, "backward/1/prepare") == [4 * 31 * HIDDEN] * 2, "own and halo rows apart"
    assert held(made, "forward/2/update") == [0, 0]


def test_a_gradient_that_is_scaled_down_is_held_beside_the_masked_one() -> None:
    made = planned("vanilla", test_planner.statistics(2), "train.clip_norm=1.0", "model.kind=gat", "model.heads=2")
    wide, heads = HIDDEN, 2
    written = wide + (wide + heads)  # of means, of sums and weights
    assert held(made, "backward/1/update") == [max(4 * 100 * (2 * wide - written), 4 * (30 * wide + 3 * wide))] * 2
    made = planned("vanilla", test_planner.statistics(2), "train.clip_norm=1.0", "model.order=transform-first")
    assert held(made, "backward/1/update") == [4 * 100 * (2 * HIDDEN - HIDDEN)] * 2


# -- losses, lists, adjacencies ----------------------------------------------------------------------------------------


def test_losses_hold_scores_that_they_pick_and_what_is_made_of_them() -> None:
    stats = test_planner.statistics(2)
    trained, largest = stats.tables["train_rows"], planned("vanilla", stats).sizes.columns["split_rows"]
    for made, copies, numbers in (
        (planned("vanilla", stats), 2, 16),
        (planned("vanilla", labelled_twice(stats)), 5, 0),
    ):
        row = 4 * copies * CLASSES + numbers
        assert held(made, "forward/loss") == (trained * row).tolist()
        assert held(made, "evaluate/loss") == (largest * row).tolist()


def test_a_full_graph_keeps_degrees_scalings_splits_and_lists_of_rows() -> None:
    stats = test_planner.statistics(2)
    halo, sent = stats.halo_rows(), np.bincount(stats.halo.source, stats.halo.rows).astype(int)
    assert kept(planned("vanilla", stats)) == {
        "adjacency": ((8 + 4) * (100 + halo) + 3 * 4 * 100).tolist(),
        "rows of route halo": (8 * sent).tolist(),
        "rows of the splits": [800, 800],
    }


def test_sparse_rows_that_are_multiplied_are_kept_transposed_and_of_those_added_up_the_sum() -> None:
    stats = test_planner.statistics(1, sparse=True)
    made = planned("vanilla", stats)
    nonzeros = made.sizes.columns["feature_nonzeros"][0]
    assert kept(made)["features transposed"] == [8 * nonzeros + 4 * (100 + 30)]
    stats = replace(stats, tables={**stats.tables, "aggregated_feature_nonzeros": np.array([2000])})
    for kind, names in (("gin", ["saved/1/total"]), ("sage", ["aggregated/1", "features"])):
        made = planned("vanilla", stats, f"model.kind={kind}", "model.order=aggregate-first")
        transposed = {name: found for name, found in kept(made).items() if "transposed" in name}
        assert sorted(transposed) == [f"{name} transposed" for name in names]
        assert transposed[f"{names[0]} transposed"] == [8 * 2000 + 4 * (100 + 30)]


# -- blocks ------------------------------------------------------------------------------------------------------------


def test_a_sum_over_a_later_block_makes_a_new_one_and_blocks_have_degrees_and_scalings() -> None:
    made = planned("cagnet", test_plan_blocks.blocks(2, [60, 40]), "model.order=transform-first")
    assert held(made, "forward/2/aggregate/0") == [0, 0]
    assert held(made, "forward/2/aggregate/1") == [4 * CLASSES * 60, 4 * CLASSES * 40]
    later = [4 * (2 * 60 + 40), 4 * (2 * 40 + 40)]
    assert {name: found for name, found in kept(made).items() if "block" in name} == {
        "degrees of block 0": [480] * 2, "degrees of block 1": [320] * 2,
        "scalings of block 0/0": [4 * 120, 4 * 100], "scalings of block 1/0": later,
        "scalings of block 0/1": [4 * 120, 4 * 100], "scalings of block 1/1": later,
    }  # fmt: skip
    roots = {one.name: one.scratch.own_block for _, one in made.ops if one.scratch.own_block is not None}
    assert {roots[f"{phase}/2/aggregate/{root}"] - root for phase in ("forward", "backward") for root in (0, 1)} == {0}


def test_attention_to_a_block_holds_scores_and_what_arrived_taken_apart() -> None:
    made = planned(
        "cagnet", test_plan_blocks.blocks(2, [60, 60]), "model.kind=gat", "model.heads=2", "model.order=auto"
    )
    heads, wide = 2, HIDDEN
    sums = wide + heads
    payload = sums + 2 * heads
    for name, width in (
        ("forward/1/aggregate/0", 2 * heads), ("forward/1/aggregate/1", 5 * heads + sums),
        ("backward/1/aggregate/0", payload + heads), ("backward/1/aggregate/1", payload + wide + 3 * heads),
    ):  # fmt: skip
        assert held(made, name) == [4 * 60 * width] * 2, name
    assert kept(made)["degrees of block 1"] == [480] * 2
    assert not any("scalings" in name for name in made.kept), "attention scales nothing"


# -- caches and codecs -------------------------------------------------------------------------------------------------

CODECS = {
    "none": (0, 0, 1), "linear": (2, 1, 2), "bfloat16": (2, 1, 2), "stochastic": (3, 1, 3),
}  # fmt: skip
"""Copies of rows that a cache holds: where it encodes and decodes rows, and where it encodes parts of sums."""


@pytest.mark.parametrize("codec", CODECS)
def test_ops_of_caches_hold_copies_of_rows_that_they_pick(codec: str) -> None:
    """As many as the executor does, see tests/executor/memory/test_rows_held.py."""
    encoding, decoding, parts = CODECS[codec]
    settings = ("freshness.kind=adaptive-vertex", f"codec.kind={codec}")
    made = planned("vanilla", test_planner.statistics(2), *settings)
    columns = {name: column.tolist() for name, column in made.sizes.columns.items()}
    row = 4 * CLASSES
    assert held(made, "forward/2/select") == [0, 0]
    assert held(made, "forward/2/encode") == [encoding * row * count for count in columns["send_rows"]]
    assert held(made, "forward/2/decode") == [decoding * row * count for count in columns["halo_rows"]]
    stats = test_master_mirror.statistics(2)
    stats = replace(stats, tables={**stats.tables, "shared_masters": np.array([9, 7])})
    made = planned("cdfgnn", stats, *settings)
    sent, arrived = (made.sizes.columns[name] for name in ("mirrored_rows", "mirror_rows"))
    assert held(made, "forward/2/gather/encode") == (parts * row * arrived).tolist()
    assert held(made, "forward/2/gather/decode") == (decoding * row * sent).tolist()
    assert held(made, "forward/2/scatter/fold") == [2 * row * 9, 2 * row * 7]
    assert held(made, "forward/2/scatter/encode") == [parts * row * 9, parts * row * 7]
    assert held(made, "forward/2/scatter/decode") == (2 * decoding * row * arrived).tolist()


def test_rounding_at_random_copies_rows_and_nearest_codes_do_not() -> None:
    for codec, copies in (("linear", 0), ("stochastic", 1)):
        made = planned("vanilla", test_planner.statistics(2), f"codec.kind={codec}")
        sent = made.sizes.columns["send_rows"]
        assert held(made, "forward/2/encode") == (copies * 4 * CLASSES * sent).tolist()
        made = planned("cagnet", test_plan_blocks.blocks(2, [60, 40]), f"codec.kind={codec}", "model.order=auto")
        assert held(made, "forward/2/encode/0") == [copies * 4 * CLASSES * count for count in (60, 40)]
