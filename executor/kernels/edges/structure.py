"""A CSR held in tensors, and the scalings that stand in for edge weights."""

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
class Structure:
    """Which source rows each row sums: ``indptr`` int64 [n + 1], ``indices`` int32 or int64, ``columns`` sources."""

    indptr: torch.Tensor
    indices: torch.Tensor
    columns: int

    @classmethod
    def from_csr(cls, csr: CSR, device: torch.device | str = "cpu") -> "Structure":
        """A copy of a CSR of the graph room (which may be memory-mapped) in tensors on ``device``."""
        return cls(
            torch.from_numpy(np.array(csr.indptr, dtype=np.int64)).to(device),
            torch.from_numpy(np.array(csr.indices)).to(device),
            csr.columns,
        )

    @classmethod
    def sharing(cls, csr: CSR, device: torch.device) -> "Structure":
        """A CSR whose arrays nobody changes; on the CPU they are taken as they are."""
        arrays = (np.asarray(csr.indptr, dtype=np.int64), np.asarray(csr.indices))
        pointers, indices = (torch.from_numpy(array).to(device) for array in arrays)
        return cls(pointers, indices, csr.columns)

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
        return CSR(self.indptr.numpy(), self.indices.numpy(), self.columns)

    @cached_property
    def _bounds(self) -> dict[tuple[int, int, int], NDArray[np.int64]]:
        return {}

    def bounds(self, threads: int, first: int = 0, last: int | None = None) -> NDArray[np.int64]:
        """Rows ``first``..``last`` cut for ``threads`` threads, counted from ``first``; remembered."""
        key = (threads, first, self.rows if last is None else last)
        if key not in self._bounds:
            pointers = self.csr.indptr[key[1] : key[2] + 1]
            self._bounds[key] = balanced_rows(pointers - pointers[0], threads)
        return self._bounds[key]

    def transposed(self) -> "Structure":
        """Edges grouped by source."""
        device = self.indptr.device
        cpu = self if device.type == "cpu" else Structure(self.indptr.cpu(), self.indices.cpu(), self.columns)
        return Structure.sharing(transpose_csr(cpu.csr), device)


@dataclass(frozen=True, eq=False)
class Scaling:
    """out_i = destination_i * (own_i * x_i + sum over sources j of source_j * x_j).

    ``source`` [n + h], ``destination`` [n], ``own`` [n], of the rows' dtype; None: ones, ones, and no own term.
    """

    source: torch.Tensor | None = None
    destination: torch.Tensor | None = None
    own: torch.Tensor | None = None

    def arrays(self, first: int = 0, last: int | None = None) -> dict[str, Any]:
        """Keyword arguments of :func:`executor.kernels.edges.spmm.spmm`; scalings of destinations cut to
        first..last."""

        def cut(values: torch.Tensor | None) -> Any:
            return None if values is None else values.numpy()[first:last]

        return {
            "source_scale": None if self.source is None else self.source.numpy(),
            "destination_scale": cut(self.destination),
            "own_scale": cut(self.own),
        }

    def reversed(self) -> "Scaling":
        """The scaling of the backward: sources and destinations trade places; the own term keeps its weight.

        Rows of the backward are the n + h sources; ``own`` covers the first n of them.
        """
        own = self.own
        if own is not None:
            own = own if self.destination is None else own * self.destination
            own = own if self.source is None else own / self.source[: len(own)]
        return Scaling(self.destination, self.source, own)
