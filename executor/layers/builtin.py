"""GCN, GraphSAGE with mean, and GIN as segments: the parts of a layer that ops of a program run one by one."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from executor.kernels.edges.sparse import SparseRows, from_scipy, to_scipy
from executor.layers.affine import Rows, affine, product, transposed_product
from executor.layers.local import LocalAdjacency, add_halo, aggregate, sum_own
from executor.layers.sampled import SampledBlock, SumOverBlock
from executor.layers.tape import Call, Sum, Transposed, autograd
from simgnn.model.spec import LayerSpec, kept_share
from simgnn.program.kinds import Segment

Functions = Mapping[Segment, Callable[..., Any]]
REMEMBERED = 4
"""Constant sparse matrices that a layer keeps with their transposes (own, halo and summed rows)."""


class Layer(nn.Module):
    """A built-in layer. Rows are dense [n, F] of the layer's dtype, or (layer 1) constant torch CSR tensors.

    ``prepare(rows)``: what is aggregated and exchanged (the rows themselves when rows are aggregated first).
    ``aggregate(csr, prepared, halo)``: scaled sums over a :class:`LocalAdjacency`. ``update(aggregated, own)``: the
    layer's output; ``own`` are the layer's own input rows where ``spec.uses_own_rows``. ``call`` runs the layer's
    differentiable functions: under autograd, or on a :class:`~executor.layers.tape.Tape`. ``reduction`` "sum": partial
    aggregates over disjoint sets of edges add up. ``mean`` [F]: the mean of the features, if sparse input rows stand
    for features minus their mean (None: they do not); training never changes it.
    """

    reduction = "sum"
    scaling: str

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__()
        self.spec = spec
        self.mean: torch.Tensor | None = None
        self._constants: dict[tuple[int, int], SparseRows] = {}

    def functions(self) -> Functions:
        """Return the layer's functions over a rank's edges, by segment."""
        return {
            Segment.PREPARE: self.prepare,
            Segment.AGGREGATE: self.aggregate,
            Segment.SUM_OWN: self.sum_own,
            Segment.ADD_HALO: self.add_halo,
            Segment.UPDATE: self.update,
            Segment.PRODUCT_GRADIENT: self.product_gradient,
            Segment.EDGE_GRADIENTS: self.edge_gradients,
        }

    def sampled_functions(self) -> Functions:
        """Return the layer's functions over the edges of a sampled block, by segment."""
        return {Segment.AGGREGATE: self.aggregate_sampled}

    def prepare(self, rows: torch.Tensor, *, call: Call = autograd) -> torch.Tensor:
        """Transform rows [k, width_in] to [k, prepared width], each row by itself: own and halo rows may come apart."""
        return product(self.operand(rows), self.prepared_weight(), call) if self.spec.has_prepare else rows

    def prepared_weight(self) -> torch.Tensor:
        """The matrix that rows are multiplied with before they are aggregated."""
        raise NotImplementedError

    def aggregate(
        self, csr: LocalAdjacency, prepared: torch.Tensor, halo: torch.Tensor | None = None, *, call: Call = autograd
    ) -> torch.Tensor:
        """Return the sums [n, prepared width] over own rows [n, ...] and halo rows [h, ...] (None if h = 0)."""
        return aggregate(csr, prepared, halo, self.scaling, call, self.mean)

    def sum_own(self, csr: LocalAdjacency, prepared: torch.Tensor, *, call: Call = autograd) -> torch.Tensor:
        """Return the sums [n, prepared width] over own rows [n, ...] only; :meth:`add_halo` completes them."""
        return sum_own(csr, prepared, self.scaling, call)

    def add_halo(
        self, csr: LocalAdjacency, halo: torch.Tensor, total: torch.Tensor, *, call: Call = autograd
    ) -> torch.Tensor:
        """Add halo rows [h, ...] to ``total``, the result of :meth:`sum_own`; this gives that of :meth:`aggregate`."""
        return add_halo(csr, halo, total, self.scaling, call)

    def aggregate_sampled(self, block: SampledBlock, prepared: torch.Tensor, *, call: Call = autograd) -> torch.Tensor:
        """Return the sums [n, prepared width] over the rows of all sources [m, ...] of a sampled block."""
        return call(SumOverBlock, block, self.scaling, prepared)

    def edge_gradients(self, csr: LocalAdjacency, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gradients of own rows [n, F] and of halo rows [h, F], from that of the sums [n, F]: of sums that
        depend on nothing but edges, so that no row of the forward pass is needed."""
        own, halo = csr.aggregation(self.scaling).backward(gradient, True, True)
        assert own is not None
        assert halo is not None
        return own, halo

    def update(
        self, aggregated: torch.Tensor, own: torch.Tensor | None = None, *, call: Call = autograd
    ) -> torch.Tensor:
        raise NotImplementedError

    def finished(
        self, products: Sequence[tuple[Rows, torch.Tensor]], bias: torch.Tensor, added: torch.Tensor | None, call: Call
    ) -> torch.Tensor:
        """Return the layer's output: call :func:`affine`, which describes the arguments, with the layer's settings."""
        spec = self.spec
        kept = kept_share(spec.dropped)
        return affine(products, bias, added, spec.follows, call, spec.gradient_limit, kept)

    def product_gradient(self, gradient: torch.Tensor, rows: torch.Tensor) -> torch.Tensor | tuple[()]:
        """Run backward of ``rows`` [n, width_in] @ :meth:`prepared_weight`, from the ``gradient`` [n, width_out] of the
        product, which need not have been computed. Add the weights' gradient to their ``.grad``; return that of the
        rows (in layer 1 nothing, since input features do not learn)."""
        weight = self.prepared_weight()
        part = transposed_product(rows, gradient)
        weight.grad = part.clone() if weight.grad is None else weight.grad.add_(part)
        return torch.mm(gradient, weight.detach().t()) if self.spec.index > 1 else ()

    def operand(self, rows: torch.Tensor) -> Rows:
        """Rows in the form that products take. A constant sparse matrix is wrapped once, along with its transpose."""
        if rows.layout != torch.sparse_csr:
            return rows
        # the wrapper keeps the values alive, so their address names the matrix
        key = (rows.values().data_ptr(), len(rows))
        if key not in self._constants:
            if len(self._constants) == REMEMBERED:
                self._constants.pop(next(iter(self._constants)))
            self._constants[key] = SparseRows(rows, self.mean)
        return self._constants[key]


class GCN(Layer):
    """act(D^-1/2 (A + I) D^-1/2 x W + b), D = in-degree + 1. Source: Kipf and Welling, ICLR 2017, equation 2.

    Edge weights are row scalings. Parameters: ``weight`` [in, out], ``bias`` [out].
    """

    scaling = "gcn"

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        self.weight = nn.Parameter(torch.empty(spec.width_in, spec.width_out))
        self.bias = nn.Parameter(torch.empty(spec.width_out))

    def prepared_weight(self) -> torch.Tensor:
        return self.weight

    def update(
        self, aggregated: torch.Tensor, own: torch.Tensor | None = None, *, call: Call = autograd
    ) -> torch.Tensor:
        if self.spec.has_prepare:
            return self.finished([], self.bias, aggregated, call)
        return self.finished([(self.operand(aggregated), self.weight)], self.bias, None, call)


class SAGE(Layer):
    """act(x W_self + mean over in-edges of x W_neighbor + b). Source: Hamilton et al., NeurIPS 2017, mean aggregator.

    The mean of nothing is 0. Parameters: ``weight_self`` and ``weight_neighbor`` [in, out], ``bias`` [out].
    """

    scaling = "mean"

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        self.weight_self = nn.Parameter(torch.empty(spec.width_in, spec.width_out))
        self.weight_neighbor = nn.Parameter(torch.empty(spec.width_in, spec.width_out))
        self.bias = nn.Parameter(torch.empty(spec.width_out))

    def prepared_weight(self) -> torch.Tensor:
        return self.weight_neighbor

    def update(
        self, aggregated: torch.Tensor, own: torch.Tensor | None = None, *, call: Call = autograd
    ) -> torch.Tensor:
        assert own is not None, "a SAGE layer reads its own rows"
        products = [(self.operand(own), self.weight_self)]
        if self.spec.has_prepare:
            return self.finished(products, self.bias, aggregated, call)
        products.append((self.operand(aggregated), self.weight_neighbor))
        return self.finished(products, self.bias, None, call)


class GIN(Layer):
    """act(MLP((1 + eps) x + sum over in-edges of x)), eps = 0. Source: Xu et al., ICLR 2019, equation 4.1.

    MLP: Linear(in, hidden), ReLU, Linear(hidden, out); no batch normalisation. ``aggregate`` gives the sum, ``update``
    adds the own rows. Parameters: ``weight`` and ``bias`` of ``mlp.0`` [hidden, in] and ``mlp.2`` [out, hidden].
    """

    scaling = "sum"

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__(spec)
        assert not spec.has_prepare, "GIN sums rows before its MLP"
        hidden = spec.hidden or spec.width_out
        self.mlp = nn.Sequential(nn.Linear(spec.width_in, hidden), nn.ReLU(), nn.Linear(hidden, spec.width_out))
        self._totals: dict[tuple[int, int], tuple[torch.Tensor, ...]] = {}

    def update(
        self, aggregated: torch.Tensor, own: torch.Tensor | None = None, *, call: Call = autograd
    ) -> torch.Tensor:
        assert own is not None, "a GIN layer reads its own rows"
        first, last = (layer for layer in self.mlp if isinstance(layer, nn.Linear))
        weight = call(Transposed, first.weight)
        if own.layout == aggregated.layout:
            total = self._total(aggregated, own) if own.layout == torch.sparse_csr else call(Sum, aggregated, own)
            products = [(self.operand(total), weight)]
        else:  # sparse rows and their dense sums: (x + s) W = x W + s W
            products = [(self.operand(own), weight), (aggregated, weight)]
        inside = affine(products, first.bias, activation="relu", call=call)
        weight = call(Transposed, last.weight)
        return self.finished([(inside, weight)], last.bias, None, call)

    def _total(self, aggregated: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        key = (aggregated.values().data_ptr(), own.values().data_ptr())
        if key not in self._totals:
            total = from_scipy((to_scipy(aggregated) + to_scipy(own)).tocsr(), own.dtype).to(own.device)
            self._totals[key] = (total, aggregated, own)  # addresses name them, so they are kept alive
        return self._totals[key][0]
