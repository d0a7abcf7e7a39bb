"""The task of a rank: labels and masks of its own rows, the loss with its gradient, the counts of an evaluation."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn import functional

from executor.kernels.edges.sparse import from_scipy
from simgnn.graph.graph import CentredRows
from simgnn.partition.local.shards import Shard
from simgnn.policy import Metrics

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Task:
    """Node classification on n own rows. In a mini-batch run these are the rank's training vertices, whoever owns them,
    and ``evaluated`` is the task on its own rows (None: they are not evaluated).

    ``features`` [n, F_0] dense or sparse CSR; in a mini-batch run those of the rank's host. ``feature_mean`` [F_0]:
    what was subtracted from sparse features, whose last column says so (None: nothing). ``labels`` int64 [n], or in the
    rows' dtype [n, classes] when multi-label. ``rows``: int64 positions of train, validation and test rows, ascending.
    ``train_total``: training rows of all ranks. ``first``: the position of row 0 of scores and labels, of a task that
    is a part of another (:meth:`part`). Labels and positions may lie on the host while scores are on a GPU.
    """

    features: torch.Tensor
    labels: torch.Tensor
    rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    train_total: int
    classes: int
    multilabel: bool
    evaluated: "Task | None" = None
    feature_mean: torch.Tensor | None = None
    first: int = 0

    @property
    def divisor(self) -> float:
        """Divisor of the sum of the rows' losses: N_train, times classes when multi-label."""
        return float(max(1, self.train_total) * (self.classes if self.multilabel else 1))

    def loss(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gradient [n, classes] of this rank's part of the loss, and its metrics, float64 [METRICS]. Cross
        entropy, or binary cross entropy with logits, over the training rows, divided by :attr:`divisor`. Gradients
        summed over ranks are the gradient of the mean."""
        rows, picked, labels = self._picked(scores, self.rows[0])
        gradient = torch.zeros_like(scores)
        gradient.index_copy_(0, rows, self._gradient(picked, labels).div_(self.divisor))
        return gradient, self._counts(picked, labels)

    def batch_loss(self, scores: torch.Tensor, seeds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """:meth:`loss` for a mini-batch: ``scores`` [b, classes] of the rows ``seeds`` int64 [b]. The gradient is that
        of the sum over these rows; the optimizer divides it by the number of rows on all ranks
        (docs/systems/mini-batches.md). Metrics are divided as those of a full graph, to add up over an epoch."""
        labels = self.labels.index_select(0, seeds)
        gradient = self._gradient(scores, labels)
        return gradient.div_(self.classes) if self.multilabel else gradient, self._counts(scores, labels)

    def evaluate(self, scores: torch.Tensor) -> torch.Tensor:
        """Metrics of the train, validation and test rows, float64 [3 METRICS]."""
        if self.evaluated is not None:
            return self.evaluated.evaluate(scores)
        return torch.cat([self._counts(*self._picked(scores, rows)[1:]) for rows in self.rows])

    def part(self, rows: slice) -> "Task":
        """Return the task on some consecutive own rows. Its metrics and those of all other parts add up to those of the
        whole task, and its gradient is their rows of the whole gradient."""
        if self.evaluated is not None:
            return self.evaluated.part(rows)
        ends = [np.searchsorted(chosen.numpy(force=True), [rows.start, rows.stop]).tolist() for chosen in self.rows]
        train, validation, test = (chosen[low:high] for chosen, (low, high) in zip(self.rows, ends, strict=True))
        return replace(self, labels=self.labels[rows], rows=(train, validation, test), first=rows.start)

    def _picked(self, scores: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the rows of ``scores`` at some positions, with their numbers among them and their labels."""
        rows = positions - self.first if self.first else positions
        labels, rows = self.labels.index_select(0, rows).to(scores.device), rows.to(scores.device)
        return rows, scores.index_select(0, rows), labels

    def _gradient(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Gradient of the sum of the rows' losses, [k, classes]."""
        if self.multilabel:
            return torch.sigmoid(scores).sub_(labels)
        part = torch.softmax(scores, 1)
        part[torch.arange(len(part), device=part.device), labels] -= 1
        return part

    def _counts(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if self.multilabel:
            total = functional.binary_cross_entropy_with_logits(scores, labels, reduction="sum").double()
            chosen, true = scores > 0, labels > 0.5
            correct, count = 2 * (chosen & true).sum(), chosen.sum() + true.sum()
        else:
            total = functional.cross_entropy(scores, labels, reduction="sum").double()
            correct = (scores.argmax(1) == labels).sum()
            count = torch.full_like(correct, len(labels))
        nonfinite = (~torch.isfinite(total)).double()
        packed: torch.Tensor = Metrics.packed(
            loss=total / self.divisor, correct=correct.double(), count=count.double(), nonfinite=nonfinite
        )
        return packed


def load_task(
    shard: Shard,
    dtype: torch.dtype,
    device: torch.device,
    train_total: int,
    classes: int,
    multilabel: bool,
    sparse_input: bool = True,
) -> Task:
    """A rank's shard as tensors on its device; features and multi-labels in the training dtype. ``sparse_input``:
    sparse features stay sparse; else they become dense rows."""
    assert shard.labels is not None
    return Task(
        features=input_rows(shard, dtype, sparse_input).to(device),
        labels=torch.from_numpy(np.array(shard.labels)).to(device, dtype if multilabel else torch.int64),
        rows=split_rows(shard, device),
        train_total=train_total,
        classes=classes,
        multilabel=multilabel,
        feature_mean=input_mean(shard, dtype, device, sparse_input),
    )


def split_rows(shard: Shard, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return positions of a shard's train, validation and test rows, int64."""
    masks = (shard.train_mask, shard.validation_mask, shard.test_mask)
    train, validation, test = (torch.from_numpy(np.flatnonzero(mask)).to(device) for mask in masks)
    return train, validation, test


def input_mean(shard: Shard, dtype: torch.dtype, device: torch.device, sparse_input: bool) -> torch.Tensor | None:
    """Return what was subtracted from features that stay sparse, [F_0]; None: nothing."""
    if not sparse_input or not isinstance(shard.features, CentredRows):
        return None
    return torch.from_numpy(np.array(shard.features.mean)).to(device, dtype)


def input_rows(shard: Shard, dtype: torch.dtype, sparse_input: bool) -> torch.Tensor:
    """Return the features of a shard, dense or (``sparse_input``) sparse CSR, as layer 1 reads them."""
    features = shard.features
    if isinstance(features, np.ndarray):
        return torch.from_numpy(np.array(features)).to(dtype)
    if not sparse_input:
        return torch.from_numpy(features.toarray()).to(dtype)
    return from_scipy(features.extended if isinstance(features, CentredRows) else features, dtype)
