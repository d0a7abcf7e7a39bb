"""The squared weights of a rank's edges from halo rows, from which codecs learn how much an error of a row matters."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from executor.layers.local import LocalAdjacency
from simgnn.emit.bit_widths.weights import HaloWeights
from simgnn.partition.local.edge_cut import LocalGraph


class EdgeWeights(HaloWeights):
    """Adds up squared weights over the edges of ``local``. ``adjacency()``: the same edges with their scalings;
    ``scaling_of(layer)``: the name of a layer's scaling. Nothing is computed before it is asked for."""

    def __init__(
        self, local: LocalGraph, ranks: int, adjacency: Callable[[], LocalAdjacency], scaling_of: Callable[[int], str]
    ) -> None:
        self.local, self.ranks, self.adjacency, self.scaling_of = local, ranks, adjacency, scaling_of

    def squared(self, layer: int) -> Sequence[torch.Tensor]:
        adjacency, csr = self.adjacency(), self.local.csr
        scaling, columns = adjacency.scaling(self.scaling_of(layer)), np.asarray(csr.indices)
        weights = np.ones(len(columns)) if csr.weights is None else np.asarray(csr.weights, dtype=np.float64)
        if scaling.source is not None:
            weights = weights * scaling.source.cpu().double().numpy()[columns]
        if scaling.destination is not None:
            weights = weights * np.repeat(scaling.destination.cpu().double().numpy(), np.diff(csr.indptr))
        found = torch.from_numpy(np.bincount(columns, weights**2, minlength=csr.columns)[csr.rows :])
        none = slice(0, 0)
        return [found[self.local.receive.get(rank, none)].to(adjacency.device) for rank in range(self.ranks)]
