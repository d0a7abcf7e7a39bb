"""Training without dropped halo rows is training of one process on the graph without their edges; and training with all
halo rows, though a partitioner might have dropped some, is vanilla to the last bit."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from executor.layers import build_layers
from executor.state.plan import RunPlan
from simgnn.graph.graph import Graph
from simgnn.model.spec import LayerSpec
from simgnn.policy import METRICS
from tests.equality.conftest import Bench
from tests.executor.runs import prepared_run, small_graph
from tests.weighted import weighted_graph

EPOCHS, LIMIT = 5, 1e-10
MODELS = ("gcn", "sage", "gin", "gat")
SPEED = (
    'device="gpu", kind="gpu", matmul_s={0}, spmm_s={0}, h2d_s={0}, d2h_s={0}, copy_s={0}, memory_bytes=1000000000000'
)


def rapa(*slowness: float, **options: Any) -> list[str]:
    """Settings of RAPA on a random partition of ranks whose devices are so slow."""
    devices = ", ".join("{" + SPEED.format(factor) + "}" for factor in slowness)
    chosen = {"base": "random", "assign": "identity", **options}
    stated = [f"partition.{key}={value}" for key, value in chosen.items()]
    return ["partition.kind=rapa", f"partition.devices=[{devices}]", *stated]


class Pruned:
    """The layers of a plan over the edges that ranks keep, as dense matrices [V, V]: row i sums its in-neighbours."""

    def __init__(self, plan: RunPlan, graph: Graph, renormalise: bool = False) -> None:
        count = graph.vertices
        edges, weights = np.zeros((count, count)), graph.csr.weights
        targets = np.repeat(np.arange(count), graph.csr.degrees())
        edges[targets, graph.csr.indices] = 1.0 if weights is None else weights
        full = torch.from_numpy(edges.sum(axis=1)) + 1
        self.lost = 0
        partition = plan.artifact.partition
        if partition.dropped is not None:
            for rank, vertex in zip(partition.dropped.rank, partition.dropped.vertex, strict=True):
                mine = np.flatnonzero(partition.owner == rank)
                self.lost += np.count_nonzero(edges[mine, vertex])
                edges[mine, vertex] = 0.0
        self.edges = torch.from_numpy(edges)
        self.kept = self.edges.sum(1)
        scale = full.rsqrt()
        self.gcn = scale[:, None] * (self.edges + torch.eye(count)) * scale[None, :]
        if renormalise:
            self.gcn = self.gcn * (full / (self.kept + 1))[:, None]
        self.mean = self.edges / torch.where(self.kept > 0, self.kept, 1.0)[:, None]

    def layer(self, spec: LayerSpec, of: Mapping[str, torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
        if spec.kind == "gcn":
            found = self.gcn @ rows @ of["weight"] + of["bias"]
        elif spec.kind == "sage":
            found = rows @ of["weight_self"] + self.mean @ rows @ of["weight_neighbor"] + of["bias"]
        elif spec.kind == "gin":
            found = functional.linear(rows + self.edges @ rows, of["mlp.0.weight"], of["mlp.0.bias"]).relu()
            found = functional.linear(found, of["mlp.2.weight"], of["mlp.2.bias"])
        else:
            found = self._attended(of, rows)
        return {"relu": torch.relu, "elu": functional.elu, "none": lambda given: given}[spec.follows](found)

    def _attended(self, of: Mapping[str, torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
        heads, width = of["attention_source"].shape
        made = (rows @ of["weight"]).view(-1, heads, width)
        source, target = ((made * of[f"attention_{end}"]).sum(-1) for end in ("source", "target"))
        scores = functional.leaky_relu(source[None, :, :] + target[:, None, :], 0.2)
        looped = (self.edges != 0) | torch.eye(len(self.edges), dtype=torch.bool)
        shares = torch.where(looped[:, :, None], scores, -torch.inf).softmax(1)
        return torch.einsum("ijh,jhw->ihw", shares, made).flatten(1) + of["bias"]


def expected(plan: RunPlan, graph: Graph, pruned: Pruned) -> tuple[list[float], torch.Tensor, torch.Tensor]:
    """Losses before each update, parameters after the last, and the scores of the trained model."""
    layers = build_layers(plan.layers, plan.seed, torch.float64)
    named = [dict(layer.named_parameters()) for layer in layers]
    optimizer = torch.optim.Adam([value for layer in named for value in layer.values()], plan.train["learning_rate"])
    rows: Any = graph.features
    start = torch.from_numpy(np.asarray(rows.todense() if hasattr(rows, "todense") else rows)).double()
    labels = torch.from_numpy(np.array(graph.labels))

    def scores() -> torch.Tensor:
        found = start
        for spec, of in zip(plan.layers, named, strict=True):
            found = pruned.layer(spec, of, found)
        return found

    losses = []
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        loss = functional.cross_entropy(scores()[graph.train_mask], labels[graph.train_mask])
        loss.backward()
        losses.append(float(loss.detach()))
        optimizer.step()
    return (
        losses,
        torch.cat([value.detach().flatten() for layer in named for value in layer.values()]),
        scores().detach(),
    )


def agrees(
    bench: Bench, graph: Graph, folder: Path, ranks: int, settings: Sequence[str], renormalise: bool = False,
    hosts: int = 1,
) -> None:  # fmt: skip
    """Train, and compare with one process on the graph without the dropped edges."""
    common = (f"train.epochs={EPOCHS}", f"train.eval_every={EPOCHS}", "hardware.threads_per_rank=1")
    plan = RunPlan.open(prepared_run(graph, folder, ranks, *common, *settings, hosts=hosts))
    pruned = Pruned(plan, graph, renormalise)
    assert pruned.lost > 0
    losses, parameters, scores = expected(plan, graph, pruned)
    labels = torch.from_numpy(np.array(graph.labels))
    for got in bench.pool.run(folder, ranks):
        assert got["losses"] == pytest.approx(losses, rel=LIMIT)
        assert (got["parameters"] - parameters).abs().max() <= LIMIT * parameters.abs().max()
        # evaluations are of the pruned graph, too, as results say: losses over the number of training rows
        counted = [loss * int(graph.train_mask.sum()) for loss in got["evaluations"][EPOCHS - 1][::METRICS]]
        masks = (graph.train_mask, graph.validation_mask, graph.test_mask)
        sums = [float(functional.cross_entropy(scores[mask], labels[mask], reduction="sum")) for mask in masks]
        assert counted == pytest.approx(sums, rel=1e-9)


SLOWER = [pytest.param(model, marks=pytest.mark.slow) for model in MODELS[1:3]]


@pytest.mark.parametrize("model", ["gcn", "gat", *SLOWER])
def test_two_ranks_train_the_pruned_graph(model: str, bench: Bench, tmp_path: Path) -> None:
    agrees(bench, small_graph(), tmp_path / "run", 2, [f"model.kind={model}", *rapa(1.0, 6.0)])


def test_a_renormalised_gcn(bench: Bench, tmp_path: Path) -> None:
    agrees(bench, small_graph(), tmp_path / "run", 2, ["model.kind=gcn", *rapa(1.0, 6.0, renormalise="true")], True)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "way",
    [
        (),
        ("schedule.kind=pipelined", "model.hoist=never"),
        ("communication.rows=input",),
        ("communication.resend_inputs=true",),
    ],
    ids="-".join,
)
def test_more_ranks_and_ways(model: str, way: tuple[str, ...], bench: Bench, tmp_path: Path) -> None:
    kept = [one for one in way if not (model == "gat" and one == "model.hoist=never")]
    agrees(bench, small_graph(), tmp_path / "run", 4, [f"model.kind={model}", *rapa(1.0, 6.0, 2.0, 1.0), *kept])


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS[:3])
def test_weights_and_sparse_features(model: str, bench: Bench, tmp_path: Path) -> None:
    weighted = weighted_graph(tmp_path)
    agrees(bench, weighted, tmp_path / "weighted", 3, [f"model.kind={model}", *rapa(1.0, 6.0, 3.0)])
    sparse = small_graph(sparse_features=True)
    agrees(bench, sparse, tmp_path / "sparse", 3, [f"model.kind={model}", *rapa(1.0, 6.0, 3.0)])


@pytest.mark.parametrize("ranks", [2, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (1, 3, 4))])
def test_where_nothing_is_dropped_training_is_vanilla_s_to_the_last_bit(
    ranks: int, bench: Bench, tmp_path: Path
) -> None:
    graph, same = small_graph(), rapa(*[1.0] * ranks, eps_rel=1.0)
    for model in ("gcn", "gat") if ranks == 2 else MODELS:
        found = []
        for name, settings in (("vanilla", ["partition.kind=random"]), ("rapa", same)):
            folder = tmp_path / f"{name}-{model}"
            prepared_run(graph, folder, ranks, f"model.kind={model}", *settings)
            found.append(bench.pool.run(folder, ranks))
        for one, other in zip(*found, strict=True):
            assert one["losses"] == other["losses"]
            assert torch.equal(one["parameters"], other["parameters"])
            assert one["evaluations"] == other["evaluations"]
