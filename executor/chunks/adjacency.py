"""The in-edges of one chunk: forward over the slots of the merged buffer, backward to the rows that the chunk needs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from executor.kernels.edges.attention import Attention
from executor.kernels.edges.aggregation import Aggregation, Gradients, kernel_named
from executor.kernels.edges.structure import Scaling, Structure
from executor.layers.local import SCALINGS, Degrees, LocalAdjacency, Neighbourhood
from simgnn.graph.csr import CSR


@dataclass(frozen=True)
class _ChunkSums:
    """Sums over the edges of a chunk; see :class:`~executor.kernels.edges.aggregation.Aggregation`."""

    by_slot: Aggregation
    by_row: Aggregation

    def forward(self, inner: torch.Tensor, halo: torch.Tensor | None) -> torch.Tensor:
        return self.by_slot.forward(inner, halo)

    def backward(self, gradient: torch.Tensor, inner: bool, halo: bool) -> Gradients:
        return self.by_row.backward(gradient, inner, halo)


class ChunkAdjacency:
    """Stands for a :class:`~executor.layers.local.LocalAdjacency` whose halo rows are a merged buffer.

    ``slots``: in-edges of the chunk's n rows by slot of the merged buffer, ``others`` int32 [M]: the slots of rows that
    the chunk needs beside its own, and ``own`` int32 [n]: of its own. ``in_degree`` int64 [n + M], ``weighted``
    float64 [n + M]: in-degrees in the full graph of both, and sums of weights (None: edges have none). Sums read own rows [n, F] and the merged buffer [B, F]; gradients go to own
    rows [n, F] and to the others [M, F], in this order."""

    def __init__(
        self, slots: CSR, own: NDArray[Any], others: NDArray[Any], in_degree: NDArray[Any],
        weighted: NDArray[Any] | None, dtype: torch.dtype, device: torch.device,
    ) -> None:  # fmt: skip
        rows = slots.rows
        self.rows, self.halo_rows, self.dtype, self.device = rows, slots.columns, dtype, device
        self._kernel: Callable[..., Aggregation] = kernel_named(None, device)
        self._degree = torch.from_numpy(np.asarray(in_degree if weighted is None else weighted, dtype=np.float64))
        places = np.zeros(slots.columns, dtype=np.int32)
        places[own], places[others] = np.arange(rows), rows + np.arange(len(others))
        indices = np.asarray(slots.indices)
        by_slot = CSR(slots.indptr, indices + np.int32(rows), rows + slots.columns, slots.weights)
        by_row = CSR(slots.indptr, places[indices], rows + len(others), slots.weights)
        self.by_slot = Structure.from_csr(by_slot, device, dtype)
        self.by_row = Structure.from_csr(by_row, device, dtype)
        self._by_row, self._in_degree, self._weighted = by_row, in_degree, weighted
        self._all_slots = torch.from_numpy(np.concatenate((own, others)).astype(np.int64))
        self._sums: dict[str, _ChunkSums] = {}

    @cached_property
    def _reverse(self) -> Structure:
        return self.by_row.transposed()

    @cached_property
    def attention(self) -> Attention:
        """Attention over own rows and the others, one after the other, with self loops."""
        return Attention(self.by_row, self._reverse, self.rows, None)

    @cached_property
    def _gathered(self) -> LocalAdjacency:
        return LocalAdjacency(
            self._by_row, self._in_degree, dtype=self.dtype, device=self.device, weighted_degree=self._weighted
        )

    def neighbourhood(self) -> Neighbourhood:
        """What a user's layer gets as ``csr``: sources are own rows, then the others."""
        return self._gathered.neighbourhood()

    def aggregation(self, name: str) -> _ChunkSums:
        """The sums of one scaling (:data:`~executor.layers.local.SCALINGS`), made at the first use."""
        if name not in self._sums:
            full = self._degree
            made = SCALINGS[name](Degrees(full, full[: self.rows], False), self.rows)
            scaling = self._placed(made)
            source = made.source
            if source is not None:  # each slot has the factor of the row that lies there
                by_slot = source.new_zeros(self.rows + self.halo_rows)
                by_slot[: self.rows] = source[: self.rows]
                by_slot[self.rows + self._all_slots] = source
                source = by_slot
            merged = self._placed(Scaling(source, made.destination, made.own))
            self._sums[name] = _ChunkSums(
                self._kernel(self.by_slot, self.by_slot, merged, None),
                self._kernel(self.by_row, self._reverse, scaling, None),
            )
        return self._sums[name]

    def _placed(self, scaling: Scaling) -> Scaling:
        parts = (
            None if part is None else part.to(self.device, self.dtype)
            for part in (scaling.source, scaling.destination, scaling.own)
        )
        return Scaling(*parts)
