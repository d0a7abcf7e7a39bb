"""Training on a vertex-cut is training on one process: every model, any number of ranks, any way to compute a layer.

Masters and mirrors hold the same rows, losses belong to masters, and the bytes of a sync are those of the paper.
"""

import numpy as np
import pytest

from simgnn.partition.local.shards import ShardArtifact
from simgnn.partition.store import PartitionArtifact
from simgnn.program.kinds import OpKind
from simgnn.program.program import Program
from tests.equality.cases import REAL, Case
from tests.equality.conftest import Bench, Finished

pytest.importorskip("dgl", reason="the reference is made of DGL's layers (Python below 3.12)")

LIMIT = 1e-9
MODELS = ("gcn", "sage", "gin", "gat")
PAPER = ("model.hoist=never",)
HOSTS = ("communication.exchange=host-aggregated",)
THREE = ("model.layers=3", "model.hidden=[20,8]")

QUICK = [
    *(Case("communities", model, "ebv", ranks) for model, ranks in zip(MODELS, (4, 3, 2, 3), strict=True)),
    Case("communities", "gcn", "ebv", 1),
    Case("communities", "gcn", "ebv", 3, extra=(*PAPER, *THREE)),
    Case("communities", "sage", "ebv", 2, extra=("model.order=aggregate-first", *PAPER, *THREE)),
    Case("cora", "gin", "ebv", 2),
    Case("communities", "gat", "ebv", 4, extra=(*HOSTS, *THREE), hosts=2),
]
WHOLE = [
    *(
        Case(graph, model, "ebv", ranks)
        for graph in ("communities", *REAL)
        for model in MODELS
        for ranks in (1, 2, 3, 4)
    ),
    *(
        Case("communities", model, "ebv", ranks, extra=extra)
        for model in MODELS
        for ranks in (3, 4)
        for extra in (
            PAPER,
            (*PAPER, *THREE),
            ("partition.gamma=0.0",),
            ("partition.master=hash", "partition.reorder=none"),
        )
    ),
    *(Case("communities-multilabel", model, "ebv", 3, extra=THREE) for model in MODELS),
    *(Case("cora", model, "ebv", 3, extra=("model.order=aggregate-first",)) for model in ("gcn", "sage")),
    *(Case("communities", model, "ebv", 4, extra=HOSTS, hosts=2) for model in MODELS),
    Case("communities", "sage", "ebv", 3, extra=(*HOSTS, *PAPER), hosts=3),
    Case("path", "gcn", "ebv", 4),
    Case("islands", "sage", "ebv", 4),
]


def _named(cases: list[Case]) -> list[object]:
    return [
        pytest.param(case, id=case.name, marks=[pytest.mark.realdata] if case.graph in REAL else []) for case in cases
    ]


def _judge(case: Case, bench: Bench, request: pytest.FixtureRequest) -> None:
    if case.graph in REAL:
        request.getfixturevalue("data_dir")
    found = bench.errors(case)
    assert found["initial"] == 0
    wrong = {name: value for name, value in found.items() if not value <= LIMIT}
    assert not wrong, f"{case.name}: above {LIMIT:g}"


@pytest.mark.parametrize("case", _named(QUICK))
def test_some_vertex_cuts(case: Case, bench: Bench, request: pytest.FixtureRequest) -> None:
    _judge(case, bench, request)


@pytest.mark.slow
@pytest.mark.parametrize("case", _named(WHOLE))
def test_all_vertex_cuts(case: Case, bench: Bench, request: pytest.FixtureRequest) -> None:
    _judge(case, bench, request)


SHORT = ("train.epochs=3", "model.hoist=never", *THREE)


def test_two_runs_are_the_same_bits(bench: Bench) -> None:
    once, again = (
        bench.run(Case("communities", "sage", "ebv", 4, extra=(*SHORT, f"name={name}"))).ranks for name in ("a", "b")
    )
    for first, second in zip(once, again, strict=True):
        assert first["losses"] == second["losses"]
        assert first["parameters"].equal(second["parameters"])
        assert all(one.equal(other) for one, other in zip(first["gradients"], second["gradients"], strict=True))


@pytest.fixture(scope="module")
def paper(bench: Bench) -> Finished:
    """A run that computes and sends what the paper says."""
    return bench.run(Case("communities", "gcn", "ebv", 4, extra=SHORT))


def test_only_masters_are_learned_from(bench: Bench, paper: Finished) -> None:
    graph = bench.graph("communities")
    artifact, shards = PartitionArtifact.open(paper.plan.partition), ShardArtifact.open(paper.plan.shards)
    counted = np.zeros(3, dtype=np.int64)
    for rank in range(4):
        local, shard = artifact.local(rank), shards.rank(rank)
        mirrors = slice(local.masters, len(local.vertices))
        assert len(local.vertices) > local.masters
        assert shard.labels is not None
        assert not shard.labels[mirrors].any()
        np.testing.assert_array_equal(shard.features, np.asarray(graph.features)[local.vertices])
        for place, mask in enumerate((shard.train_mask, shard.validation_mask, shard.test_mask)):
            assert not mask[mirrors].any()
            counted[place] += mask.sum()
    masks = (graph.train_mask, graph.validation_mask, graph.test_mask)
    assert counted.tolist() == [int(mask.sum()) for mask in masks if mask is not None]


def test_an_epoch_sends_what_the_paper_says(bench: Bench, paper: Finished) -> None:
    """2 L syncs of width F_l: gather and scatter n[i, j] rows each, but no gather at the top backward (section 6)."""
    plan = paper.plan
    mirrors = PartitionArtifact.open(plan.partition).stats.halo.matrix(4)
    program = plan.program
    expected = np.zeros((4, 4), dtype=np.int64)
    widths = [layer.width_out for layer in plan.layers]
    for width in widths:
        expected += 2 * 8 * width * (mirrors.T + mirrors)
    expected -= 8 * widths[-1] * mirrors.T
    found = np.zeros((4, 4), dtype=np.int64)
    for op in program.templates["steady"].ops:
        if op.kind is OpKind.EXCHANGE:
            assert op.route is not None
            assert op.transfer is not None
            found += program.sizes.routes[op.route].matrix(4) * op.transfer.row_bytes
    assert found.tolist() == expected.tolist()
    # constant sums of layer 1 are completed once
    hoisted = bench.run(Case("communities", "gcn", "ebv", 4, extra=("train.epochs=3", *THREE))).plan.program
    assert {op.layer for op in hoisted.templates["steady"].ops if op.kind is OpKind.EXCHANGE} == {2, 3}
    assert {"setup/1/gather/exchange", "setup/1/scatter/exchange"} <= {op.name for op in hoisted.templates["first"].ops}


def test_hosts_that_add_up_first_send_less_between_them(bench: Bench) -> None:
    program, direct = (
        bench.run(Case("communities", "gcn", "ebv", 4, extra=(*SHORT, *extra), hosts=2)).plan.program
        for extra in (HOSTS, ())
    )
    host = np.array(program.hosts)
    across = host[:, None] != host[None, :]

    def sent(one: Program) -> int:
        matrices = [
            one.sizes.routes[op.route].matrix(4) * op.transfer.row_bytes
            for op in one.templates["steady"].ops
            if op.kind is OpKind.EXCHANGE and op.route is not None and op.transfer is not None
        ]
        return int(sum(matrix[across].sum() for matrix in matrices))

    assert 0 < sent(program) < sent(direct)
    # inside a host nothing of the exchange between hosts travels, and the other way round
    assert not program.sizes.routes["mirrors/across"].matrix(4)[~across].any()
    assert not program.sizes.routes["mirrors/within"].matrix(4)[across].any()
