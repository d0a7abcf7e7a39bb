"""Programs of block broadcasts: valid for every choice, and the bytes and ops of docs/systems/cagnet.md."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.planner.make_plan import Planned, plan
from simgnn.program.calendar import EVALUATE
from simgnn.program.kinds import OpKind
from simgnn.program.validate import validate
from tests.experiment.test_planner import statistics


def blocks(ranks: int, rows: list[int] | None = None, width: int = 30, sparse: bool = False) -> PartitionStats:
    """A made-up partition whose rank i has i + 5 j + 1 edges from rows of rank j (none where either has no rows)."""
    made = statistics(ranks, width=width, sparse=sparse)
    held = made.rows if rows is None else np.array(rows, dtype=np.int64)
    edges = np.array([[i + 5 * j + 1 for j in range(ranks)] for i in range(ranks)]) * np.outer(held > 0, held > 0)
    tables = {**made.tables, "block_edges": edges, "train_rows": held // 2}
    facts = replace(made.facts, vertices=int(held.sum()))
    return replace(made, rows=held, edges=edges.sum(axis=1), tables=tables, facts=facts)


def planned(stats: PartitionStats, *overrides: str) -> Planned:
    return plan(load_experiment("cagnet", list(overrides)), stats)


@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from(["gcn", "sage", "gin", "gat"]),
    rows=st.lists(st.integers(0, 7), min_size=1, max_size=5).filter(any),
    hidden=st.lists(st.integers(1, 40), min_size=0, max_size=3),
    order=st.sampled_from(["auto", "aggregate-first", "transform-first"]),
    hoist=st.sampled_from(["auto", "never"]),
    resend=st.booleans(),
    gradient=st.sampled_from(["summed-gradient", "saved-sum"]),
    ahead=st.integers(0, 1),
    clip=st.sampled_from([0.0, 2.0]),
)
def test_every_plan_is_valid(kind, rows, hidden, order, hoist, resend, gradient, ahead, clip) -> None:
    values = {"model.kind": kind, "model.layers": len(hidden) + 1, "model.hidden": hidden, "model.order": order,
              "model.hoist": hoist, "communication.resend_inputs": str(resend).lower(), "train.clip_norm": clip,
              "communication.weight_gradient": gradient, "communication.blocks_ahead": ahead}  # fmt: skip
    if kind == "gat":
        values["model.heads"] = 1
    transforms = kind == "gat" or order == "transform-first"
    if transforms or resend:  # what would have no effect is refused
        values["model.hoist"] = "auto"
    if transforms:
        values["communication.resend_inputs"] = "false"
    if transforms or kind == "gin" or order == "auto" or not hidden:
        values["communication.weight_gradient"] = "summed-gradient"
    try:
        result = planned(blocks(len(rows), rows), *(f"{key}={value}" for key, value in values.items()))
    except ConfigError as error:
        assert (kind, order) in (("gin", "transform-first"), ("gat", "aggregate-first")), error  # noqa: PT017
        return
    validate(result.program)
    found = [(template, op) for template, op in result.program.ops if op.kind is OpKind.BROADCAST]
    assert bool(found) == (len(rows) > 1)
    assert {op.root for _, op in found} <= {root for root, count in enumerate(rows) if count}, "an empty block is sent"
    exchanged = [op for _, op in result.program.ops if op.kind is OpKind.EXCHANGE]
    assert bool(exchanged) == (kind == "gat" and len(rows) > 1), "only parts of gradients of attention's scores are"


def payload(result: Planned, template: str) -> int:
    """Bytes that all roots hand to broadcasts."""
    program = result.program
    return sum(
        int(program.sizes.per_rank(op.transfer.rows, 0, 0)[op.root]) * op.transfer.row_bytes
        for op in program.templates[template].ops
        if op.kind is OpKind.BROADCAST
    )


def test_bytes_are_those_of_the_text() -> None:
    """Section 6: V = 1000, P = 4, widths 32, 16 and 4 (the classes of the made-up partition)."""
    stats = blocks(4, [250] * 4, width=32)
    forward, backward = 4 * 1000 * (32 + 16), 4 * 1000 * (16 + 4)
    assert payload(planned(stats, "model.hidden=16"), "steady") == forward + backward
    assert payload(planned(stats, "model.hidden=16"), EVALUATE) == forward
    for train in ("first", "steady"):
        once = payload(planned(stats, "model.hidden=16", "communication.resend_inputs=false"), train)
        assert once == 4 * 1000 * 16 + 4 * 1000 * 4 + (train == "first") * 4 * 1000 * 32, "a kept sum learns by itself"
    assert payload(planned(stats, "model.hidden=16", "model.order=transform-first"), "steady") == 2 * backward
    gin = planned(stats, "model.hidden=16", "model.kind=gin")
    assert payload(gin, "steady") == forward + 4 * 1000 * 16
    assert payload(planned(stats, "model.hidden=16", "train.dtype=float64"), "steady") == 2 * (forward + backward)


def test_ops_are_those_of_the_text() -> None:
    """Section 7: P broadcasts and P sums a layer and direction, in the order of ranks, one after the other."""
    program = planned(blocks(3)).program
    ops = program.templates["steady"].ops
    for phase, layer in (("forward", 1), ("forward", 2), ("backward", 2), ("backward", 1)):
        moved = [op for op in ops if op.phase == phase and op.layer == layer]
        found = [op for op in moved if op.kind in (OpKind.BROADCAST, OpKind.AGGREGATE)]
        assert [op.kind for op in found] == [OpKind.BROADCAST, OpKind.AGGREGATE] * 3
        assert [op.root for op in found[::2]] == [0, 1, 2]
        assert [op.options["block"] for op in found[1::2]] == [0, 1, 2]
        edges = [program.sizes.columns[op.work[0].sizes["edges"].name] for op in found[1::2]]
        wanted = np.array([[i + 5 * j + 1 for j in range(3)] for i in range(3)])
        wanted = (wanted.T if phase == "backward" else wanted) + 100 * np.eye(3, dtype=np.int64)  # loops of GCN
        assert np.array_equal(np.stack(edges, axis=1), wanted)


def test_a_block_ahead_needs_a_second_buffer() -> None:
    for ahead in (0, 1):
        program = planned(blocks(4), f"communication.blocks_ahead={ahead}").program
        arriving = [name for name in program.buffers if name.startswith("block/1/forward/")]
        assert len(arriving) == 1 + ahead
        template = program.templates["steady"]
        last = template.ops[template.index["forward/1/broadcast/2"]]
        assert f"forward/1/aggregate/{1 - ahead}" in {dependency.op for dependency in last.after}


@pytest.mark.parametrize("centred", [False, True])
def test_sparse_features_travel_as_dense_rows(centred: bool) -> None:
    stats = blocks(2, sparse=True)
    result = planned(replace(stats, facts=replace(stats.facts, centred_features=centred)))
    assert not result.layers[0].sparse_input
    assert not result.layers[0].centred_input
    assert payload(result, "steady") == payload(planned(blocks(2)), "steady")


def test_order_and_kind_are_told() -> None:
    result = planned(blocks(2))
    assert result.resolved["model.order"] == ["aggregate-first"] * 2
    assert [layer.sums_inputs for layer in result.layers] == [True, True]
    kept = planned(blocks(2), "communication.weight_gradient=saved-sum")
    assert [layer.sums_inputs for layer in kept.layers] == [False, False]


def test_what_has_no_meaning_is_refused() -> None:
    stats = blocks(2)
    with pytest.raises(ConfigError, match="cannot be cut into blocks"):
        planned(stats, "model.kind=tests.executor.layers.own_layers:Drop")
    with pytest.raises(ConfigError, match=r"train\.clip_norm: got 1\.0 with model\.kind = 'a:B', expected 0"):
        planned(stats, "model.kind=a:B", "train.clip_norm=1.0")
    with pytest.raises(ConfigError, match=r"partition\.kind: got 'ebv' with communication\.kind = 'block-broadcast'"):
        planned(stats, "partition.kind=ebv")
    without = replace(stats, tables={name: t for name, t in stats.tables.items() if name != "block_edges"})
    with pytest.raises(ConfigError, match=r"no table 'block_edges', which communication\.kind = 'block-broadcast'"):
        planned(without)


def test_bytes_of_attention() -> None:
    """docs/systems/cagnet.md, less the scores that receivers compute: rows of width H d forward, gradients with
    three numbers a head backward, and parts of the gradients of targets' scores."""
    result = planned(
        blocks(4, [250] * 4, width=32), "model.kind=gat", "model.order=auto", "model.hidden=16", "model.heads=2"
    )
    assert payload(result, EVALUATE) == 4 * 1000 * (16 + 4)
    assert payload(result, "steady") == 4 * 1000 * (16 + 4) + 4 * 1000 * (16 + 3 * 2 + 4 + 3)
    program = result.program
    parts = [op for op in program.templates["steady"].ops if op.kind is OpKind.EXCHANGE]
    assert [op.name for op in parts] == ["backward/2/scores/exchange", "backward/1/scores/exchange"]
    for op in parts:
        assert op.route is not None
        assert op.transfer is not None
        assert op.transfer.row_bytes == 4 * (1 if op.layer == 2 else 2)
        assert program.sizes.routes[op.route].matrix(4).tolist() == (250 * (1 - np.eye(4, dtype=int))).tolist()


def test_one_range_a_row_is_no_code_of_attention() -> None:
    with pytest.raises(
        ConfigError, match=r"codec\.kind: got 'linear' with model\.kind = 'gat'.*block-broadcast.*scores"
    ):
        planned(blocks(2), "model.kind=gat", "model.order=auto", "codec.kind=linear")
