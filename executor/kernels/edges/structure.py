"""A CSR held in tensors, with weights of edges if there are any, and scalings of rows."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from executor.kernels.launch import balanced_rows
from simgnn.graph.build import transpose_csr
from simgnn.graph.csr import CSR


@dataclass(frozen=True, eq=False)
class EdgeSet:
    """Some edges of a structure: those of row i lie at ``begins``[i] to ``ends``[i] among its edges, int64 [n]."""

    begins: NDArray[np.int64]
    ends: NDArray[np.int64]

    @cached_property
    def _bounds(self) -> dict[int, NDArray[np.int64]]:
        return {}

    def bounds(self, threads: int) -> NDArray[np.int64]:
        """The first row of each thread's share, int64 [threads + 1]; computed once for each number of threads."""
        if threads not in self._bounds:
            self._bounds[threads] = balanced_rows(np.concatenate(([0], np.cumsum(self.ends - self.begins))), threads)
        return self._bounds[threads]


@dataclass(frozen=True, eq=False)
class Structure:
    """Edges in CSR form, by destination row: ``indptr`` int64 [n + 1]; ``indices``: source rows, below ``columns``;
    ``weights`` [edges], of the rows' dtype (None: ones)."""

    indptr: torch.Tensor
    indices: torch.Tensor
    columns: int
    weights: torch.Tensor | None = None

    @classmethod
    def from_csr(cls, csr: CSR, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> "Structure":
        """Copy a CSR, which may be memory-mapped, to tensors on ``device``; weights become ``dtype``."""
        return cls(
            torch.from_numpy(np.array(csr.indptr, dtype=np.int64)).to(device),
            torch.from_numpy(np.array(csr.indices)).to(device),
            csr.columns,
            None if csr.weights is None else torch.from_numpy(np.array(csr.weights)).to(device, dtype),
        )

    @classmethod
    def sharing(cls, csr: CSR, device: torch.device) -> "Structure":
        """Wrap a CSR whose arrays nobody changes; on the CPU they are not copied."""
        arrays = (np.asarray(csr.indptr, dtype=np.int64), np.asarray(csr.indices))
        pointers, indices = (torch.from_numpy(array).to(device) for array in arrays)
        weights = None if csr.weights is None else torch.from_numpy(np.asarray(csr.weights)).to(device)
        return cls(pointers, indices, csr.columns, weights)

    @property
    def rows(self) -> int:
        """n, the number of destinations."""
        return len(self.indptr) - 1

    @property
    def edges(self) -> int:
        """Number of edges."""
        return len(self.indices)

    @cached_property
    def csr(self) -> CSR:
        """The same arrays for NumPy (CPU only)."""
        weights = None if self.weights is None else self.weights.numpy()
        return CSR(self.indptr.numpy(), self.indices.numpy(), self.columns, weights)

    @cached_property
    def _bounds(self) -> dict[tuple[int, int, int], NDArray[np.int64]]:
        return {}

    def bounds(self, threads: int, first: int = 0, last: int | None = None) -> NDArray[np.int64]:
        """Return where each thread's part of the rows ``first``..``last`` begins, counted from ``first``; cached."""
        key = (threads, first, self.rows if last is None else last)
        if key not in self._bounds:
            pointers = self.csr.indptr[key[1] : key[2] + 1]
            self._bounds[key] = balanced_rows(pointers - pointers[0], threads)
        return self._bounds[key]

    @cached_property
    def own_edges(self) -> "EdgeSet":
        """The edges whose source is one of the n rows themselves (CPU only): the first of each row's edges."""
        pointers = self.csr.indptr
        own = np.concatenate(([0], np.cumsum(self.csr.indices < self.rows, dtype=np.int64)))
        return EdgeSet(pointers[:-1], pointers[:-1] + own[pointers[1:]] - own[pointers[:-1]])

    @cached_property
    def halo_edges(self) -> "EdgeSet":
        """The other edges, whose source is a halo row (CPU only)."""
        return EdgeSet(self.own_edges.ends, self.csr.indptr[1:])

    def transposed(self) -> "Structure":
        """Edges grouped by source."""
        return Structure.sharing(transpose_csr(self.on_cpu().csr), self.indptr.device)

    def part(self, of_halo: bool) -> "Structure":
        """Copy the edges from halo rows (whose ids then start at 0), or those from own rows, without weights."""
        cpu, rows = self.on_cpu(), self.rows
        indices, edges = cpu.csr.indices, cpu.halo_edges if of_halo else cpu.own_edges
        pointers = np.concatenate(([0], np.cumsum(edges.ends - edges.begins)))
        first, columns = (rows, self.columns - rows) if of_halo else (0, rows)
        sources = indices[(indices >= rows) == of_halo] - np.asarray(first, indices.dtype)
        return Structure.sharing(CSR(pointers, sources, columns), self.indptr.device)

    def on_cpu(self) -> "Structure":
        """Return this structure if it is on the CPU, else a copy there."""
        on_cpu = self.indptr.device.type == "cpu"
        weights = None if self.weights is None else self.weights.cpu()
        return self if on_cpu else Structure(self.indptr.cpu(), self.indices.cpu(), self.columns, weights)


@dataclass(frozen=True, eq=False)
class Scaling:
    """out_i = destination_i * (own_i * x_i + sum over sources j of weight_ij * source_j * x_j), with the weights of a
    :class:`Structure`.

    ``source`` [n + h], ``destination`` [n], ``own`` [n], of the rows' dtype; None: ones, ones, and no own term.
    """

    source: torch.Tensor | None = None
    destination: torch.Tensor | None = None
    own: torch.Tensor | None = None

    def arrays(self, first: int = 0, last: int | None = None) -> dict[str, Any]:
        """Return arguments of :func:`executor.kernels.edges.spmm.spmm` for the destination rows first..last."""

        def cut(values: torch.Tensor | None) -> Any:
            return None if values is None else values.numpy()[first:last]

        return {
            "source_scale": None if self.source is None else self.source.numpy(),
            "destination_scale": cut(self.destination),
            "own_scale": cut(self.own),
        }

    def reversed(self) -> "Scaling":
        """Return the scaling of the backward: source and destination factors swap; the own term keeps its weight.

        Rows of the backward are the n + h sources; ``own`` covers the first n of them.
        """
        own = self.own
        if own is not None:
            own = own if self.destination is None else own * self.destination
            own = own if self.source is None else own / self.source[: len(own)]
        return Scaling(self.destination, self.source, own)
