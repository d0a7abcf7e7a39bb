"""Rows that no codec can encode end a run with exit status 2; the message names rank, layer and vertex."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from executor.rank.assemble import vertices_of
from executor.state.context import vertices_sent
from executor.state.plan import RunPlan
from executor.state.routes import local_routes
from simgnn.cli.main import invoke
from simgnn.partition.local.edge_cut import LocalGraph
from simgnn.record.result import read_result
from simgnn.record.rundir import RunDirectory
from tests.executor.forked import forked_ranks
from tests.executor.runs import prepared_run, small_graph
from tests.sampled_reference import sample

__all__ = ["forked_ranks"]

LARGE = 17
"""The vertex whose features are so large that its transformed row has no code."""
RANDOM, TRANSFORMED = "partition.kind=random", "communication.rows=transformed"
RUNS = {
    "drawn rows": ("bnsgcn", "codec.kind=stochastic", "freshness.p=0.9", RANDOM, TRANSFORMED),
    "as many as chance has it": (
        "bnsgcn", "codec.kind=linear", "freshness.p=0.9", "freshness.sampling=bernoulli", RANDOM, TRANSFORMED
    ),
    "rows of unequal bits": ("adaqp", RANDOM, TRANSFORMED),
    "chosen rows": ("vanilla", "codec.kind=linear", "freshness.kind=adaptive-vertex", RANDOM, TRANSFORMED),
    "sums of replicas": ("cdfgnn", "model.order=transform-first"),
    "blocks": ("cagnet", "codec.kind=linear", "model.order=transform-first"),
}  # fmt: skip
SLOW = {"as many as chance has it"}


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] if case in SLOW else []) for case in RUNS]
)
def test_the_vertex_is_named_and_the_status_is_that_of_bad_input(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, file, out = small_graph(), tmp_path / "large.npz", tmp_path / "run"
    features = np.array(made.features, np.float32)
    features[LARGE] = 3e38 * np.where(np.arange(features.shape[1]) % 2, 1, -1)
    np.savez(
        file, indptr=made.csr.indptr, indices=made.csr.indices, feat=features, labels=made.labels,
        train_mask=made.train_mask, val_mask=made.validation_mask, test_mask=made.test_mask,
    )  # fmt: skip
    system, *settings = RUNS[case]
    settings += [f"graph.source={file}", "model.hidden=8", "train.epochs=3", "model.dropout=0"]
    words = [word for setting in settings for word in ("--set", setting)]
    assert invoke(["run", system, "--ranks", "2", *words, "--out", str(out)]) == 2
    told = re.findall(r"rank (\d), layer (\d): the row of vertex (\d+) \(values\) has no code", capsys.readouterr().err)
    ((rank, layer, vertex),) = {tuple(map(int, found)) for found in told}
    assert layer == 1
    around = {LARGE, *made.csr.indices[made.csr.indptr[LARGE] : made.csr.indptr[LARGE + 1]].tolist()}
    assert vertex in (around if case == "sums of replicas" else {LARGE})
    assert vertex in RunPlan.open(out).local(rank).vertices
    result = read_result(RunDirectory(out).result)
    assert (result.status, f"vertex {vertex}" in result.message) == ("failed", True), "what ran is recorded"


@pytest.mark.parametrize("sampling", ["fixed", "bernoulli"])
@pytest.mark.parametrize("p", [0.5, 1.0])
def test_each_row_of_drawn_ones_has_the_name_of_its_vertex(p: float, sampling: str, tmp_path: Path) -> None:
    """Of own rows, and of halo rows whose gradients go back to their owners."""
    settings = [f"freshness.p={p}", f"freshness.sampling={sampling}", "codec.kind=linear", RANDOM]
    plan = RunPlan.open(prepared_run(small_graph(), tmp_path / "run", 3, *settings, system="bnsgcn"))
    parts = [plan.local(rank) for rank in range(3)]
    encoding = {op.route: op for _, op in plan.program.ops if op.action == "EncodeRows"}
    assert {plan.program.sizes.is_reverse(route or "") for route in encoding} == {False, True}
    for rank, part in enumerate(parts):
        assert isinstance(part, LocalGraph)
        routes = local_routes(plan.program, part, torch.device("cpu"))
        context: Any = SimpleNamespace(program=plan.program, vertices=vertices_of(plan, part))
        for route, op in encoding.items():
            vertex_of = vertices_sent(context, op, routes.get(route or ""))
            if not plan.program.sizes.is_reverse(route or ""):
                assert [vertex_of(0, row) for row in range(len(part.owned))] == part.owned.tolist()
                continue
            for epoch in range(3):
                expected: list[int] = []
                for owner in sorted(part.receive):
                    halo = part.halo[part.receive[owner]]
                    places = sample(plan.seed, epoch, owner, rank, len(halo), p, sampling)
                    expected += halo[places].tolist()
                assert [vertex_of(epoch, place) for place in range(len(expected))] == expected


def test_each_halo_row_has_the_name_of_its_vertex(tmp_path: Path) -> None:
    plan = RunPlan.open(prepared_run(small_graph(), tmp_path / "run", 3, "codec.kind=linear"))
    (op,) = {
        op.route: op for _, op in plan.program.ops if op.action == "EncodeRows" and op.phase == "backward"
    }.values()
    for rank in range(3):
        part = plan.local(rank)
        assert isinstance(part, LocalGraph)
        route = local_routes(plan.program, part, torch.device("cpu"))[op.route or ""]
        context: Any = SimpleNamespace(program=plan.program, vertices=vertices_of(plan, part))
        vertex_of = vertices_sent(context, op, route)
        assert [vertex_of(0, place) for place in range(len(part.halo))] == part.halo.tolist()
