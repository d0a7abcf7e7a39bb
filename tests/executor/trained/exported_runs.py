"""Runs that are exported: their own last evaluation, and the scores of the module that was written."""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from executor.state.plan import RunPlan
from executor.state.task import Task
from executor.trained.export import export_model
from simgnn.graph.build import assemble_edges
from simgnn.graph.graph import CentredRows, Graph
from simgnn.record.trained import Which, open_trained
from tests.executor.harness import run_ranks
from tests.executor.minibatch.batch_runs import prepared_batches
from tests.executor.runs import prepared_run, small_graph, train_in_process

BOUND = {"float32": 1e-5, "float64": 1e-12}
OWN = "tests.executor.trained.own_sums:Sums"
SYSTEMS: Mapping[str, tuple[str, ...]] = {
    "vanilla": (),
    "cdfgnn": (
        "partition.kind=ebv", "communication.kind=master-mirror", "freshness.kind=adaptive-vertex", "codec.kind=linear",
        "model.hoist=never",
    ),
    "distdgl": (),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A run whose model is taken home. ``settings`` come last."""

    system: str
    kind: str
    dtype: str = "float32"
    settings: tuple[str, ...] = ()
    hosts: int = 1

    def prepared(self, graph: Graph, folder: Path, ranks: int) -> Path:
        """The run directory of the case."""
        kind = OWN if self.kind == "own" else self.kind
        settings = [f"model.kind={kind}", "model.hidden=8", f"train.dtype={self.dtype}", "train.learning_rate=0.02"]
        settings += [*SYSTEMS[self.system], *self.settings]
        if self.kind in ("gat", "own") or ":" in self.kind:  # they have no sum to keep
            settings = [one for one in settings if "hoist" not in one]
        if self.kind == "gat":  # codes of one range a row do not serve it
            settings = ["codec.kind=bfloat16" if "codec" in one else one for one in settings]
        if self.system == "distdgl":
            return prepared_batches(graph, folder, self.hosts, ranks // self.hosts, "distdgl", *settings)
        return prepared_run(graph, folder, ranks, *settings, hosts=self.hosts)


def train_and_keep_scores(rank: int, ranks: int, folders: Sequence[str]) -> list[torch.Tensor]:
    """Carry out runs as one of their ranks; return the scores that each run's last evaluation read."""
    found: list[torch.Tensor] = []
    evaluate = Task.evaluate

    def kept(self: Task, scores: torch.Tensor) -> torch.Tensor:
        found.append(scores.clone())
        return evaluate(self, scores)

    Task.evaluate = kept  # type: ignore[method-assign]
    last = []
    for folder in folders:
        found.clear()
        train_in_process(rank, ranks, [folder])
        last.append(found[-1])
    Task.evaluate = evaluate  # type: ignore[method-assign]
    return last


def evaluated_scores(folders: Sequence[Path], ranks: int, place: Path) -> list[torch.Tensor]:
    """Train prepared runs; return by run the scores [V, classes] of its last evaluation, by vertex."""
    each = run_ranks(ranks, train_and_keep_scores, place, list(map(str, folders)), joined=False)
    whole = []
    for position, folder in enumerate(folders):
        plan = RunPlan.open(folder)
        held = [plan.local(rank) for rank in range(ranks)]
        parts = [scores[position][: local.masters] for scores, local in zip(each, held, strict=True)]
        ids = np.concatenate([local.vertices[: local.masters] for local in held])
        scores = torch.cat(parts)
        whole.append(scores.new_empty(scores.shape).index_copy_(0, torch.from_numpy(ids.astype(np.int64)), scores))
    return whole


def raw_data(graph: Graph, features: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x and edge_index as a user has them: edges in one direction, some twice, some from a vertex to itself."""
    target = np.repeat(np.arange(graph.vertices), graph.csr.degrees())
    once = graph.csr.indices < target if graph.symmetric else np.ones(len(target), np.bool_)
    edges = np.stack((graph.csr.indices[once], target[once])).astype(np.int64)
    loops = np.arange(5)
    edges = np.concatenate((edges, edges[:, ::7], np.stack((loops, loops))), axis=1)
    rows: Any = graph.features if features is None else features
    assert not isinstance(rows, CentredRows), "a user has raw features"
    dense = rows if isinstance(rows, np.ndarray) else rows.toarray()
    return torch.from_numpy(np.array(dense)), torch.from_numpy(edges)


def weighted_data(symmetrise: bool) -> tuple[Graph, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a graph with weights of edges, and x, edge_index and edge_weight as a user has them: some edges twice,
    some both ways with different weights, some from a vertex to itself, some of weight 0."""
    plain = small_graph(80)
    draw = np.random.default_rng(3)
    edges = draw.integers(0, plain.vertices - 2, size=(2, 500))
    edges[:, :20] = edges[:, 20:40]
    edges[:, 40:60] = edges[::-1, 60:80]
    edges[1, 80:85] = edges[0, 80:85]
    weights = np.where(draw.random(500) < 0.05, 0.0, draw.exponential(0.2, 500))
    built = assemble_edges(edges[0], edges[1], plain.vertices, symmetrise, weights=weights)
    graph = replace(plain, csr=built.csr, symmetric=built.symmetric)
    return graph, torch.from_numpy(np.array(plain.features)), torch.from_numpy(edges), torch.from_numpy(weights)


def exported_model(folder: Path, target: Any, out: Path, which: Which = "last") -> Any:
    """Export a run, and load what was written."""
    export_model(open_trained(folder, which), target, out)
    spec = importlib.util.spec_from_file_location(out.stem, out)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load()


def exported_scores(
    folder: Path, target: Any, x: torch.Tensor, edges: torch.Tensor, out: Path, weights: torch.Tensor | None = None
) -> torch.Tensor:
    """Export a run, load what was written, and return its scores. ``weights``: those of edges, if the run used any."""
    model = exported_model(folder, target, out)
    with torch.no_grad():
        found: torch.Tensor = model(x, edges) if weights is None else model(x, edges, weights)
    return found


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference of scores, relative to the greatest score."""
    assert found.dtype == expected.dtype
    return float((found - expected).abs().max() / expected.abs().max())
