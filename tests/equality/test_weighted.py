"""Training on a graph whose edges have weights, on real ranks, is training with PyTorch Geometric in one process."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from executor.state.plan import RunPlan
from simgnn.graph.graph import Graph
from simgnn.policy import METRICS
from tests.equality.conftest import Bench
from tests.executor.runs import prepared_run

pytest.importorskip("torch_geometric", reason="the reference is made of PyTorch Geometric's layers")
from tests.weighted import dense_features, reference_model, weighted_graph

LIMIT, EPOCHS = 1e-12, 5
MODELS = ("gcn", "sage", "gin")
MIRRORS = ("partition.kind=ebv", "communication.kind=master-mirror")
BLOCKS = ("partition.kind=block-row", "communication.kind=block-broadcast")
FIRST = "model.order=aggregate-first"
CHUNKS = (
    "partition.kind=metis-chunks", "partition.chunks=3", 'partition.candidates=["initial"]',
    "communication.kind=transition", "placement.kind=host-offload",
)  # fmt: skip
WAYS = {
    "halo": (),
    "own rows first": ("schedule.kind=pipelined", "model.hoist=never"),
    "all rows drawn": ("freshness.kind=boundary-sampling", "freshness.p=1.0"),
    "mirrors": MIRRORS,
    "cached mirrors": (*MIRRORS, "freshness.kind=adaptive-vertex", "freshness.epsilon=0.0", "freshness.adapt=false"),
    "blocks": BLOCKS,
    "chunks": CHUNKS,
    "chunks computed again": (*CHUNKS, "placement.intermediates=recompute"),
}
FEW = {("gcn", "halo", 2), ("sage", "mirrors", 2), ("gin", "blocks", 2), ("gcn", "chunks", 2)}
MANY = [(model, way, ranks) for model in MODELS for way in WAYS for ranks in (1, 2, 3, 4)]


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Graph]:
    """The weighted graph with dense and with sparse features."""
    return {sparse: weighted_graph(tmp_path_factory.mktemp("weighted"), sparse) for sparse in (False, True)}


def expected(plan: RunPlan, graph: Graph) -> dict[str, Any]:
    """Losses before each update, and the losses of all vertices by split and the parameters after the last."""
    model, rows = reference_model(plan.layers, plan.seed), dense_features(graph)
    labels = torch.from_numpy(graph.labels)
    optimizer = torch.optim.Adam(model.parameters(), float(plan.train["learning_rate"]))
    losses = []
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(rows)[graph.train_mask], labels[graph.train_mask])
        loss.backward()
        losses.append(float(loss.detach()))
        optimizer.step()
    scores = model(rows).detach()
    masks = (graph.train_mask, graph.validation_mask, graph.test_mask)
    sums = [float(functional.cross_entropy(scores[mask], labels[mask], reduction="sum")) for mask in masks]
    return {"losses": losses, "sums": sums, "parameters": torch.cat([value.flatten() for value in model.values])}


def agrees(bench: Bench, graph: Graph, folder: Path, ranks: int, *settings: str) -> None:
    common = (f"train.epochs={EPOCHS}", f"train.eval_every={EPOCHS}", "hardware.threads_per_rank=1")
    plan = RunPlan.open(prepared_run(graph, folder, ranks, *common, *settings))
    assert all(layer.weighted for layer in plan.layers)
    wanted = expected(plan, graph)
    for got in bench.pool.run(folder, ranks):
        assert got["losses"] == pytest.approx(wanted["losses"], rel=LIMIT)
        assert (got["parameters"] - wanted["parameters"].detach()).abs().max() <= LIMIT * got["parameters"].abs().max()
        losses = got["evaluations"][EPOCHS - 1][::METRICS]
        sums = [loss * int(graph.train_mask.sum()) for loss in losses]
        assert sums == pytest.approx(wanted["sums"], rel=LIMIT)


def _cases(few: bool) -> list[Any]:
    return [case for case in MANY if (case in FEW) == few]


@pytest.mark.parametrize(("model", "way", "ranks"), _cases(few=True))
def test_some_runs_are_those_of_pyg(
    model: str, way: str, ranks: int, bench: Bench, graphs: dict[bool, Graph], tmp_path: Path
) -> None:
    agrees(bench, graphs[False], tmp_path / "run", ranks, f"model.kind={model}", *WAYS[way])


@pytest.mark.slow
@pytest.mark.parametrize(("model", "way", "ranks"), _cases(few=False))
def test_every_run_is_that_of_pyg(
    model: str, way: str, ranks: int, bench: Bench, graphs: dict[bool, Graph], tmp_path: Path
) -> None:
    agrees(bench, graphs[False], tmp_path / "run", ranks, f"model.kind={model}", *WAYS[way])


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("way", ["halo", "mirrors"])
def test_sparse_features_too(model: str, way: str, bench: Bench, graphs: dict[bool, Graph], tmp_path: Path) -> None:
    agrees(bench, graphs[True], tmp_path / "run", 3, f"model.kind={model}", *WAYS[way])
    if model != "gin":
        agrees(bench, graphs[True], tmp_path / "first", 3, f"model.kind={model}", FIRST, *WAYS[way])
