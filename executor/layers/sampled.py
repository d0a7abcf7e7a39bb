"""The sampled block that a layer sums over in a mini-batch. Its n destinations are the first of its m sources."""

from functools import cached_property
from typing import Any

import torch

from executor.kernels.edges.attention import Attention
from executor.kernels.edges.spmm import spmm
from executor.kernels.edges.structure import Scaling, Structure
from executor.kernels.launch import array, compiled_for, default_threads
from simgnn.errors import ConfigError

SCALINGS = ("gcn", "mean", "sum")
"""Weights of sampled edges, from the sampled in-degrees c (docs/systems/mini-batches.md):

- ``gcn``: mean over the row itself and its sampled in-neighbours, divided by c + 1. Our decision: weights by degrees of
  the full graph would be biased, since neighbours are drawn;
- ``mean``: mean over the sampled in-neighbours, 0 where there are none;
- ``sum``: plain sum.
"""


class SampledBlock:
    """The edges of one hop. Row i sums sources ``indices[indptr[i]:indptr[i + 1]]`` of m; row i itself is source i.

    ``indptr`` [n + 1], ``sources`` [edges] integers on one device, ``columns`` = m.
    """

    def __init__(self, indptr: torch.Tensor, sources: torch.Tensor, columns: int) -> None:
        self.structure = Structure(indptr.to(torch.int64), sources, columns)
        assert self.structure.rows <= columns, "destinations are the first sources"

    @property
    def rows(self) -> int:
        """Number n of destination rows."""
        return self.structure.rows

    @cached_property
    def transpose(self) -> Structure:
        """The edges grouped by source, computed when a sum is first reversed."""
        return self.structure.transposed()

    def attention(self, reverse: bool) -> Attention:
        """Return attention over the same edges, with self loops; its backward works only if ``reverse`` is true."""
        return Attention(self.structure, self.transpose if reverse else self.structure, self.rows)

    def scaling(self, name: str, dtype: torch.dtype) -> Scaling:
        """Return the :class:`Scaling`, which replaces edge weights, of a name in :data:`SCALINGS`."""
        degree = self.structure.indptr.diff().to(torch.float64)
        if name == "gcn":
            return Scaling(destination=(1 / (degree + 1)).to(dtype), own=torch.ones_like(degree, dtype=dtype))
        if name == "mean":
            return Scaling(destination=(1 / degree.clamp(min=1)).to(dtype))
        if name == "sum":
            return Scaling()
        raise ConfigError(f"scaling of a sampled sum: got '{name}', expected one of {', '.join(SCALINGS)}")

    def sum(self, rows: torch.Tensor, scaling: Scaling) -> torch.Tensor:
        """Return the scaled sums [n, F] over the rows of all sources [m, F]; no autograd."""
        rows = rows.contiguous()
        if not compiled_for(rows):
            return _torch_sum(self.structure, rows, scaling)
        out = rows.new_empty((self.rows, rows.shape[1]))
        csr, bounds = self.structure.csr, self.structure.bounds(default_threads())
        spmm(csr.indptr, csr.indices, array(rows), array(out), bounds, **scaling.arrays())
        return out

    def sum_backward(self, gradient: torch.Tensor, scaling: Scaling) -> torch.Tensor:
        """Gradient of the rows of all sources [m, F], from that of the sums [n, F]."""
        gradient, reverse = gradient.contiguous(), _reversed(scaling)
        transpose = self.transpose
        out = gradient.new_empty((transpose.rows, gradient.shape[1]))
        # only destinations have an own term
        for first, last in ((0, self.rows), (self.rows, transpose.rows)):
            part = Scaling(reverse.source, None, reverse.own if first == 0 else None)
            if compiled_for(gradient):
                csr, bounds = transpose.csr, transpose.bounds(default_threads(), first, last)
                pointers = csr.indptr[first : last + 1]
                spmm(pointers, csr.indices, array(gradient), array(out[first:last]), bounds, **part.arrays())
            else:
                edges = transpose.indptr[first : last + 1]
                piece = transpose.indices[int(edges[0]) : int(edges[-1])]
                out[first:last] = _torch_sum(Structure(edges - edges[0], piece, self.rows), gradient, part)
        return out


def _reversed(scaling: Scaling) -> Scaling:
    """The scaling of the backward: factors of destinations become factors of sources; own terms keep their weight."""
    own = scaling.own
    if own is not None and scaling.destination is not None:
        own = own * scaling.destination
    return Scaling(source=scaling.destination, own=own)


def _torch_sum(structure: Structure, rows: torch.Tensor, scaling: Scaling) -> torch.Tensor:
    """The sums of :meth:`SampledBlock.sum` computed by torch, on devices for which we have no kernel."""
    picked = rows.index_select(0, structure.indices.to(torch.int64))
    if scaling.source is not None:
        picked *= scaling.source.index_select(0, structure.indices.to(torch.int64))[:, None]
    target = torch.repeat_interleave(torch.arange(structure.rows, device=rows.device), structure.indptr.diff())
    out = rows.new_zeros((structure.rows, rows.shape[1])).index_add_(0, target, picked)
    if scaling.own is not None:
        out += rows[: structure.rows] * scaling.own[:, None]
    return out if scaling.destination is None else out * scaling.destination[:, None]


class SumOverBlock(torch.autograd.Function):
    """Scaled sums over a block, as a differentiable function for :data:`~executor.layers.tape.Call`."""

    @staticmethod
    def forward(ctx: Any, block: SampledBlock, scaling: str, rows: torch.Tensor) -> torch.Tensor:
        """Return the sums [n, F] over rows [m, F]."""
        ctx.block, ctx.scaling = block, block.scaling(scaling, rows.dtype)
        return block.sum(rows, ctx.scaling)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return None, None, ctx.block.sum_backward(gradient, ctx.scaling)


class FirstRows(torch.autograd.Function):
    """Returns the first rows of a tensor, a block's destinations among its sources, as a differentiable function.
    Deviation: its gradient has only these rows; the zeros of all other rows are left out.
    """

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, count: int) -> torch.Tensor:
        """Return the first ``count`` of rows [m, F], as a view."""
        return rows[:count]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None
