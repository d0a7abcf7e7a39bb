"""Evaluates an unsupervised model: scores of pairs of vertices, and the area under the ROC curve over them."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from executor.state.pairs import loss_of_scores
from simgnn.emit.batches.on_rank import AreaUnderCurve, Functions, ScorePairs, carried_out
from simgnn.policy import METRICS, Metrics, PolicyContext
from simgnn.sampling.draw.compared import ComparedPairs
from simgnn.sampling.draw.pairs import NONE


@dataclass(frozen=True)
class RankPairs:
    """The pairs whose first vertex a rank owns. ``places`` int64 [k]: which of all ``count`` vertices these are;
    ``own`` int64 [k]: the row of each; ``partners`` int64 [k, 1 + negatives]: the rows of its partners (-1: none) among
    own rows and those that arrive. ``leaving`` int64: own rows that other ranks need, rank after rank. ``validation``:
    the first of all vertices are validation vertices, the others test vertices."""

    places: torch.Tensor
    own: torch.Tensor
    partners: torch.Tensor
    leaving: torch.Tensor
    count: int
    validation: int

    @classmethod
    def of(
        cls,
        pairs: ComparedPairs,
        owner: NDArray[np.int32],
        owned: NDArray[np.int64],
        rank: int,
        device: torch.device,
    ) -> "RankPairs":
        """Number the rows of a rank's pairs. ``owned`` int64 [n]: its vertices in the order of its rows."""
        order = np.argsort(owned, kind="stable")

        def own_rows(vertices: NDArray[np.int64]) -> NDArray[np.int64]:
            return order[np.searchsorted(owned, vertices, sorter=order)]

        places, needed = pairs.of_rank(owner, rank), pairs.needed(owner, rank)
        partners = np.array(pairs.partners[places])
        mine, none = owner[partners] == rank, partners == NONE
        by_id = np.argsort(needed, kind="stable")
        rows = np.full(partners.shape, NONE, np.int64)
        rows[mine & ~none] = own_rows(partners[mine & ~none])
        away = partners[~mine & ~none]
        rows[~mine & ~none] = len(owned) + by_id[np.searchsorted(needed, away, sorter=by_id)]
        ranks = int(owner.max()) + 1
        theirs = [pairs.needed(owner, peer) for peer in range(ranks) if peer != rank]
        leaving = [own_rows(found[owner[found] == rank]) for found in theirs]
        arrays = places, own_rows(pairs.vertices[places]), rows, np.concatenate([np.zeros(0, np.int64), *leaving])
        first, own, partner_rows, sent = (torch.from_numpy(array).to(device) for array in arrays)
        return cls(first, own, partner_rows, sent, len(pairs.vertices), pairs.validation)

    def functions(self) -> Functions:
        return {**carried_out(ScorePairs, self.scores), **carried_out(AreaUnderCurve, self.area)}

    def scores(self, context: PolicyContext, own: torch.Tensor, *arrived: torch.Tensor) -> tuple[torch.Tensor]:
        """Return the products of rows of own vertices and their partners, float64 [1, count * (1 + negatives)]: 0 for
        pairs of other ranks, so that the sum over ranks has all; not a number where there is no partner."""
        rows = torch.cat((own, *arrived)) if arrived else own
        found = (own[self.own, None] * rows[self.partners.clamp(min=0)]).sum(2).double()
        found[self.partners < 0] = torch.nan
        every = torch.zeros((self.count, self.partners.shape[1]), dtype=torch.float64, device=own.device)
        every[self.places] = found
        return (every.view(1, -1),)

    def area(self, context: PolicyContext, scores: torch.Tensor) -> tuple[torch.Tensor]:
        """Return metrics of train, validation and test vertices, float64 [1, 3 METRICS]; those of train are 0.
        ``correct / count`` is the area: the share of (positive, negative) in which the positive has the higher score,
        half of those in which both are equal."""
        every = scores.view(self.count, self.partners.shape[1])
        splits = every[: self.validation], every[self.validation :]
        found = [torch.zeros(METRICS, dtype=torch.float64, device=scores.device), *map(metrics_of, splits)]
        return (torch.cat(found).view(1, -1),)


def metrics_of(scores: torch.Tensor) -> torch.Tensor:
    """Return the metrics of pairs, float64 [METRICS]; ``scores`` [k, 1 + negatives]: the first of each row is that of a
    neighbour. The loss is the mean over rows of what training adds up."""
    positive, others = scores[:, 0].contiguous(), scores[:, 1:]
    negative = torch.sort(others[~torch.isnan(others)]).values
    below = torch.searchsorted(negative, positive) + torch.searchsorted(negative, positive, right=True)
    correct = below.double().sum() / 2
    count = torch.full_like(correct, len(positive) * len(negative))
    total = loss_of_scores(scores, ~torch.isnan(scores))
    loss = total.double() / max(1, len(scores))
    packed: torch.Tensor = Metrics.packed(
        loss=loss, correct=correct, count=count, nonfinite=(~torch.isfinite(loss)).double()
    )
    return packed
