"""Unsupervised mini-batches: ranks train as one process does on the same blocks, and a simulation sends what they sent.

The reference draws the three branches one by one, computes their rows with DGL's layers one by one, and takes the loss
and its gradient from autograd."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch.nn import functional

from executor.layers import build_layers
from executor.state.pairs import loss_of_pairs
from executor.state.plan import RunPlan
from simgnn.errors import ConfigError
from simgnn.experiment.load import load_experiment
from simgnn.graph.csr import CSR
from simgnn.graph.graph import Graph
from simgnn.policy import METRICS, Metrics
from simgnn.record.result import read_result
from simgnn.record.rundir import RunDirectory
from simgnn.sampling.draw.pairs import branch_seeds, negatives, positives
from simgnn.sampling.draw.sampler import Sampler
from simgnn.sampling.draw.seeds import batch_seed, dropout_seed
from tests import reference
from tests.executor.harness import run_ranks
from tests.executor.minibatch.batch_checks import assert_simulated_alike
from tests.executor.minibatch.batch_runs import EPOCHS, prepared_batches, sampling_of
from tests.executor.runs import small_graph, train_in_process

pytest.importorskip("dgl", reason="the reference is made of DGL's layers (Python below 3.12)")

LAYERS: dict[str, list[str]] = {
    "gcn": ["model.kind=gcn", "batching.split=local"],
    "sage": ["model.kind=sage", "train.gradient_mean=ranks", "batching.negatives=2"],
    "gat": ["model.kind=gat", "model.heads=2", "batching.split=local", "schedule.lanes=2"],
}
CLUSTERS = {1: (1, 1), 2: (2, 1), 4: (2, 2)}
UNSUPERVISED = ["batching.unsupervised=true", "batching.structure=replicated", "train.eval_every=1"]


def trained_alone(graph: Graph, folder: Path) -> tuple[list[float], torch.Tensor, list[torch.Tensor]]:
    """Losses, parameters after the last epoch, and rows of all vertices after each epoch, of one process."""
    run, plan = RunPlan.open(folder), sampling_of(folder)
    layers, specs = build_layers(run.layers, run.seed, torch.float64), run.layers
    names = [[name for name, _ in layer.named_parameters()] for layer in layers]
    initial = [{name: value.detach() for name, value in layer.named_parameters()} for layer in layers]
    modules = [reference._module(spec, "right").double() for spec in specs]
    theirs = reference._load_values(modules, specs, initial)
    optimizer = reference._optimizer([p for module in modules for p in module.parameters()], run.train)
    features = reference._dense_rows(graph.features).double()
    sampler, indptr, indices = Sampler(plan.csr, plan.fanouts), np.array(plan.csr.indptr), np.array(plan.csr.indices)
    every = Sampler(plan.csr, [-1] * len(specs)).sample(np.arange(plan.csr.rows), 0)
    losses, outputs = [], []
    for epoch in range(EPOCHS):
        total = 0.0
        for step in range(plan.steps):
            optimizer.zero_grad()
            sums, counts = [], []
            for rank in range(plan.ranks):
                turn = plan.epoch(rank, epoch)
                if step >= len(turn):
                    continue
                seeds, seed = np.array(turn.seeds(step)), batch_seed(plan.seed, rank, epoch, step)
                near = positives(indptr, indices, None, seeds, seed)
                far = negatives(indptr, indices, None, seeds, seed, plan.negatives, plan.csr.rows)
                drop = dropout_seed(plan.seed, epoch, (rank, step))
                rows = []
                for wanted, own in zip((seeds, near, far.reshape(-1)), branch_seeds(seed, 3), strict=True):
                    starts, place = np.unique(wanted, return_inverse=True) if wanted is not seeds else (seeds, ...)
                    batch = sampler.sample(starts, own)
                    rows.append(reference._batch_scores(modules, specs, batch, drop, features)[place])
                own, positive, negative = rows[0], rows[1], rows[2].view(len(seeds), plan.negatives, -1)
                loss = -functional.logsigmoid((own * positive).sum(1)).sum()
                loss = loss - functional.logsigmoid(-(own[:, None] * negative).sum(2)).sum()
                sums.append(loss)
                counts.append(len(seeds))
            if run.train["gradient_mean"] == "ranks":
                mean = torch.stack([loss / count for loss, count in zip(sums, counts, strict=True)]).mean()
            else:
                mean = torch.stack(sums).sum() / sum(counts)
            mean.backward()
            optimizer.step()
            total += float(torch.stack(sums).sum().detach())
        losses.append(total / plan.trained)
        with torch.no_grad():
            outputs.append(reference._batch_scores(modules, specs, every, None, features))
    values = [reference._read_values(m, n, False) for m, n in zip(modules, theirs, strict=True)]
    flat = torch.cat([found[name].reshape(-1) for found, kept in zip(values, names, strict=True) for name in kept])
    return losses, flat, outputs


def area(rows: torch.Tensor, vertices: np.ndarray, partners: np.ndarray) -> float:
    """The area under the curve by its definition: every positive against every negative."""
    scores = (rows[vertices][:, None] * rows[partners]).sum(2)
    positive, negative = scores[:, :1], scores[:, 1:].reshape(1, -1)
    return float(((positive > negative).double() + (positive == negative).double() / 2).mean())


def assert_trained_alike(graph: Graph, folder: Path, ranks: list[Mapping[str, Any]]) -> None:
    losses, parameters, outputs = trained_alone(graph, folder)
    compared = sampling_of(folder).compared
    assert compared is not None
    for got in ranks:
        np.testing.assert_allclose(got["losses"], losses, rtol=1e-10)
        difference = float((got["parameters"] - parameters).abs().max() / parameters.abs().max())
        assert difference <= 1e-10, f"{folder}: parameters differ by {difference:.2e}"
        assert got["evaluations"].keys() == set(range(EPOCHS))
        for epoch, counts in got["evaluations"].items():
            train, *others = (Metrics(*counts[at : at + METRICS]) for at in range(0, 3 * METRICS, METRICS))
            assert train.accuracy is None
            for found, part in zip(
                others, np.split(np.arange(len(compared.vertices)), [compared.validation]), strict=True
            ):
                wanted = area(outputs[epoch], compared.vertices[part], compared.partners[part])
                assert found.accuracy == pytest.approx(wanted, rel=1e-9), (folder, epoch)


@pytest.mark.parametrize("ranks", [*(pytest.param(few, marks=pytest.mark.slow) for few in (1, 2)), 4])
def test_ranks_train_as_one_process_does(ranks: int, tmp_path: Path) -> None:
    graph = small_graph()
    folders = {
        name: prepared_batches(graph, tmp_path / name, *CLUSTERS[ranks], "distdgl", *UNSUPERVISED, *settings)
        for name, settings in LAYERS.items()
    }
    results = run_ranks(ranks, train_in_process, tmp_path / "ranks", [str(f) for f in folders.values()], joined=False)
    for at, (name, folder) in enumerate(folders.items()):
        assert_trained_alike(graph, folder, [one[at] for one in results])
        assert_simulated_alike(folder)
        result = read_result(RunDirectory(folder).result)
        assert result.accuracy is None
        assert result.accuracy_missing
        assert result.accuracy_metric == "area_under_curve"
        assert result.area_under_curve is not None
        assert [found.epoch for found in result.area_under_curve] == [1, 2, 3]
        batches = pq.read_table(RunDirectory(folder).batches).to_pylist()
        plan = sampling_of(folder)
        assert sum(row["seeds"] for row in batches) == EPOCHS * plan.trained, name
        if len(set(RunPlan.open(folder).program.hosts)) > 1:
            assert_pulled_once(folder, batches)


def assert_pulled_once(folder: Path, batches: list[dict[str, Any]]) -> None:
    """Rows of other hosts are those of the batch, each once, whichever branches need it."""
    plan, hosts = sampling_of(folder), np.array(RunPlan.open(folder).program.hosts)
    sampler, some = plan.sampler(), 0
    for row in batches:
        turn = plan.epoch(row["rank"], row["epoch"])
        if row["step"] >= len(turn):
            continue
        vertices = turn.sample(row["step"], sampler).vertices
        far = vertices[hosts[plan.owner[vertices]] != hosts[row["rank"]]]
        assert row["rows_pulled"] == len(np.unique(far))
        some += len(far) - len(np.unique(far))
    assert some, "no vertex is in several branches"


@pytest.mark.parametrize("lacking", [False, True])
def test_a_gradient_is_that_of_the_loss(lacking: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(20, 6, dtype=torch.float64, generator=draw).requires_grad_()
    pairs = torch.randint(5, 20, (5, 4), generator=draw)
    if lacking:
        pairs[2, 1:], pairs[4, 3] = -1, -1
    total = torch.zeros((), dtype=torch.float64)
    for seed, partners in enumerate(pairs.tolist()):
        total = total - functional.logsigmoid(rows[seed] @ rows[partners[0]])
        for partner in partners[1:]:
            if partner >= 0:
                total = total - functional.logsigmoid(-rows[seed] @ rows[partner])
    (wanted,) = torch.autograd.grad(total, [rows])
    found = loss_of_pairs(rows.detach(), pairs)
    torch.testing.assert_close(found.total, total.detach())
    torch.testing.assert_close(found.gradient, wanted)


def test_an_empty_batch_has_no_loss() -> None:
    found = loss_of_pairs(torch.zeros(0, 6), torch.zeros((0, 4), dtype=torch.int64))
    assert found.gradient.shape == (0, 6)
    assert found.total == 0


def _full(vertices: int = 24) -> Graph:
    """A small graph of which vertices 0 and 1, which are trained on, are adjacent to all others."""
    graph = small_graph(vertices, seed=4)
    rows = [set(graph.csr.indices[graph.csr.indptr[v] : graph.csr.indptr[v + 1]].tolist()) for v in range(vertices)]
    for hub in (0, 1):
        rows[hub] = set(range(vertices)) - {hub}
        for other in range(vertices):
            if other != hub:
                rows[other].add(hub)
    indptr = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    csr = CSR(indptr, np.array([u for row in rows for u in sorted(row)], np.int32), vertices).check()
    assert graph.train_mask is not None
    train = graph.train_mask | (np.arange(vertices) < 2)
    assert graph.validation_mask is not None
    assert graph.test_mask is not None
    others = {"validation_mask": graph.validation_mask & ~train, "test_mask": graph.test_mask & ~train}
    return replace(graph, csr=csr, train_mask=train, **others)


def test_seeds_without_non_neighbours_are_refused_and_counted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"batching\.unsupervised: 2 of \d+ training vertices"):
        prepared_batches(_full(), tmp_path / "run", 1, 1, "distdgl", *UNSUPERVISED)


def test_a_graph_without_training_vertices_is_refused(tmp_path: Path) -> None:
    graph = small_graph()
    assert graph.train_mask is not None
    with pytest.raises(ConfigError, match="no training vertices"):
        prepared_batches(
            replace(graph, train_mask=np.zeros_like(graph.train_mask)), tmp_path / "run", 1, 1, "distdgl", *UNSUPERVISED
        )


def test_a_graph_without_vertices_to_compare_is_not_evaluated(tmp_path: Path) -> None:
    graph = small_graph()
    folder = prepared_batches(
        replace(graph, validation_mask=None, test_mask=None), tmp_path / "run", 1, 1, "distdgl", *UNSUPERVISED[:-1]
    )
    assert "evaluate" not in RunPlan.open(folder).program.templates
    (got,) = run_ranks(1, train_in_process, tmp_path / "ranks", [str(folder)], joined=False)
    assert len(got[0]["losses"]) == EPOCHS
    assert not got[0]["evaluations"]


def test_parts_of_the_structure_on_several_hosts_are_refused(tmp_path: Path) -> None:
    settings = [*UNSUPERVISED, "batching.structure=partitioned"]
    with pytest.raises(ConfigError, match=r"batching\.unsupervised.*'replicated'"):
        prepared_batches(small_graph(), tmp_path / "run", 2, 1, "distdgl", *settings)


@pytest.mark.parametrize(
    ("system", "settings", "key"),
    [
        ("distdgl", ["batching.unsupervised=true", "batching.negatives=0"], "batching.negatives"),
        ("distdgl", ["batching.negatives=3"], "batching.negatives"),
        ("rapidgnn", ["batching.unsupervised=true"], "batching.unsupervised"),
        ("vanilla", ["batching.unsupervised=true"], "batching.unsupervised"),
    ],
)
def test_what_cannot_be_trained_is_refused(system: str, settings: list[str], key: str) -> None:
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        load_experiment(system, settings)


@pytest.mark.slow
def test_a_resumed_run_is_the_same(tmp_path: Path) -> None:
    """Broken off in the second epoch and resumed: losses, areas and parameters bit by bit."""
    graph = small_graph()
    settings = [*UNSUPERVISED, *LAYERS["gcn"], "train.checkpoint_every=1"]
    whole, broken = (prepared_batches(graph, tmp_path / name, 2, 1, "distdgl", *settings) for name in ("whole", "cut"))
    (one,) = zip(*run_ranks(2, train_in_process, tmp_path / "a", [str(whole)], joined=False), strict=True)
    steps = sampling_of(whole).steps
    run_ranks(2, train_in_process, tmp_path / "b", [str(broken)], None, False, steps + 1, joined=False)
    (two,) = zip(*run_ranks(2, train_in_process, tmp_path / "c", [str(broken)], None, True, joined=False), strict=True)
    for before, after in zip(one, two, strict=True):
        assert after["losses"] == before["losses"]
        assert after["evaluations"] == before["evaluations"]
        assert torch.equal(after["parameters"], before["parameters"])
    assert json.loads(RunDirectory(broken).result.read_text())["accuracy"] is None
