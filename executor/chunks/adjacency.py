"""The in-edges of one chunk: forward over the slots of the merged buffer, backward to the rows that the chunk needs."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from executor.kernels.edges.aggregation import Aggregation, Gradients, kernel_named
from executor.kernels.edges.attention import Attention
from executor.kernels.edges.structure import Scaling, Structure
from executor.layers.local import SCALINGS, Degrees, LocalAdjacency, Neighbourhood
from simgnn.graph.csr import CSR

Places = NDArray[np.int32]


@dataclass(frozen=True)
class ChunkEdges:
    """A chunk of n rows as it lies on disk. ``slots``: in-edges of its rows by slot of the merged buffer; ``own`` int32
    [n], ``others`` int32 [M]: the slots of its rows, and of those that it needs besides. ``degree`` int64 [n + M]:
    in-degrees in the full graph of both; ``weighted`` float64 [n + M]: sums of weights (None: edges have none)."""

    slots: CSR
    own: Places
    others: Places
    degree: NDArray[np.int64]
    weighted: NDArray[np.float64] | None

    @property
    def by_slot(self) -> CSR:
        """The edges over the chunk's own rows and behind them the merged buffer."""
        csr = self.slots
        indices = (np.asarray(csr.indices) + csr.rows).astype(np.int32)
        return CSR(csr.indptr, indices, csr.rows + csr.columns, csr.weights)

    @property
    def by_row(self) -> CSR:
        """The edges over the chunk's own rows and behind them the others."""
        csr = self.slots
        places = np.zeros(csr.columns, dtype=np.int32)
        places[self.own], places[self.others] = np.arange(csr.rows), csr.rows + np.arange(len(self.others))
        return CSR(csr.indptr, places[np.asarray(csr.indices)], csr.rows + len(self.others), csr.weights)


@dataclass(frozen=True)
class _ChunkSums:
    """Sums over the edges of a chunk, and their reverse (:class:`~executor.kernels.edges.aggregation.Aggregation`)."""

    by_slot: Aggregation
    by_row: Aggregation

    def forward(self, inner: torch.Tensor, halo: torch.Tensor | None) -> torch.Tensor:
        return self.by_slot.forward(inner, halo)

    def backward(self, gradient: torch.Tensor, inner: bool, halo: bool) -> Gradients:
        return self.by_row.backward(gradient, inner, halo)


class SlotAdjacency:
    """Stands for a :class:`~executor.layers.local.LocalAdjacency` whose halo rows are a merged buffer of B rows.

    Sums read own rows [n, F] and the merged buffer [B, F]; gradients go to own rows [n, F] and to the others [M, F].
    ``scaling``: the name of the layers' scaling (:data:`~executor.layers.local.SCALINGS`)."""

    def __init__(self, edges: ChunkEdges, scaling: str, dtype: torch.dtype, device: torch.device) -> None:
        self.rows, self.halo_rows, self._scaling = edges.slots.rows, edges.slots.columns, scaling
        by_row = Structure.from_csr(edges.by_row, device, dtype)
        by_slot = Structure.from_csr(edges.by_slot, device, dtype)
        full = torch.from_numpy(np.asarray(edges.degree if edges.weighted is None else edges.weighted, np.float64))
        made = SCALINGS[scaling](Degrees(full, full[: self.rows], False), self.rows)
        source, destination, own = (
            None if part is None else part.to(device, dtype) for part in (made.source, made.destination, made.own)
        )
        in_slots = source
        if source is not None:  # each slot has the factor of the row that lies there
            in_slots = source.new_zeros(self.rows + self.halo_rows)
            in_slots[: self.rows] = source[: self.rows]
            slots = torch.from_numpy(np.concatenate((edges.own, edges.others)).astype(np.int64)).to(device)
            in_slots[self.rows + slots] = source
        kernel = kernel_named(None, device)
        # on the CPU only the number of rows of the edges that are reversed is read
        forward = by_slot if device.type == "cpu" else by_row
        self._sums = _ChunkSums(
            kernel(by_slot, by_slot, Scaling(in_slots, destination, own), None),
            kernel(forward, by_row.transposed(), Scaling(source, destination, own), None),
        )

    def aggregation(self, name: str) -> _ChunkSums:
        """The sums of the layers' scaling, by its name."""
        assert name == self._scaling, "a model's layers have one scaling"
        return self._sums


class GatheredAdjacency:
    """The edges of a chunk over its own rows [n, F] and the others that it needs [M, F], for attention and for layers
    of the user's own."""

    def __init__(self, edges: ChunkEdges, attends: bool, dtype: torch.dtype, device: torch.device) -> None:
        self._neighbourhood: Neighbourhood | None = None
        self._attention: Attention | None = None
        if attends:
            structure = Structure.from_csr(edges.by_row, device, dtype)
            self._attention = Attention(structure, structure.transposed(), edges.slots.rows, None)
        else:
            local = LocalAdjacency(
                edges.by_row, edges.degree, dtype=dtype, device=device, weighted_degree=edges.weighted
            )
            self._neighbourhood = local.neighbourhood()

    @property
    def attention(self) -> Attention:
        """Attention over own rows and the others, with self loops."""
        assert self._attention is not None, "the layers attend"
        return self._attention

    def neighbourhood(self) -> Neighbourhood:
        """What a layer of the user's own gets as ``csr``: sources are own rows, then the others."""
        assert self._neighbourhood is not None, "the layers are the user's"
        return self._neighbourhood
