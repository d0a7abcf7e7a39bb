"""The planner needs statistics only, and its programs are valid, minimal and conserve bytes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.graph.graph import GraphFacts
from simgnn.partition.statistics.partition_stats import PartitionStats
from simgnn.planner.make_plan import Planned, plan
from simgnn.program.kinds import OpKind
from simgnn.program.sizes import Route
from simgnn.program.validate import validate
from tests.experiment.needed import needed_dependencies


def statistics(ranks: int, width: int = 30, classes: int = 4, sparse: bool = False, rows: int = 100) -> PartitionStats:
    """A made-up partition: rank i sends 3 i + j + 1 rows to rank j."""
    halo = np.array([[0 if i == j else 3 * i + j + 1 for j in range(ranks)] for i in range(ranks)], dtype=np.int64)
    tables = {"train_rows": np.full(ranks, rows // 2)}
    if sparse:
        tables["feature_nonzeros"] = np.full(ranks, 7 * rows)
        tables["halo_feature_nonzeros"] = 5 * halo
        tables["aggregated_feature_nonzeros"] = np.full(ranks, 11 * rows)
    facts = GraphFacts("g", rows * ranks, 900 * ranks, width, 7 * rows * ranks if sparse else None, classes, False,
                       rows * ranks // 2, 10, 10)  # fmt: skip
    counts = np.full(ranks, rows), np.full(ranks, 900)
    return PartitionStats(facts, "edge-cut", np.zeros(ranks, int), *counts, Route.from_matrix(halo), "d", tables)


def planned(stats: PartitionStats, *overrides: str) -> Planned:
    return plan(load_experiment("vanilla", list(overrides)), stats)


def payload(result: Planned, template: str) -> int:
    """Bytes of all exchanges of a template."""
    program = result.program
    return sum(
        int(program.sizes.routes[op.route].rows.sum()) * op.transfer.row_bytes
        for op in program.templates[template].ops
        if op.kind is OpKind.EXCHANGE
    )


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["gcn", "sage", "gin", "gat"]),
    ranks=st.integers(1, 5),
    hidden=st.lists(st.integers(1, 40), min_size=0, max_size=3),
    order=st.sampled_from(["auto", "aggregate-first", "transform-first"]),
    rows=st.sampled_from(["auto", "input", "transformed"]),
    sparse=st.booleans(),
    centred=st.booleans(),
    hoist=st.sampled_from(["auto", "never"]),
)
def test_every_plan_is_valid(kind, ranks, hidden, order, rows, sparse, centred, hoist) -> None:
    values = {"model.kind": kind, "model.layers": len(hidden) + 1, "model.hidden": hidden, "model.order": order,
              "communication.rows": rows, "model.hoist": hoist}  # fmt: skip
    if kind == "gat" or order == "transform-first" or rows == "transformed":  # no sum to keep: it would be refused
        values["model.hoist"] = "auto"
    if kind == "gat":
        values["model.heads"] = 1
    overrides = [f"{key}={value}" for key, value in values.items()]
    try:
        stats = statistics(ranks, sparse=sparse)
        stats = replace(stats, facts=replace(stats.facts, centred_features=sparse and centred))
        result = planned(stats, *overrides)
    except ConfigError:
        return
    validate(result.program)
    kinds = {op.kind for _, op in result.program.ops}
    assert (OpKind.EXCHANGE in kinds) == (ranks > 1)
    assert (OpKind.ALLREDUCE in kinds) == (ranks > 1)


def test_each_derived_dependency_is_needed() -> None:
    assert needed_dependencies(planned(statistics(3), "model.kind=sage", "model.layers=3").program) > 60


def test_bytes_of_an_epoch_in_closed_form() -> None:
    stats = statistics(4, width=30, classes=4)
    halo = int(stats.halo.rows.sum())
    hoisted = planned(stats, "model.layers=3", "model.hidden=16")
    assert [layer.order for layer in hoisted.layers] == ["aggregate-first", "aggregate-first", "transform-first"]
    assert payload(hoisted, "first") - payload(hoisted, "steady") == halo * 30 * 4
    assert payload(hoisted, "steady") == 2 * halo * (16 + 4) * 4
    resent = planned(stats, "model.layers=3", "model.hidden=16", "communication.resend_inputs=true")
    assert "first" not in resent.program.templates
    assert payload(resent, "steady") == halo * (30 + 2 * (16 + 4)) * 4
    transformed = planned(stats, "model.layers=3", "model.hidden=16", "communication.rows=transformed")
    assert payload(transformed, "steady") == 2 * halo * (16 + 16 + 4) * 4


def test_rows_auto_takes_fewer_bytes_over_the_run() -> None:
    stats = statistics(3, width=5000, sparse=False)
    short = planned(stats, "model.order=transform-first", "model.hidden=16", "train.epochs=2")
    long = planned(stats, "model.order=transform-first", "model.hidden=16", "train.epochs=500")
    assert short.resolved["communication.rows"] == "transformed"
    assert long.resolved["communication.rows"] == "input"


def test_sparse_inputs_are_encoded_in_one_exchange() -> None:
    stats = statistics(3, width=8000, sparse=True)
    result = planned(stats, "model.hidden=16")
    halo = int(stats.halo.rows.sum())
    assert result.layers[0].order == "transform-first"
    assert payload(result, "first") - payload(result, "steady") == halo * 4 + 5 * halo * 8


def test_sparse_inputs_less_their_mean_are_one_column_wider_in_products_only() -> None:
    plain = statistics(3, width=8000, sparse=True)
    stats = replace(plain, facts=replace(plain.facts, centred_features=True))
    result, other = planned(stats, "model.hidden=16"), planned(plain, "model.hidden=16")
    assert [layer.centred_input for layer in result.layers] == [True, False]
    for template in ("first", "steady"):
        assert payload(result, template) == payload(other, template), "statistics count the column"
    for buffers in (result.program.buffers, other.program.buffers):
        assert (buffers["parameters/1"].width, buffers["prepared/1"].width) == (8000 * 16 + 16, 16)
    assert (result.program.buffers["feature_mean"].rows, result.program.buffers["feature_mean"].width) == (1, 8000)
    assert "feature_mean" not in other.program.buffers
    ops = {op.name: op.work for op in result.program.templates["steady"].ops}
    forward = [(piece.primitive, piece.sizes.get("sources")) for piece in ops["forward/1/prepare"]]
    assert forward == 2 * [("elementwise", None), ("copy", None), ("sparse_matmul", 8001)], "own rows, then the halo's"
    backward = [(piece.primitive, piece.sizes["rows"]) for piece in ops["backward/1/prepare"]]
    assert backward == 2 * [("sparse_matmul", 8001), ("elementwise", 8000), ("elementwise", 8000)]


def test_rows_less_their_mean_are_dense_for_a_layer_of_the_users_own() -> None:
    stats = statistics(2, sparse=True)
    stats = replace(stats, facts=replace(stats.facts, centred_features=True))
    first = planned(stats, "model.kind=tests.executor.layers.own_layers:Plain").layers[0]
    assert not first.sparse_input
    assert not first.centred_input


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["model.kind=gin", "model.order=transform-first"], "model.order"),
        (["model.kind=gin", "communication.rows=transformed"], "communication.rows"),
        (["model.order=aggregate-first", "communication.rows=transformed"], "communication.rows"),
        (["model.kind=no.such.module:Layer"], "model.kind"),
        (["model.kind=simgnn.errors:NoSuchClass"], "model.kind"),
        (["model.kind=simgnn.errors:ConfigError"], "forward(csr, rows)"),
    ],
)
def test_impossible_plans_are_refused(overrides: list[str], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(statistics(2), *overrides)
    assert key in str(caught.value)


def test_a_graph_that_cannot_be_trained_is_refused() -> None:
    stats = statistics(2)
    bare = replace(stats, facts=replace(stats.facts, feature_width=0, classes=0))
    with pytest.raises(ConfigError) as caught:
        planned(bare)
    assert "graph.stand_in_features" in str(caught.value)
    assert len(caught.value.problems) == 2


def test_a_module_without_segments_is_refused_by_what_it_lacks(tmp_path, monkeypatch) -> None:
    (tmp_path / "empty_layer.py").write_text(
        "import torch\nclass Empty(torch.nn.Module):\n    def prepare(self, rows):\n        return rows\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"missing: aggregate, update"):
        planned(statistics(2), "model.kind=empty_layer:Empty")


LAYER = """
import torch

class Layer(torch.nn.Module):
    def __init__(self, width_in, width_out, activation):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(width_in, width_out))

    def prepare(self, rows):
        return rows

    def aggregate(self, csr, prepared):
        return csr.sum(prepared)

    def update(self, aggregated, own):
        return aggregated @ self.weight

    @staticmethod
    def prepared_width(width_in, width_out):
        return width_in

    @staticmethod
    def work(segment, rows, edges, sources, width_in, width_out):
        {body}
"""


def with_layer(tmp_path, monkeypatch, body: str) -> Planned:
    name = f"layer_{abs(hash(body))}"
    (tmp_path / f"{name}.py").write_text(LAYER.replace("{body}", body))
    monkeypatch.syspath_prepend(tmp_path)
    return planned(statistics(2), f"model.kind={name}:Layer", "model.hidden=8")


def test_a_layer_that_declares_no_work_has_none(tmp_path, monkeypatch) -> None:
    result = with_layer(tmp_path, monkeypatch, "return []")
    assert result.undeclared == ()
    segments = [op for _, op in result.program.ops if op.segment is not None]
    assert segments
    assert all(op.work == () for op in segments)
    assert [layer.prepared_width for layer in result.layers] == [30, 8]


@pytest.mark.parametrize("body", ["return None", "return [3]", "raise ValueError('no idea')", "return {'matmul': 1}"])
def test_work_that_cannot_be_read_is_the_users_fault(tmp_path, monkeypatch, body: str) -> None:
    with pytest.raises(ConfigError, match=r"model.kind = 'layer_.*work\('prepare'"):
        with_layer(tmp_path, monkeypatch, body)


def inner_widths(result: Planned) -> dict[str, int]:
    """Widths of buffers that modules hold, but for what the optimizer steps."""
    stepped = {a.buffer for _, op in result.program.ops if op.kind is OpKind.OPTIMIZE for a in op.reads}
    return {name: one.width for name, one in result.program.buffers.items() if one.inner and name not in stepped}


def test_rows_inside_an_update_are_buffers_that_no_op_hands_over() -> None:
    dense = statistics(2, width=30)
    assert inner_widths(planned(dense, "model.kind=gcn", "model.hidden=8")) == {}
    assert inner_widths(planned(dense, "model.kind=gin", "model.hidden=8")) == {
        "saved/1/total": 30, "saved/1/inside": 8, "saved/2/total": 8, "saved/2/inside": 4,
        "d/saved/1/inside": 8, "d/saved/2/inside": 4,
    }  # fmt: skip
    assert inner_widths(planned(dense, "model.kind=gat", "model.hidden=8")) == {
        "saved/1/mean": 8, "saved/2/mean": 4, "d/saved/1/mean": 8,
    }  # fmt: skip


def test_gins_sum_of_constant_sparse_rows_is_kept_and_stores_a_value_where_own_rows_or_neighbours_do() -> None:
    result = planned(statistics(2, sparse=True), "model.kind=gin", "model.hidden=8")
    total = result.program.buffers["saved/1/total"]
    assert (total.rows, total.persistent) == (result.program.buffers["aggregated/1"].rows, True)


def test_an_evaluation_tells_how_many_rows_each_ranks_largest_split_has() -> None:
    by_rank = {"train_rows": np.array([80, 20]), "validation_rows": np.array([0, 50]), "test_rows": np.array([5, 5])}
    for tables, largest in ((by_rank, [80, 50]), ({"train_rows": by_rank["train_rows"]}, [80, 20])):
        program = planned(replace(statistics(2), tables=tables)).program
        (loss,) = [op for op in program.templates["evaluate"].ops if op.name == "evaluate/loss"]
        assert program.sizes.columns[str(loss.options["split"])].tolist() == largest
