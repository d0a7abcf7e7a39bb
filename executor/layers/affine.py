"""act(Σ xᵢ Wᵢ + added + bias) as one autograd function: matrix products, then one pass over the rows for the rest."""

from collections.abc import Sequence
from typing import Any

import torch

from executor.kernels.edges.sparse import SparseRows
from executor.kernels.epilogue import activation_backward, bias_activation
from executor.layers.tape import Call, autograd
from simgnn.model.spec import Activation

Rows = torch.Tensor | SparseRows
NORM_ELEMENTS = 2**16
"""Elements of a gradient whose squares are added up at once."""


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        activation: Activation,
        kept: float,
        limit: float,
        sparse_rows: tuple[SparseRows | None, ...],
        bias: torch.Tensor,
        added: torch.Tensor | None,
        *operands: torch.Tensor | None,
    ) -> torch.Tensor:
        rows, weights = operands[::2], operands[1::2]
        out: torch.Tensor | None = None
        for constant, x, weight in zip(sparse_rows, rows, weights, strict=True):
            assert weight is not None
            if constant is not None:
                product = constant.times(weight)
                out = product if out is None else out.add_(product)
            else:
                assert x is not None
                out = torch.mm(x, weight) if out is None else out.addmm_(x, weight)
        if out is None:
            assert added is not None, "an affine map of nothing"
            out = bias_activation(added, bias, activation)
        else:
            bias_activation(out, bias, activation, added, out)
        ctx.limit, ctx.sparse_rows, ctx.activation, ctx.kept = limit, sparse_rows, activation, kept
        ctx.save_for_backward(None if activation == "none" else out, *operands)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        output, *operands = ctx.saved_tensors
        gradient, bias_gradient = activation_backward(
            gradient.contiguous(), output, activation=ctx.activation, kept=ctx.kept
        )
        if ctx.limit:
            factor = clip_factor(gradient, ctx.limit)
            gradient, bias_gradient = gradient * factor, bias_gradient * factor
        wanted = ctx.needs_input_grad
        results: list[torch.Tensor | None] = []
        for place, constant in enumerate(ctx.sparse_rows):
            x, weight = operands[2 * place], operands[2 * place + 1]
            row_gradient = torch.mm(gradient, weight.t()) if constant is None and wanted[6 + 2 * place] else None
            weight_gradient = None
            if wanted[7 + 2 * place]:
                weight_gradient = (
                    transposed_product(x, gradient) if constant is None else constant.transposed_times(gradient)
                )
            results += (row_gradient, weight_gradient)
        of_bias, of_added = bias_gradient if wanted[4] else None, gradient if wanted[5] else None
        return None, None, None, None, of_bias, of_added, *results


def clip_factor(gradient: torch.Tensor, limit: float) -> torch.Tensor:
    """min(1, limit / norm) of a gradient [n, F], a scalar of its dtype; the norm is summed up in float64."""
    # on the CPU torch makes a float64 copy of what it sums
    parts = gradient.flatten().split(NORM_ELEMENTS) if gradient.device.type == "cpu" else (gradient,)
    norms = [torch.linalg.vector_norm(part, dtype=torch.float64) for part in parts]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    factor: torch.Tensor = (limit / norm).clamp_(max=1.0).to(gradient.dtype)
    return factor


def transposed_product(x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """xᵀ g, computed with the wider factor last: BLAS is about twice as fast then if the other has few columns."""
    if gradient.shape[1] < x.shape[1]:
        return torch.mm(gradient.t(), x).t()
    return torch.mm(x.t(), gradient)


def affine(
    products: Sequence[tuple[Rows, torch.Tensor]],
    bias: torch.Tensor,
    added: torch.Tensor | None = None,
    activation: Activation = "none",
    call: Call = autograd,
    limit: float = 0.0,
    kept: float = 1.0,
) -> torch.Tensor:
    """act(Σ x W + added + bias), [n, outer].

    ``products``: pairs of rows x [n, inner] (dense, or constant :class:`SparseRows`) and weights W [inner, outer];
    ``bias`` [outer]; ``added`` [n, outer] or None. Without products ``added`` is needed. Gradients go to all dense
    tensors that ask for them. ``limit``: largest Frobenius norm of the gradient before the activation, which is scaled
    down to it; 0: none. ``kept``: 1 - the rate of a dropout that may change the result in place, with factors 0 and
    1 / ``kept``, before backward; the gradient that arrives is then 0 for dropped elements.
    """
    operands: list[torch.Tensor | None] = []
    for rows, weight in products:
        operands += (None if isinstance(rows, SparseRows) else rows, weight)
    constants = tuple(rows if isinstance(rows, SparseRows) else None for rows, _ in products)
    return call(_Affine, activation, kept, limit, constants, bias, added, *operands)


class _SparseProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: SparseRows, weight: torch.Tensor) -> torch.Tensor:
        ctx.rows = rows
        return rows.times(weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return None, ctx.rows.transposed_times(gradient.contiguous())


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows, weight)
        return torch.mm(rows, weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        rows, weight = ctx.saved_tensors
        of_rows, of_weight = ctx.needs_input_grad
        return (
            torch.mm(gradient, weight.t()) if of_rows else None,
            transposed_product(rows, gradient) if of_weight else None,
        )


def product(rows: Rows, weight: torch.Tensor, call: Call = autograd) -> torch.Tensor:
    """x W, [n, outer]; ``rows`` dense or constant :class:`SparseRows`."""
    if isinstance(rows, SparseRows):
        return call(_SparseProduct, rows, weight)
    return call(_Product, rows, weight)
