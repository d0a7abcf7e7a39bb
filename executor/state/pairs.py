"""The loss of unsupervised training: rows of a vertex and its neighbour are alike, those of others are not."""

from typing import NamedTuple

import torch
from torch.nn import functional


class PairLoss(NamedTuple):
    """``gradient`` [n, F] of the rows; ``total``: the sum over seeds, a number of the rows' dtype."""

    gradient: torch.Tensor
    total: torch.Tensor


def loss_of_pairs(rows: torch.Tensor, pairs: torch.Tensor) -> PairLoss:
    """Sum -log sigmoid(z_v z_p) - sum_n log sigmoid(-z_v z_n) over seeds v, with its gradient. ``rows`` z [n, F], the
    first b of which are seeds; ``pairs`` int64 [b, 1 + negatives]: the row of the positive p of each seed, and of its
    negatives (-1: it has none there, and the term is left out). Source: docs/mini_batches.md."""
    own = rows[: len(pairs), None]
    partners = rows[pairs.clamp(min=0)]
    scores = (own * partners).sum(2)
    exists, signs = pairs >= 0, _signs(scores)
    total = loss_of_scores(scores, exists)
    slopes = (signs * torch.sigmoid(signs * scores) * exists)[:, :, None]
    gradient = torch.zeros_like(rows)
    gradient[: len(pairs)] = (slopes * partners).sum(1)
    gradient.index_add_(0, pairs.clamp(min=0).view(-1), (slopes * own).view(-1, rows.shape[1]))
    return PairLoss(gradient, total)


def loss_of_scores(scores: torch.Tensor, exists: torch.Tensor) -> torch.Tensor:
    """Sum the losses of pairs by their ``scores`` [b, 1 + negatives], where ``exists`` (bool, the same shape)."""
    return functional.softplus(_signs(scores) * scores)[exists].sum()


def _signs(scores: torch.Tensor) -> torch.Tensor:
    """Return -1 for positives, which the first column holds, and 1 for negatives."""
    signs = torch.ones_like(scores)
    signs[:, 0] = -1
    return signs
