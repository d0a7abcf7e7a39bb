"""Losses of mini-batches: gradients of sums, divided by the rows of all ranks when these are known."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional

from executor.handlers import handler_of
from executor.handlers.collectives import side_by_side
from executor.state.buffers import Now
from executor.state.optimizer import FlatOptimizer
from executor.state.task import Task
from simgnn.program.kinds import Form, OpKind
from simgnn.program.ops import Access, Op
from simgnn.program.program import Template

SETTINGS = {"optimizer": "sgd", "learning_rate": 0.5, "weight_decay": 0.0, "momentum": 0.0}


def _task(multilabel: bool) -> Task:
    draw = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 2, (9, 4), generator=draw).double() if multilabel else torch.arange(9) % 4
    every = torch.arange(9)
    return Task(torch.zeros(1, 1), labels, (every, every[:0], every[:0]), 30, 4, multilabel)


@pytest.mark.parametrize("multilabel", [False, True])
@pytest.mark.parametrize("seeds", [[4, 1, 7], []])
def test_a_gradient_is_that_of_the_sum_over_seeds(multilabel: bool, seeds: list[int]) -> None:
    task, chosen = _task(multilabel), torch.tensor(seeds, dtype=torch.int64)
    scores = torch.randn(len(seeds), 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gradient, metrics = task.batch_loss(scores, chosen)
    leaf = scores.clone().requires_grad_()
    if multilabel:
        total = functional.binary_cross_entropy_with_logits(leaf, task.labels[chosen], reduction="sum") / 4
    else:
        total = functional.cross_entropy(leaf, task.labels[chosen], reduction="sum")
    (expected,) = torch.autograd.grad(total, [leaf])
    torch.testing.assert_close(gradient, expected)
    torch.testing.assert_close(metrics[0], total.detach() / 30)


def test_a_counted_step_takes_the_mean() -> None:
    """The number of rows lies behind the gradients, so that both are one message."""
    layer = torch.nn.Linear(3, 2)
    optimizer = FlatOptimizer([layer], SETTINGS, counted=True)
    before, drawn = optimizer.flat.detach().clone(), torch.randn(8, generator=torch.Generator().manual_seed(2))
    optimizer.gradient.copy_(drawn)
    assert optimizer.count is not None
    optimizer.count.fill_(4)
    joined = side_by_side([*optimizer.gradient_views, optimizer.count])
    assert joined is not None
    assert joined.tolist() == [*drawn.tolist(), 4.0]
    optimizer.step()
    torch.testing.assert_close(optimizer.flat.detach(), before - 0.5 * drawn / 4)
    assert not optimizer.gradient.any()


@pytest.mark.parametrize("ranks", [1, 3])
def test_means_of_ranks_weigh_a_short_batch_like_a_full_one(ranks: int) -> None:
    """What one rank adds, and what the sum is divided by: one for each rank that has seeds."""
    hidden = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    task, parts = (
        _task(False),
        [torch.arange(7)] if ranks == 1 else [torch.arange(5), torch.arange(5, 7), torch.arange(0)],
    )
    by_rank, by_seeds = (_stepped(task, hidden, parts, mean) for mean in ("ranks", "seeds"))
    leaf = hidden.clone().requires_grad_()
    means = [functional.cross_entropy(leaf[part], task.labels[part]) for part in parts if len(part)]
    (expected,) = torch.autograd.grad(torch.stack(means).mean(), [leaf])
    torch.testing.assert_close(by_rank, expected)
    (expected,) = torch.autograd.grad(functional.cross_entropy(leaf, task.labels[:7]), [leaf])
    torch.testing.assert_close(by_seeds, expected)
    assert torch.allclose(by_rank, by_seeds) == (ranks == 1)


def _stepped(task: Task, hidden: torch.Tensor, parts: list[torch.Tensor], mean: str) -> torch.Tensor:
    """Gradient of the scores ``hidden`` that ranks with the seeds ``parts`` get together from the op of the loss."""
    form = None if mean == "seeds" else Form.RANK_MEANS
    accesses = {name: Access(name) for name in ("scores", "seeds", "gradient", "metrics", "count")}
    reads = accesses["scores"], accesses["seeds"]
    writes = accesses["gradient"], accesses["metrics"], accesses["count"]
    op = Op("loss", OpKind.LOSS, "compute", reads, writes, form=form)
    found, divisor = [], 0.0
    for part in parts:
        held: dict[str, Any] = {"scores": hidden[part], "seeds": part, "count": torch.zeros(1, 1)}
        store = SimpleNamespace(
            getter=lambda access, held=held: lambda now: held[access.buffer],
            setter=lambda access, held=held: lambda now, value: held.__setitem__(access.buffer, value),
        )
        context: Any = SimpleNamespace(task=task, store=store, note_loss=lambda now, metrics: None)
        handler_of(op, Template("step", (op,)), context)(Now(0, 0, 0))
        found.append(held["gradient"])
        divisor += float(held["count"])
    return torch.cat(found) / divisor
