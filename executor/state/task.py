"""What a rank learns: labels and masks of its own rows, the loss with its gradient, and the counts of an evaluation."""

from dataclasses import dataclass

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
    """Node classification on n own rows; of a mini-batch run the rank's training vertices, whoever owns them, and
    ``evaluated`` is then the task on its own rows, None where these are not evaluated.

    ``features`` [n, F_0] dense or sparse CSR (of a mini-batch run those of the rank's host); ``feature_mean`` [F_0]:
    what sparse ones are less of, as a last column of theirs tells (None: of nothing); ``labels`` int64 [n], or
    in the rows' dtype [n, classes] when multi-label; ``rows``: int64 positions of train, validation and test rows;
    ``train_total``: training rows of all ranks.
    """

    features: torch.Tensor
    labels: torch.Tensor
    rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    train_total: int
    classes: int
    multilabel: bool
    evaluated: "Task | None" = None
    feature_mean: torch.Tensor | None = None

    @property
    def divisor(self) -> float:
        """What the sum of the rows' losses is divided by: N_train, times classes when multi-label."""
        return float(max(1, self.train_total) * (self.classes if self.multilabel else 1))

    def loss(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradient [n, classes] of this rank's part of the loss, and its :class:`Metrics`, float64 [METRICS].

        Cross entropy (softmax minus one-hot), or binary cross entropy with logits (sigmoid minus labels), over the
        training rows, divided by :attr:`divisor`. Gradients summed over ranks are the gradient of the mean.
        """
        rows = self.rows[0]
        picked, labels = scores.index_select(0, rows), self.labels.index_select(0, rows)
        gradient = torch.zeros_like(scores)
        gradient.index_copy_(0, rows, self._gradient(picked, labels).div_(self.divisor))
        return gradient, self._counts(picked, labels)

    def batch_loss(self, scores: torch.Tensor, seeds: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As :meth:`loss` for a mini-batch: ``scores`` [b, classes] of the rows ``seeds`` int64 [b].

        The gradient is that of the sum over these rows, which is divided by their number when it is known of all ranks
        (docs/systems/mini-batches.md); metrics are divided as those of a full graph: over an epoch they add up.
        """
        labels = self.labels.index_select(0, seeds)
        gradient = self._gradient(scores, labels)
        return gradient.div_(self.classes) if self.multilabel else gradient, self._counts(scores, labels)

    def evaluate(self, scores: torch.Tensor) -> torch.Tensor:
        """Metrics of the train, validation and test rows, float64 [3 METRICS]."""
        if self.evaluated is not None:
            return self.evaluated.evaluate(scores)
        return torch.cat(
            [self._counts(scores.index_select(0, rows), self.labels.index_select(0, rows)) for rows in self.rows]
        )

    def _gradient(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """That of the sum of the rows' losses, [k, classes]."""
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
        loss = total / self.divisor
        row: torch.Tensor = Metrics.packed(
            loss=loss, correct=correct.double(), count=count.double(), nonfinite=nonfinite
        )
        return row


def load_task(
    shard: Shard,
    dtype: torch.dtype,
    device: torch.device,
    train_total: int,
    classes: int,
    multilabel: bool,
    sparse_input: bool = True,
) -> Task:
    """A rank's shard as tensors on its device; features and multi-labels in the training dtype.

    ``sparse_input``: sparse features stay sparse; else they become dense rows."""
    assert shard.labels is not None
    labels = torch.from_numpy(np.array(shard.labels))
    masks = (shard.train_mask, shard.validation_mask, shard.test_mask)
    rows = [torch.from_numpy(np.flatnonzero(mask)).to(device) for mask in masks]
    mean = shard.features.mean if sparse_input and isinstance(shard.features, CentredRows) else None
    return Task(
        features=_features(shard, dtype, sparse_input).to(device),
        labels=labels.to(device, dtype if multilabel else torch.int64),
        rows=(rows[0], rows[1], rows[2]),
        train_total=train_total,
        classes=classes,
        multilabel=multilabel,
        feature_mean=None if mean is None else torch.from_numpy(np.array(mean)).to(device, dtype),
    )


def _features(shard: Shard, dtype: torch.dtype, sparse_input: bool) -> torch.Tensor:
    features = shard.features
    if isinstance(features, np.ndarray):
        return torch.from_numpy(np.array(features)).to(dtype)
    if not sparse_input:
        return torch.from_numpy(features.toarray()).to(dtype)
    return from_scipy(features.extended if isinstance(features, CentredRows) else features, dtype)
