"""Bytes that rounds moved: in all, from the tensors at the transport, and by batch and pair of ranks."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal

import torch

PayloadClass = Literal["sample_groups", "sample_ids", "sample_neighbours", "row_ids", "rows"]
CLASSES: tuple[PayloadClass, ...] = ("sample_groups", "sample_ids", "sample_neighbours", "row_ids", "rows")


def tensor_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


@dataclass
class Traffic:
    """Traffic of one rank. ``of_batch``: by (batch, other rank, class), bytes of requests that this rank sent there and
    of replies that came from there; ``sent``: by (other rank, class), bytes that left this rank, replies to others
    included; ``control_bytes``: of headers that left this rank; ``rounds``: of them ``empty`` without a request of any
    rank."""

    of_batch: dict[tuple[int, int, PayloadClass], int] = field(default_factory=lambda: defaultdict(int))
    sent: dict[tuple[int, PayloadClass], int] = field(default_factory=lambda: defaultdict(int))
    control_bytes: int = 0
    rounds: int = 0
    empty: int = 0

    def batch_bytes(self, batch: int) -> dict[tuple[int, PayloadClass], int]:
        """Bytes of one batch by (other rank, class), without zeros."""
        return {(peer, kind): size for (of, peer, kind), size in self.of_batch.items() if of == batch and size}
