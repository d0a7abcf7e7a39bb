"""The aggregation of one adjacency under one scaling, forward and backward, by one of several kernels."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from executor.kernels.edges.sparse import diagonal, from_scipy
from executor.kernels.edges.spmm import spmm
from executor.kernels.edges.structure import EdgeSet, Scaling, Structure
from executor.kernels.launch import array, default_threads
from simgnn.errors import ConfigError

Gradients = tuple[torch.Tensor | None, torch.Tensor | None]


class Aggregation(Protocol):
    """Weighted sums of source rows over edges. The n own rows and h halo rows are two tensors (None if h = 0)."""

    def forward(self, inner: torch.Tensor, halo: torch.Tensor | None) -> torch.Tensor:
        """Return the sums [n, F] of ``inner`` [n, F] and ``halo`` [h, F]; no autograd."""

    def sum_own(self, inner: torch.Tensor) -> torch.Tensor:
        """Return the sums over the edges from own rows only, [n, F]; :meth:`add_halo` completes them."""

    def add_halo(self, total: torch.Tensor, halo: torch.Tensor) -> torch.Tensor:
        """Add the sums over halo rows to ``total``, the result of :meth:`sum_own`: bit for bit as :meth:`forward`."""

    def backward(
        self, gradient: torch.Tensor, inner: bool, halo: bool
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the gradients of ``inner`` and ``halo``, each if true, from the ``gradient`` of the sums [n, F]."""


class NumbaAggregation:
    """Our own kernel on the CPU, for float32 and float64. A thread sums consecutive rows; edges are spread evenly."""

    def __init__(
        self, structure: Structure, transpose: Structure, scaling: Scaling, threads: int | None = None
    ) -> None:
        self.structure, self.transpose = structure, transpose
        self.scaling, self.reverse = scaling, scaling.reversed()
        self.threads = threads

    def forward(self, inner: torch.Tensor, halo: torch.Tensor | None) -> torch.Tensor:
        csr = self.structure.csr
        out = inner.new_empty((csr.rows, inner.shape[1]))
        bounds = self.structure.bounds(self.threads or default_threads())
        others = None if halo is None or not len(halo) else array(halo.contiguous())
        spmm(
            csr.indptr, csr.indices, array(inner.contiguous()), array(out), bounds, halo=others, values=csr.weights,
            **self.scaling.arrays(),
        )  # fmt: skip
        return out

    def sum_own(self, inner: torch.Tensor) -> torch.Tensor:
        """See :class:`Aggregation`. :meth:`add_halo` multiplies by the scaling of destinations."""
        scales = {**self.scaling.arrays(), "destination_scale": None}
        return self._sum(self.structure.own_edges, inner, None, scales)

    def add_halo(self, total: torch.Tensor, halo: torch.Tensor) -> torch.Tensor:
        """See :class:`Aggregation`. The kernel takes ``total`` as own rows of weight 1, with which sums begin."""
        scales = {**self.scaling.arrays(), "own_scale": np.ones(len(total), array(total).dtype)}
        return self._sum(self.structure.halo_edges, total, array(halo.contiguous()), scales)

    def _sum(
        self, edges: EdgeSet, inner: torch.Tensor, halo: NDArray[Any] | None, scales: dict[str, Any]
    ) -> torch.Tensor:
        csr, out = self.structure.csr, inner.new_empty((self.structure.rows, inner.shape[1]))
        spmm(
            edges.begins, csr.indices, array(inner.contiguous()), array(out),
            edges.bounds(self.threads or default_threads()), ends=edges.ends, halo=halo, values=csr.weights, **scales,
        )  # fmt: skip
        return out

    def backward(
        self, gradient: torch.Tensor, inner: bool, halo: bool
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        rows = self.structure.rows
        gradient = gradient.contiguous()
        return (
            self._reversed(gradient, 0, rows) if inner else None,
            self._reversed(gradient, rows, self.transpose.rows) if halo else None,
        )

    def _reversed(self, gradient: torch.Tensor, first: int, last: int) -> torch.Tensor:
        csr = self.transpose.csr
        out = gradient.new_empty((last - first, gradient.shape[1]))
        bounds = self.transpose.bounds(self.threads or default_threads(), first, last)
        scales = self.reverse.arrays(first, last)
        if first > 0:
            scales["own_scale"] = None
        pointers = csr.indptr[first : last + 1]
        spmm(pointers, csr.indices, array(gradient), array(out), bounds, values=csr.weights, **scales)
        return out


class TorchAggregation:
    """Sums with torch's sparse CSR product (MKL or cuSPARSE); the factors of :class:`Scaling` multiply edge weights."""

    def __init__(
        self, structure: Structure, transpose: Structure, scaling: Scaling, threads: int | None = None
    ) -> None:
        self.structure, self.scaling = structure, scaling
        self._made: dict[torch.dtype, tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]] = {}

    def forward(self, inner: torch.Tensor, halo: torch.Tensor | None) -> torch.Tensor:
        own_weights, _, halo_weights, _ = self._weights(inner.dtype)
        out = torch.mm(own_weights, inner)
        if halo_weights is not None and halo is not None:
            out += torch.mm(halo_weights, halo)
        return out

    def sum_own(self, inner: torch.Tensor) -> torch.Tensor:
        return torch.mm(self._weights(inner.dtype)[0], inner)

    def add_halo(self, total: torch.Tensor, halo: torch.Tensor) -> torch.Tensor:
        weights = self._weights(halo.dtype)[2]
        return total.clone() if weights is None else total + torch.mm(weights, halo)

    def backward(self, gradient: torch.Tensor, inner: bool, halo: bool) -> Gradients:
        _, own_weights, _, halo_weights = self._weights(gradient.dtype)
        return (
            torch.mm(own_weights, gradient) if inner else None,
            torch.mm(halo_weights, gradient) if halo and halo_weights is not None else None,
        )

    def _weights(
        self, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Edge weights from own rows and from halo rows, each with its transpose; computed at the first use."""
        if dtype not in self._made:
            own, halo = _weighted(self.structure, self.scaling)
            device = self.structure.indptr.device
            remote = (halo, halo.T.tocsr()) if halo.shape[1] else (None, None)
            made = (own, own.T.tocsr(), *remote)
            self._made[dtype] = tuple(None if m is None else from_scipy(m, dtype).to(device) for m in made)  # type: ignore[assignment]
        return self._made[dtype]


def _weighted(structure: Structure, scaling: Scaling) -> tuple[Any, Any]:
    """Edge weights from own rows [n, n] and halo rows [n, h]; the factor of a row's own value is on the diagonal."""
    rows, columns = structure.rows, structure.columns
    given = np.ones(structure.edges) if structure.weights is None else structure.weights.cpu().numpy()
    weights: Any = sparse.csr_array(
        (given.astype(np.float64), structure.indices.cpu().numpy(), structure.indptr.cpu().numpy()), (rows, columns)
    )
    if scaling.source is not None:
        weights = weights @ diagonal(scaling.source.cpu().numpy(), columns, columns)
    if scaling.own is not None:
        weights = weights + diagonal(scaling.own.cpu().numpy(), rows, columns)
    if scaling.destination is not None:
        weights = diagonal(scaling.destination.cpu().numpy(), rows, rows) @ weights
    weights = sparse.csr_array(weights)
    return weights[:, :rows], weights[:, rows:]


Kernel = Callable[[Structure, Structure, Scaling, int | None], Aggregation]
KERNELS: Mapping[str, Kernel] = {"numba": NumbaAggregation, "torch": TorchAggregation}


def kernel_named(name: str | None, device: torch.device) -> Kernel:
    """Return the aggregation kernel of that name; None stands for our own kernel on the CPU and torch's elsewhere."""
    if name is None:
        name = "numba" if device.type == "cpu" else "torch"
    if name not in KERNELS:
        raise ConfigError(
            f"aggregation kernel: got '{name}', expected one of {', '.join(KERNELS)}; the hardware profile "
            "or the caller names it"
        )
    if name == "numba" and device.type != "cpu":
        raise ConfigError(f"aggregation kernel: 'numba' runs on the CPU only, rows are on {device}; use 'torch'")
    return KERNELS[name]
