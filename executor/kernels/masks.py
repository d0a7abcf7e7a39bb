"""Bit masks over the rows of each rank pair: which of them travel. They, or the places of these rows, go ahead of the
rows, so sizes follow."""

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
        rows, byte, places, firsts = 0, 0, [], []
        for count in self.counts:
            places.append(torch.arange(8 * byte, 8 * byte + count))
            firsts.append(rows)
            rows, byte = rows + count, byte + -(-count // 8)
        self.rows, self.nbytes = rows, byte
        self._places = torch.cat(places).to(device) if places else torch.empty(0, dtype=torch.int64, device=device)
        self._weights = (2 ** torch.arange(8)).to(device, torch.uint8)
        self._pairs = torch.tensor([peer for peer, count in enumerate(self.counts) if count], dtype=torch.int64)
        self._firsts = torch.tensor(firsts, dtype=torch.int64)[self._pairs].to(device)

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
        return [int(part) for part in self._named(self.unpack(mask)).tolist()]

    def listed(self, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The mask as lists: int64 [pairs, 1], how many rows it names of each peer that has any; int32 [k, 1], their
        places among that peer's rows, peers ascending."""
        chosen = self.unpack(mask)
        counts = self._named(chosen)[self._pairs.to(self.device)]
        ids = chosen.nonzero().flatten() - self._firsts.repeat_interleave(counts)
        return counts[:, None], ids[:, None].to(torch.int32)

    def mask_of(self, ids: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """The mask, uint8 [bytes], of which :meth:`listed` made these lists."""
        chosen = torch.zeros(self.rows, dtype=torch.bool, device=self.device)
        chosen[ids.flatten().to(torch.int64) + self._firsts.repeat_interleave(counts.flatten())] = True
        return self.pack(chosen)

    def _named(self, chosen: torch.Tensor) -> torch.Tensor:
        return torch.stack([part.sum() for part in chosen.to(torch.int64).split(self.counts)])


@lru_cache(maxsize=256)
def wire_mask(counts: tuple[int, ...], device: torch.device) -> WireMask:
    """The layout for these counts, made once."""
    return WireMask(counts, device)
