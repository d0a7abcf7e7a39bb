"""The edges from the halo rows of one epoch, where these are drawn anew: what ``add_halo`` sums over."""

from functools import cached_property

import torch

from executor.kernels.edges.attention import Attention
from executor.kernels.edges.kept import KeptSums, kept_edges
from executor.layers.local import LocalAdjacency


class KeptHalo:
    """Stands for a :class:`LocalAdjacency` in sums over halo rows, of which only rows ``kept`` int64 [m] have arrived.

    ``attends``: the layers attend, so that halo rows are numbered from 0, as in ``halo_attention``."""

    def __init__(self, whole: LocalAdjacency, kept: torch.Tensor, attends: bool) -> None:
        self.whole, self.kept, self.attends = whole, kept, attends
        self.edges, self.reverse = kept_edges(whole.structure, whole.transpose, kept, 0 if attends else whole.rows)
        self._sums: dict[str, KeptSums] = {}

    def aggregation(self, name: str) -> KeptSums:
        """The sums of one scaling (:data:`~executor.layers.local.SCALINGS`), made at the first use."""
        if name not in self._sums:
            scaling = self.whole.scaling(name)
            self._sums[name] = KeptSums(self.edges, self.reverse, scaling, self.kept, self.whole.threads)
        return self._sums[name]

    @cached_property
    def halo_attention(self) -> Attention:
        """Attention over the kept edges."""
        return Attention(self.edges, self.reverse, 0, self.whole.threads)
