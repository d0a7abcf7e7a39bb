"""Learned vectors of vertices: ranks change them as one process does that keeps the whole table, at once or a step
late, whoever needs a vertex and however often (docs/systems/distdgl.md)."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from executor.minibatch.embeddings import Embeddings, initial_embeddings, rows_with_embeddings
from executor.state.context import PolicyContext
from executor.state.plan import RunPlan
from simgnn.graph.graph import Graph
from simgnn.partition.local.serving import Serving
from simgnn.record.rundir import RunDirectory
from simgnn.sampling.draw.sampler import Sampler
from simgnn.sampling.fetches.remote_rows import rows_on_hosts
from tests.executor.harness import run_ranks
from tests.executor.minibatch.batch_checks import assert_simulated_alike, assert_trained_as_one_process
from tests.executor.minibatch.batch_runs import EPOCHS, prepared_batches, sampling_of
from tests.executor.runs import small_graph, train_in_process
from tests.reference import LearnedRows

WIDTH, RATE = 3, 0.02
VERTICES, FEATURES = 40, 2
NOW = PolicyContext(seed=0, epoch=0, step=0, layer=0, phase="update", rank=0, ranks=1)


@pytest.mark.parametrize("hosts", [(0,), (0, 0), (0, 1), (0, 1, 0, 1), (0, 0, 1)])
def test_duplicates_inside_and_across_ranks_are_one_step_of_a_dense_table(hosts: tuple[int, ...]) -> None:
    """Ops of all ranks, called in turn: what each pushes, what arrives, sums, steps; vertices drawn with repetition."""
    random, ranks, serving = np.random.default_rng(1), len(hosts), Serving(hosts)
    owner = random.integers(0, ranks, VERTICES).astype(np.int32)
    owner[:ranks] = np.arange(ranks)
    at = np.array(hosts)[owner]
    matrix = np.zeros((ranks, ranks), np.int64)
    learned = [
        Embeddings(
            rank, serving, owner, rows_on_hosts(owner, np.array(hosts)), lambda epoch, step, r=rank: matrix[:, r],
            WIDTH, RATE,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    features = random.standard_normal((VERTICES, FEATURES))
    tables = [
        torch.from_numpy(rows_with_embeddings(features[at == host], np.flatnonzero(at == host), WIDTH, 7))
        for host in range(serving.parts)
    ]
    states = [torch.zeros(len(table), WIDTH, dtype=torch.float64) for table in tables]
    dense = LearnedRows(torch.from_numpy(initial_embeddings(7, np.arange(VERTICES), WIDTH)), 0, RATE)
    for _ in range(4):
        seeds, pushed = torch.tensor([[6.0]], dtype=torch.float64), []
        dense.vectors.grad = torch.zeros_like(dense.vectors)
        for rank in range(ranks):
            vertices = torch.from_numpy(random.integers(0, VERTICES, 25))
            gradient = torch.from_numpy(random.standard_normal((25, FEATURES + WIDTH)))
            dense.vectors.grad.index_add_(0, vertices, gradient[:, FEATURES:] / 6)
            pushed.append(learned[rank].pushed(NOW, vertices, gradient, seeds))
            writers = np.array([serving.writer(host) for host in at[vertices.numpy()]])
            matrix[rank] = np.bincount(writers, minlength=ranks)
            matrix[rank, rank] = 0
        dense.step()
        for rank in range(ranks):
            *others, own_ids, own_rows, count = pushed[rank]
            arrived = []
            for part in range(len(others)):
                cuts = [torch.split(pushed[source][part], matrix[source].tolist())[rank] for source in range(ranks)]
                arrived.append(torch.cat(cuts))
            ids, sums = learned[rank].summed(NOW, own_ids, own_rows, count, *arrived)
            host = hosts[rank]
            assert len(ids) == 0 or serving.writer(host) == rank
            learned[rank].applied(NOW, ids, sums, states[host], tables[host])
    for host, table in enumerate(tables):
        assert torch.equal(table[:, :FEATURES], torch.from_numpy(features[at == host])), "features never change"
        torch.testing.assert_close(table[:, FEATURES:], dense.vectors.detach()[at == host], rtol=1e-12, atol=1e-12)


def test_vectors_begin_as_a_function_of_seed_vertex_and_column() -> None:
    every = initial_embeddings(3, np.arange(2000), 5)
    some = np.array([1999, 4, 17])
    np.testing.assert_array_equal(initial_embeddings(3, some, 5), every[some])
    assert not np.array_equal(initial_embeddings(4, some, 5), every[some])
    assert np.abs(every).max() <= 5**-0.5
    assert abs(every.mean()) < 0.01
    assert len(np.unique(every)) == every.size


RUNS: dict[str, tuple[str, list[str]]] = {
    "at once": ("distdgl", ["schedule.window=3", "train.eval_every=1"]),
    "late": ("distdgl", ["placement.sparse_delay=1", "schedule.window=3", "train.eval_every=1", "model.kind=gcn"]),
    "late, in order": ("distdgl", ["placement.sparse_delay=1", "schedule.kind=bsp", "train.gradient_mean=ranks"]),
    "gat": ("distdgl", ["model.kind=gat", "model.heads=2", "batching.split=local", "schedule.lanes=2",
                        "batching.structure=replicated"]),
    "gin, sent by plan": ("rapidgnn", ["placement.hot_rows=0", "schedule.staged=blocks", "model.kind=gin",
                                       "placement.sparse_delay=1"]),
}  # fmt: skip
CLUSTERS = {"1x1": (1, 1), "1x2": (1, 2), "2x1": (2, 1), "2x2": (2, 2)}
"""Hosts, and ranks on each."""


@dataclass(frozen=True)
class Found:
    """A run that ranks have carried out. ``ranks``: what each got."""

    graph: Graph
    folder: Path
    ranks: list[Mapping[str, Any]]


def _trained(place: Path, hosts: int, each: int, names: list[str]) -> dict[str, Found]:
    graph = small_graph(80, seed=4)
    shared = [f"placement.sparse_embedding={WIDTH}", f"train.learning_rate={RATE}"]
    folders = {}
    for name in names:
        system, settings = RUNS[name]
        folder = place / name.replace(" ", "-").replace(",", "")
        folders[name] = prepared_batches(graph, folder, hosts, each, system, *shared, *settings)
    paths = [str(folder) for folder in folders.values()]
    results = run_ranks(hosts * each, train_in_process, place / "ranks", paths, joined=False)
    return {name: Found(graph, folders[name], [one[i] for one in results]) for i, name in enumerate(folders)}


def _assert_as_one_process(found: Mapping[str, Found]) -> None:
    pytest.importorskip("dgl", reason="the reference is made of DGL's layers (Python below 3.12)")
    for one in found.values():
        assert_trained_as_one_process(one.graph, one.folder, one.ranks)
        assert_simulated_alike(one.folder)
        _assert_pushed_bytes(one.folder)


def _assert_pushed_bytes(folder: Path) -> None:
    """Ids and rows of each pair are those of the vertices in the batches, 8 + 8 D bytes in float64
    (docs/systems/distdgl.md); some vertex is in batches of several ranks."""
    run, sampling = RunPlan.open(folder), sampling_of(folder)
    serving, sampler = Serving(run.program.hosts), Sampler(sampling.csr, sampling.fanouts)
    ranks, at = serving.ranks, np.array(run.program.hosts)[np.asarray(sampling.owner)]
    rows, shared = np.zeros((ranks, ranks), np.int64), ranks == 1
    for epoch in range(EPOCHS):
        turns = [sampling.epoch(rank, epoch) for rank in range(ranks)]
        for step in range(sampling.steps):
            needed = {r: turn.sample(step, sampler).vertices for r, turn in enumerate(turns) if step < len(turn)}
            for rank, vertices in needed.items():
                writers = [serving.writer(host) for host in at[vertices]]
                rows[rank] += np.bincount(writers, minlength=ranks)
            shared = shared or any(len(np.intersect1d(one, other)) for one, other in combinations(needed.values(), 2))
    np.fill_diagonal(rows, 0)
    sent = np.zeros_like(rows)
    for row in pq.read_table(RunDirectory(folder).traffic).to_pylist():
        if run.program.ops[row["op_id"]][1].route == "push":
            sent[row["source"], row["target"]] += row["bytes"]
    assert sent.tolist() == ((8 + 8 * WIDTH) * rows).tolist()
    assert shared, "no vertex is needed by several ranks"


def test_two_ranks_learn_as_one_process_does(tmp_path: Path) -> None:
    """Vectors of all vertices, with all else, a step late."""
    _assert_as_one_process(_trained(tmp_path, *CLUSTERS["1x2"], ["late"]))


@pytest.mark.slow
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_ranks_learn_as_one_process_does(cluster: str, tmp_path: Path) -> None:
    """Every layer, schedule and way of rows, also where ranks have no batch in some steps."""
    found = _trained(tmp_path, *CLUSTERS[cluster], list(RUNS))
    _assert_as_one_process(found)
    parameters = {name: one.ranks[0]["losses"] for name, one in found.items()}
    assert len({tuple(losses) for losses in parameters.values()}) == len(RUNS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["at once", "late"])
def test_a_run_goes_on_with_vectors_and_what_is_pending(name: str, tmp_path: Path) -> None:
    """Bit for bit, from a checkpoint after two of three epochs: vectors, Adagrad's sums, gradients not yet applied."""
    graph, (system, settings) = small_graph(80, seed=4), RUNS[name]
    shared = [f"placement.sparse_embedding={WIDTH}", "train.checkpoint_every=1", "train.timeout=30", *settings]
    whole = prepared_batches(graph, tmp_path / "whole", 1, 2, system, *shared)
    broken = prepared_batches(graph, tmp_path / "broken", 1, 2, system, *shared)
    plan = RunPlan.open(broken)
    expected = run_ranks(2, train_in_process, tmp_path / "one", [str(whole)], joined=False)
    stop = 2 * plan.program.calendar.steps + 1
    run_ranks(2, train_in_process, tmp_path / "two", [str(broken)], None, False, stop, True, joined=False)
    kept = torch.load(plan.checkpoints / "epoch-2" / "rank-0.pt", weights_only=True)
    pending = {"push/pending/ids#0", "push/pending/rows#0"} if name == "late" else set()
    remembered = {key for key in kept["buffers"] if not key.startswith(("metrics", "evaluation"))}
    assert remembered == {"embeddings/state#0", *pending}
    assert kept["written"]["embeddings"].shape == (80, WIDTH)
    got = run_ranks(2, train_in_process, tmp_path / "three", [str(broken)], None, True, joined=False)
    for (one,), (other,) in zip(expected, got, strict=True):
        assert other["losses"] == one["losses"]
        assert other["evaluations"] == one["evaluations"]
        assert other["parameters"].equal(one["parameters"])
        assert other["written"].keys() == one["written"].keys()
        assert all(rows.equal(one["written"][key]) for key, rows in other["written"].items())
        assert other["caches"].keys() == one["caches"].keys()
        assert all(rows.equal(one["caches"][key]) for key, rows in other["caches"].items())
        assert len(other["gradients"]) == plan.program.calendar.steps, "only the last epoch was trained again"
