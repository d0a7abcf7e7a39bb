"""Runs whose rows are late: settings, the reference that holds the same rows, and what must travel."""

import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

from executor.layers import build_layers
from executor.state.plan import RunPlan
from simgnn.graph.graph import Graph
from simgnn.program.dispatch import Observed, Ready
from tests.executor import runs
from tests.executor.schedules import SeededRandom
from tests.late_reference import Lateness, LateReference, train_late_reference

STALE = ("freshness.kind=one-epoch-stale",)
PIPED = (*STALE, "schedule.kind=pipelined")
ROWS, GRADIENTS = "freshness.smooth_rows=true", "freshness.smooth_gradients=true"
ZEROS = "freshness.cold_start=zeros"
HIDDEN = "model.order=aggregate-first"
"""Hidden values travel, not what the weights made of them."""


class Delayed(SeededRandom):
    """Any ready op, after a delay, by seeded draws."""

    def pick(self, ready: Sequence[Ready], observed: Observed, state: random.Random) -> tuple[int, random.Random]:
        """Draw the delay, then the op."""
        time.sleep(0.003 * state.random())
        return super().pick(ready, observed, state)


def train_delayed(rank: int, ranks: int, folders: Sequence[str], seed: int) -> list[dict[str, Any]]:
    """Carry out runs as :func:`train_in_process` does, each op that computes after a delay."""
    with patch.object(runs, "SeededRandom", Delayed):
        return runs.train_in_process(rank, ranks, folders, seed)


def owner_of(plan: RunPlan, vertices: int) -> NDArray[np.int64]:
    """The rank of each vertex."""
    owner = np.full(vertices, -1, dtype=np.int64)
    for rank in range(plan.ranks):
        owner[plan.local(rank).vertices] = rank
    assert (owner >= 0).all()
    return owner


def reference_of(folder: Path, graph: Graph, late: Lateness, apart: bool = True) -> LateReference:
    """What one process gives that holds the same late rows as the ranks of a prepared run; or exact ones, as if all
    vertices lay on one rank, not ``apart``."""
    plan = RunPlan.open(folder)
    layers = build_layers(plan.layers, plan.seed, torch.float64)
    initial = [dict(layer.named_parameters()) for layer in layers]
    owner = owner_of(plan, graph.vertices) * apart
    return train_late_reference(graph, plan.layers, initial, owner, plan.epochs, plan.train, plan.seed, late)


def errors(found: Mapping[str, Any], expected: LateReference) -> dict[str, float]:
    """Largest relative differences: of losses, and of gradients and parameters in the Euclidean norm."""
    losses = zip(found["losses"], expected.losses, strict=True)
    gradients = zip(found["gradients"], expected.gradients, strict=True)
    return {
        "losses": max(abs(one - other) / abs(other) for one, other in losses),
        "gradients": max(_apart(one, other) for one, other in gradients),
        "parameters": _apart(found["parameters"], expected.parameters),
    }


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())
