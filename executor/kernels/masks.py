"""Bit masks over the rows of each rank pair: which of them travel. They go ahead of the rows, so sizes follow."""

from collections.abc import Sequence
from functools import lru_cache

import torch


class WireMask:
    """The layout of a mask: for each peer ascending, a bit a row in the order of the wire, padded to whole bytes.

    ``counts``: rows of each peer. Bit k % 8 of byte k // 8 is row k: little-endian.
    """

    def __init__(self, counts: Sequence[int], device: torch.device) -> None:
        self.counts = tuple(counts)
        self.device = device
        rows, byte, places = 0, 0, []
        for count in self.counts:
            places.append(torch.arange(8 * byte, 8 * byte + count))
            rows, byte = rows + count, byte + -(-count // 8)
        self.rows, self.nbytes = rows, byte
        self._places = torch.cat(places).to(device) if places else torch.empty(0, dtype=torch.int64, device=device)
        self._weights = (2 ** torch.arange(8)).to(device, torch.uint8)

    def pack(self, chosen: torch.Tensor) -> torch.Tensor:
        """uint8 [bytes] from bool [rows]."""
        bits = torch.zeros(8 * self.nbytes, dtype=torch.uint8, device=self.device)
        bits[self._places] = chosen.to(torch.uint8)
        return (bits.view(-1, 8) * self._weights).sum(1, dtype=torch.uint8)

    def unpack(self, mask: torch.Tensor) -> torch.Tensor:
        """bool [rows] from uint8 [bytes]."""
        bits = (mask.view(-1, 1) & self._weights).bool().flatten()
        return bits[self._places]

    def chosen_of_peers(self, mask: torch.Tensor) -> list[int]:
        """How many rows of each peer the mask names."""
        chosen = self.unpack(mask).to(torch.int64)
        return [int(part) for part in torch.stack([part.sum() for part in chosen.split(self.counts)]).tolist()]


@lru_cache(maxsize=256)
def wire_mask(counts: tuple[int, ...], device: torch.device) -> WireMask:
    """The layout for these counts, made once."""
    return WireMask(counts, device)
