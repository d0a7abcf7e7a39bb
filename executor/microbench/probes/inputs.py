"""Inputs of the dense probes: views of one block of random numbers, so that a round costs no time to fill arrays."""

import torch

TILE = 1 << 20
ALIGNMENT = 1 << 10


class Pool:
    """A block of float32 normals on one device. ``matrix`` hands out views; the caller never writes to them."""

    def __init__(self, items: int, device: torch.device, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        tile = torch.randn(min(TILE, items), generator=generator).to(device)
        self._block = tile.repeat(-(-items // tile.numel()))[:items].clone()
        self._next = 0

    def matrix(self, rows: int, width: int) -> torch.Tensor:
        """Float32 [rows, width], contiguous; a different part of the block from the previous call where it fits."""
        items = rows * width
        if items > self._block.numel():
            raise ValueError(f"pool of {self._block.numel()} items asked for {items}: build it larger")
        if self._next + items > self._block.numel():
            self._next = 0
        view = self._block[self._next : self._next + items].view(rows, width)
        self._next += -(-items // ALIGNMENT) * ALIGNMENT
        return view
