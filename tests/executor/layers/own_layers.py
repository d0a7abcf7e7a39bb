"""Layers that users would write: with state of their own, and with faults."""

from typing import Any

import torch
from torch import nn


class Plain(nn.Module):
    """A GraphSAGE-like layer."""

    def __init__(self, width_in: int, width_out: int, *, activation: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(width_in, width_out)
        self.activation = activation

    def prepare(self, rows: torch.Tensor) -> torch.Tensor:
        return self.linear(rows)

    def aggregate(self, csr: Any, prepared: torch.Tensor) -> torch.Tensor:
        return csr.mean(prepared)

    def update(self, aggregated: torch.Tensor, own: torch.Tensor | None) -> torch.Tensor:
        return torch.relu(aggregated) if self.activation else aggregated


class Drop(Plain):
    """Draws numbers in training, and keeps running means."""

    def __init__(self, width_in: int, width_out: int, *, activation: bool) -> None:
        super().__init__(width_in, width_out, activation=activation)
        self.drop, self.norm = nn.Dropout(0.3), nn.BatchNorm1d(width_out)

    def update(self, aggregated: torch.Tensor, own: torch.Tensor | None) -> torch.Tensor:
        assert self.training == torch.is_grad_enabled(), "an evaluation is no training"
        return super().update(self.drop(self.norm(aggregated)), own)


class Halving(Plain):
    """Changes the rows that it is given: features in layer 1."""

    def prepare(self, rows: torch.Tensor) -> torch.Tensor:
        return super().prepare(rows.mul_(0.5))


class InPlace(Plain):
    """Changes rows that learn."""

    def update(self, aggregated: torch.Tensor, own: torch.Tensor | None) -> torch.Tensor:
        return aggregated.relu_()


class Short(Plain):
    """Gives too few rows."""

    def aggregate(self, csr: Any, prepared: torch.Tensor) -> torch.Tensor:
        return super().aggregate(csr, prepared)[:-1]


class Broken(Plain):
    """Has a fault of its own."""

    def update(self, aggregated: torch.Tensor, own: torch.Tensor | None) -> torch.Tensor:
        raise ValueError("my bug")
