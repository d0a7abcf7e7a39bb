"""Layers that a user would write, whose sums add up over parts of the edges."""

from typing import Any

import torch
from torch import nn


class Sums(nn.Module):
    """Sums of transformed rows beside a vertex's own, normalised by degree."""

    reduction = "sum"

    def __init__(self, width_in: int, width_out: int, *, activation: bool) -> None:
        super().__init__()
        self.neighbours, self.own = nn.Linear(width_in, width_out), nn.Linear(width_in, width_out)
        self.activation = activation

    def prepare(self, rows: torch.Tensor) -> torch.Tensor:
        return self.neighbours(rows)

    def aggregate(self, csr: Any, prepared: torch.Tensor) -> torch.Tensor:
        return csr.sum(prepared * (csr.degrees + 1).to(prepared.dtype).rsqrt()[:, None])

    def update(self, aggregated: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        rows = aggregated + self.own(own)
        return torch.tanh(rows) if self.activation else rows


class WeightedSums(Sums):
    """The same, by weights of edges where there are any."""

    edge_weights = True

    def aggregate(self, csr: Any, prepared: torch.Tensor) -> torch.Tensor:
        sums = csr.degrees if csr.weighted_degrees is None else csr.weighted_degrees
        scale = (sums.to(torch.float64) + 1).rsqrt().to(prepared.device, prepared.dtype)
        return csr.sum(prepared * scale[:, None])


class Whole(nn.Module):
    """One function of the edges and of all rows, which walks the edges itself."""

    def __init__(self, width_in: int, width_out: int, *, activation: bool) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(width_in, width_out), nn.LayerNorm(width_out)
        self.activation = activation

    def forward(self, csr: Any, rows: torch.Tensor) -> torch.Tensor:
        target = torch.repeat_interleave(torch.arange(csr.rows), csr.indptr.diff())
        found = csr.mean(self.linear(rows)) + self.linear(rows)[: csr.rows]
        degree = torch.zeros(csr.rows, dtype=rows.dtype).index_add(0, target, torch.ones(len(target), dtype=rows.dtype))
        found = self.norm(found) / (degree + 1)[:, None]
        return torch.relu(found) if self.activation else found


class WeightedWhole(Whole):
    """Reads the weights themselves, where there are any, and the mean by weights."""

    edge_weights = True

    def forward(self, csr: Any, rows: torch.Tensor) -> torch.Tensor:
        target = torch.repeat_interleave(torch.arange(csr.rows), csr.indptr.diff())
        weights = torch.ones(len(csr.indices), dtype=rows.dtype) if csr.weights is None else csr.weights
        prepared = self.linear(rows)
        roots = torch.zeros(csr.rows, prepared.shape[1], dtype=rows.dtype)
        roots = roots.index_add(0, target, weights.sqrt()[:, None] * prepared[csr.indices.long()])
        return self.norm(roots + csr.mean(prepared))


class Normalised(Whole):
    """Normalises by the rows that it is given, also in an evaluation."""

    def __init__(self, width_in: int, width_out: int, *, activation: bool) -> None:
        super().__init__(width_in, width_out, activation=activation)
        self.norm = nn.BatchNorm1d(width_out, track_running_stats=False)
