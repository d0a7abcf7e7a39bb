"""Losses of mini-batches: gradients of sums, divided by the rows of all ranks when these are known."""

import pytest
import torch
from torch.nn import functional

from executor.handlers.collectives import side_by_side
from executor.optimizer import FlatOptimizer
from executor.task import Task

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
