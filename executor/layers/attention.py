"""GAT, cut into the segments that a program names: the greatest scores come first, then weighted sums and weights."""

from typing import Any

import torch
from torch import nn

from executor.kernels.attention import Attention, Scores
from executor.layers.affine import affine
from executor.layers.builtin import Layer
from executor.layers.local import LocalAdjacency
from executor.layers.sampled import SampledBlock
from executor.layers.tape import Call, autograd
from simgnn.model.spec import LayerSpec


class GAT(Layer):
    """act(concatenated heads of sum over in-edges and the vertex itself of a_ij x_j W + b).

    a_ij = softmax over j of leaky ReLU(attention_source . x_j W + attention_target . x_i W), slope 0.2, per head.
    Source: Velickovic et al., ICLR 2018, equations 1 to 5, with ReLU for ELU and without dropout; the last layer has
    one head. Parameters: ``weight`` [in, out], ``attention_source`` and ``attention_target`` [heads, out / heads],
    ``bias`` [out].

    ``maximum(csr, prepared, halo)``: greatest scores over a rank's edges, [n, heads]; over parts of the edges the
    greatest of all parts is the whole's. ``aggregate`` then gives sums of weighted rows and of weights,
    [n, out + heads], which add up over parts; ``update`` divides.
    """

    reduction = "max then sum"

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        assert spec.has_prepare, "attention compares transformed rows"
        per_head = (spec.heads, spec.width_out // spec.heads)
        self.weight = nn.Parameter(torch.empty(spec.width_in, spec.width_out))
        self.attention_source = nn.Parameter(torch.empty(per_head))
        self.attention_target = nn.Parameter(torch.empty(per_head))
        self.bias = nn.Parameter(torch.empty(spec.width_out))

    def prepared_weight(self) -> torch.Tensor:
        return self.weight

    @torch.no_grad()
    def maximum(self, csr: LocalAdjacency, prepared: torch.Tensor, halo: torch.Tensor | None = None) -> torch.Tensor:
        """[n, heads] from own rows [n, out] and halo rows [h, out]; constant, as far as gradients go."""
        scores = _scores(prepared, halo, self.attention_source, self.attention_target)
        return csr.attention.maximum(scores)

    def aggregate(  # type: ignore[override]
        self, csr: LocalAdjacency, prepared: torch.Tensor, *rows: torch.Tensor, call: Call = autograd
    ) -> torch.Tensor:
        """[n, out + heads] from own rows, halo rows (none where h = 0) and the maxima."""
        *halo, maximum = rows
        source, target = self.attention_source, self.attention_target
        return call(_Attend, csr.attention, prepared, halo[0] if halo else None, maximum, source, target)

    @torch.no_grad()
    def maximum_sampled(self, block: SampledBlock, prepared: torch.Tensor) -> torch.Tensor:
        """As :meth:`maximum`, from the rows of all sources [m, out] of a sampled block."""
        own, halo = prepared[: block.rows], prepared[block.rows :]
        scores = _scores(own, halo, self.attention_source, self.attention_target)
        return block.attention(reverse=False).maximum(scores)

    def aggregate_sampled(  # type: ignore[override]
        self, block: SampledBlock, prepared: torch.Tensor, maximum: torch.Tensor, *, call: Call = autograd
    ) -> torch.Tensor:
        """As :meth:`aggregate`, from the rows of all sources [m, out] of a sampled block, and the maxima."""
        return call(_AttendSources, block, prepared, maximum, self.attention_source, self.attention_target)

    def update(
        self, aggregated: torch.Tensor, own: torch.Tensor | None = None, *, call: Call = autograd
    ) -> torch.Tensor:
        """See :class:`Layer`."""
        return affine([], self.bias, call(_Quotient, aggregated, self.spec.heads), self.spec.activation, call)


def _scores(prepared: torch.Tensor, halo: torch.Tensor | None, source: torch.Tensor, target: torch.Tensor) -> Scores:
    of_source = _per_head(prepared, source)
    if halo is not None:
        of_source = torch.cat((of_source, _per_head(halo, source)))
    return Scores(of_source, _per_head(prepared, target))


def _per_head(rows: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """Products of each head's part of a row with its vector, [n, H]."""
    heads, part = vectors.shape
    return torch.einsum("nhd,hd->nh", rows.view(-1, heads, part), vectors).contiguous()


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        kernel: Attention,
        prepared: torch.Tensor,
        halo: torch.Tensor | None,
        maximum: torch.Tensor,
        source: torch.Tensor,
        target: torch.Tensor,
    ) -> torch.Tensor:
        prepared = prepared.contiguous()
        ctx.kernel = kernel
        ctx.save_for_backward(prepared, halo, maximum, source, target)
        return kernel.forward(prepared, halo, _scores(prepared, halo, source, target), maximum)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        prepared, halo, maximum, source, target = ctx.saved_tensors
        scores = _scores(prepared, halo, source, target)
        inner, remote, of = ctx.kernel.backward(gradient, prepared, halo, scores, maximum)
        own = of.source[: len(prepared)]
        of_source = _of_vector(own, prepared, source)
        _add_through(inner, own, source)
        _add_through(inner, of.target, target)
        if halo is not None and remote is not None:
            of_source += _of_vector(of.source[len(prepared) :], halo, source)
            _add_through(remote, of.source[len(prepared) :], source)
        return None, inner, remote, None, of_source, _of_vector(of.target, prepared, target)


class _AttendSources(torch.autograd.Function):
    """As :class:`_Attend`, with own and halo rows in one tensor."""

    @staticmethod
    def forward(
        ctx: Any,
        block: SampledBlock,
        prepared: torch.Tensor,
        maximum: torch.Tensor,
        source: torch.Tensor,
        target: torch.Tensor,
    ) -> torch.Tensor:
        prepared = prepared.contiguous()
        ctx.block = block
        ctx.save_for_backward(prepared, maximum, source, target)
        own, halo = prepared[: block.rows], prepared[block.rows :]
        return block.attention(reverse=False).forward(own, halo, _scores(own, halo, source, target), maximum)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        prepared, maximum, source, target = ctx.saved_tensors
        rows = ctx.block.rows
        own, halo = prepared[:rows], prepared[rows:]
        scores = _scores(own, halo, source, target)
        inner, remote, of = ctx.block.attention(reverse=True).backward(gradient, own, halo, scores, maximum)
        every = inner if remote is None else torch.cat((inner, remote))
        _add_through(every, of.source, source)
        _add_through(every[:rows], of.target, target)
        return None, every, None, _of_vector(of.source, prepared, source), _of_vector(of.target, own, target)


def _of_vector(gradient: torch.Tensor, rows: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """Gradient of the vectors of :func:`_per_head`, [H, d]."""
    heads, part = vectors.shape
    return torch.einsum("nh,nhd->hd", gradient, rows.view(-1, heads, part))


def _add_through(into: torch.Tensor, gradient: torch.Tensor, vectors: torch.Tensor) -> None:
    """Add the gradient of the rows of :func:`_per_head`."""
    heads, part = vectors.shape
    into.view(-1, heads, part).addcmul_(gradient[:, :, None], vectors)


class _Quotient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, aggregated: torch.Tensor, heads: int) -> torch.Tensor:
        width = aggregated.shape[1] - heads
        weights = aggregated[:, width:, None]
        result = (aggregated[:, :width].view(len(aggregated), heads, width // heads) / weights).flatten(1)
        ctx.heads = heads
        ctx.save_for_backward(aggregated, result)
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        aggregated, result = ctx.saved_tensors
        heads, width = ctx.heads, result.shape[1]
        found = torch.empty_like(aggregated)
        shape = (len(aggregated), heads, width // heads)
        of_sums = gradient.view(shape) / aggregated[:, width:, None]
        found[:, :width] = of_sums.flatten(1)
        found[:, width:] = -(of_sums * result.view(shape)).sum(2)
        return found, None
