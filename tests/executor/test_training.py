"""P-rank training gives what one process gives on the whole graph with DGL's layers: losses, gradients, parameters."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executor.layers import build_layers
from executor.state.plan import RunPlan
from simgnn.graph.graph import Graph
from tests.executor.harness import run_ranks
from tests.executor.runs import prepared_run, small_graph, train_in_process
from tests.reference import Reference, train_reference

pytest.importorskip("dgl", reason="the reference is made of DGL's layers (Python below 3.12)")

CASES: dict[str, tuple[dict[str, bool], list[str]]] = {
    "gcn": ({}, []),
    "gcn-transform-first": ({}, ["model.order=transform-first", "model.layers=3"]),
    "gcn-transformed-rows": ({}, ["communication.rows=transformed", "model.hidden=6"]),
    "gcn-resent-inputs": ({}, ["communication.resend_inputs=true"]),
    "gcn-sparse": ({"sparse_features": True}, []),
    "gcn-sparse-hoisted": ({"sparse_features": True}, ["model.order=aggregate-first"]),
    "gcn-multilabel-sgd": (
        {"multilabel": True}, ["train.optimizer=sgd", "train.momentum=0.9", "train.learning_rate=0.5"]
    ),
    "gcn-decay": ({}, ["train.weight_decay=0.01", "model.layers=1"]),
    "sage": ({}, ["model.kind=sage", "model.layers=3"]),
    "sage-aggregate-first": ({}, ["model.kind=sage", "model.order=aggregate-first", "model.hoist=never"]),
    "sage-sparse": ({"sparse_features": True}, ["model.kind=sage"]),
    "gin": ({}, ["model.kind=gin"]),
    "gin-sparse": ({"sparse_features": True}, ["model.kind=gin", "model.layers=3"]),
}  # fmt: skip


def _reference(graph: Graph, folder: Path) -> Reference:
    plan = RunPlan.open(folder)
    layers = build_layers(plan.layers, plan.seed, torch.float64)
    initial = [{name: value.detach() for name, value in layer.named_parameters()} for layer in layers]
    return train_reference(graph, plan.layers, initial, plan.epochs, plan.train, plan.seed)


def _flat(values: list[dict[str, torch.Tensor]], folder: Path) -> torch.Tensor:
    layers = build_layers(RunPlan.open(folder).layers, 0, torch.float64)
    return torch.cat(
        [
            found[name].reshape(-1)
            for layer, found in zip(layers, values, strict=True)
            for name, _ in layer.named_parameters()
        ]
    )


def _close(got: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    error = float((got - expected).abs().max() / expected.abs().max().clamp(min=1e-30))
    assert error <= 1e-9, f"{what}: relative error {error:.2e}"


@pytest.mark.parametrize("ranks", [3, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (1, 2, 4))])
def test_ranks_train_as_one_process_does(ranks: int, tmp_path: Path) -> None:
    graphs = {name: small_graph(**options) for name, (options, _) in CASES.items()}  # type: ignore[arg-type]
    folders = {
        name: prepared_run(graphs[name], tmp_path / name, ranks, *settings) for name, (_, settings) in CASES.items()
    }
    results = run_ranks(
        ranks, train_in_process, tmp_path / "ranks", [str(folder) for folder in folders.values()], joined=False
    )
    for position, (name, folder) in enumerate(folders.items()):
        expected, graph = _reference(graphs[name], folder), graphs[name]
        for rank in range(ranks):
            got: dict[str, Any] = results[rank][position]
            assert np.allclose(got["losses"], expected.losses, rtol=1e-9), (name, got["losses"], expected.losses)
            _close(got["gradients"][-1], _flat(expected.gradients, folder), f"{name}: gradients")
            _close(got["parameters"], _flat(expected.parameters, folder), f"{name}: parameters")
            assert got["parameters"].equal(results[0][position]["parameters"]), f"{name}: ranks differ"
            assert got["serial"], f"{name} is bulk synchronous: one thread"
            _check_counts(got["evaluations"], expected.scores, graph)


def _check_counts(evaluations: dict[int, list[float]], scores: torch.Tensor, graph: Graph) -> None:
    counts = evaluations[max(evaluations)]
    for position, mask in enumerate((graph.train_mask, graph.validation_mask, graph.test_mask)):
        assert mask is not None
        chosen, labels = scores[torch.from_numpy(mask)], torch.from_numpy(np.array(graph.labels)[mask])
        if graph.multilabel:
            hits = (chosen > 0) & labels
            expected = (2 * int(hits.sum()), int((chosen > 0).sum()) + int(labels.sum()))
        else:
            expected = (int((chosen.argmax(1) == labels).sum()), len(labels))
        assert (counts[4 * position + 1], counts[4 * position + 2]) == expected
