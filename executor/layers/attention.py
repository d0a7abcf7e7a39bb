"""GAT as segments, the parts that ops of a program run one by one: maximum scores, then sums of weighted rows."""

from typing import Any

import torch
from torch import nn

from executor.kernels.edges.attention import Attention, Scores, quotient, quotient_backward, scores_of
from executor.layers.builtin import Functions, Layer
from executor.layers.local import LocalAdjacency
from executor.layers.sampled import SampledBlock
from executor.layers.tape import Call, autograd
from simgnn.model.spec import LayerSpec
from simgnn.program.kinds import Segment


class GAT(Layer):
    """act(concatenated heads of sum over in-edges and the vertex itself of a_ij x_j W + b).

    a_ij = softmax over j of leaky ReLU(attention_source . x_j W + attention_target . x_i W), slope 0.2, per head.
    Source: Velickovic et al., ICLR 2018, equations 1 to 5, without dropout of inputs and of attention; the last layer
    has one head. Parameters: ``weight`` [in, out], ``attention_source`` and ``attention_target`` [heads, out / heads],
    ``bias`` [out].

    ``maximum(csr, prepared, halo)``: maximum scores over a rank's edges, [n, heads]. If the edges are divided into
    parts, take the maximum over parts. ``aggregate`` then gives sums of weighted rows and of weights,
    [n, out + heads], which add up over parts; ``update`` divides them. If source rows arrive block by block,
    ``add_block`` replaces ``maximum`` and ``aggregate``.
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

    def functions(self) -> Functions:
        return {
            **super().functions(),
            Segment.MAXIMUM: self.maximum,
            Segment.HALO_GRADIENTS: self.halo_gradients,
            Segment.OWN_GRADIENTS: self.own_gradients,
            Segment.ADD_BLOCK: self.add_block,
            Segment.BLOCK_PAYLOAD: self.block_payload,
            Segment.BLOCK_GRADIENTS: self.block_gradients,
            Segment.SCORE_GRADIENTS: self.score_gradients,
        }

    def sampled_functions(self) -> Functions:
        return {**super().sampled_functions(), Segment.MAXIMUM: self.maximum_sampled}

    def prepared_weight(self) -> torch.Tensor:
        return self.weight

    @torch.no_grad()
    def maximum(self, csr: LocalAdjacency, prepared: torch.Tensor, halo: torch.Tensor | None = None) -> torch.Tensor:
        """Greatest scores [n, heads], from own rows [n, out] and halo rows [h, out]; without gradients."""
        scores = _scores(prepared, halo, self.attention_source, self.attention_target)
        return csr.attention.maximum(scores)

    def aggregate(  # type: ignore[override]
        self, csr: LocalAdjacency, prepared: torch.Tensor, *rows: torch.Tensor, call: Call = autograd
    ) -> torch.Tensor:
        """Sums of weighted rows and of weights [n, out + heads] from own rows, halo rows (none if h = 0) and maxima."""
        *halo, maximum = rows
        source, target = self.attention_source, self.attention_target
        return call(_Attend, csr.attention, prepared, halo[0] if halo else None, maximum, source, target)

    def sum_own(  # type: ignore[override]
        self, csr: LocalAdjacency, prepared: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Maxima [n, heads] and sums [n, out + heads] over the edges from own rows [n, out]."""
        return self.add_block(csr.own_attention, prepared, prepared)

    def add_halo(  # type: ignore[override]
        self, csr: LocalAdjacency, halo: torch.Tensor, prepared: torch.Tensor, *so_far: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Maxima and sums over all edges, from halo rows [h, out], own rows and the result of :meth:`sum_own`."""
        return self.add_block(csr.halo_attention, prepared, halo, *so_far)

    @torch.no_grad()
    def halo_gradients(
        self, csr: LocalAdjacency, gradient: torch.Tensor, prepared: torch.Tensor, maximum: torch.Tensor,
        halo: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """Gradients of halo rows [h, out], and the part of the gradients of own rows' target scores [n, heads] that
        comes from edges from the halo. Needs the gradient of all sums and the maxima over all edges. The gradient of
        ``attention_source`` is added to its ``.grad``."""
        vectors = self.attention_source
        scores = Scores(scores_of(halo, vectors), scores_of(prepared, self.attention_target))
        of_rows, _, of = csr.halo_attention.backward(gradient, halo, None, scores, maximum)
        self._learn(of_rows, of.source, halo, vectors)
        return of_rows, of.target

    @torch.no_grad()
    def own_gradients(
        self, csr: LocalAdjacency, gradient: torch.Tensor, prepared: torch.Tensor, maximum: torch.Tensor,
        of_target: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        """Return the gradient of own rows [n, out]. ``of_target`` [n, heads]: what :meth:`halo_gradients` returned."""
        scores = Scores(scores_of(prepared, self.attention_source), scores_of(prepared, self.attention_target))
        of_rows, _, of = csr.own_attention.backward(gradient, prepared, None, scores, maximum)
        self._learn(of_rows, of.source, prepared, self.attention_source)
        self._learn(of_rows, of.target.add_(of_target), prepared, self.attention_target)
        return of_rows

    @staticmethod
    def _learn(of_rows: torch.Tensor, of_scores: torch.Tensor, rows: torch.Tensor, vectors: nn.Parameter) -> None:
        """Add gradients through scores to ``of_rows``, the gradient of ``rows``, and to ``vectors.grad``."""
        add_through(of_rows, of_scores, vectors)
        part = gradient_of_vectors(of_scores, rows, vectors)
        vectors.grad = part if vectors.grad is None else vectors.grad.add_(part)

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

    @torch.no_grad()
    def add_block(
        self, kernel: Attention, prepared: torch.Tensor, rows: torch.Tensor, maximum: torch.Tensor | None = None,
        sums: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """Add one block of sources to a running softmax: return new maxima [n, heads] and sums [n, out + heads].

        ``prepared``: own rows; ``rows`` [m, out]: those of the block; ``maximum``, ``sums``: the previous results
        (None for the first block). The previous sums are rescaled to the new maxima.
        """
        scores = Scores(scores_of(rows, self.attention_source), scores_of(prepared, self.attention_target))
        greatest = kernel.maximum(scores)
        if maximum is not None:
            greatest = torch.maximum(greatest, maximum)
        added = kernel.forward(rows, None, scores, greatest)
        if maximum is not None and sums is not None:
            # a row that had no edge yet has no maximum, -inf, and sums of zero
            factor = torch.where(maximum == greatest, 1, torch.exp(maximum - greatest))
            width, heads = self.spec.width_out, self.spec.heads
            for part, each in ((slice(0, width), width // heads), (slice(width, None), 1)):
                shape = (len(prepared), heads, each)
                added[:, part].view(shape).addcmul_(sums[:, part].view(shape), factor[:, :, None])
        return greatest, added

    @torch.no_grad()
    def block_payload(self, gradient: torch.Tensor, prepared: torch.Tensor, maximum: torch.Tensor) -> torch.Tensor:
        """Return what other ranks need of each own row for the backward of its sums, [n, out + 3 heads]: gradient of
        its sums [n, out + heads], its score as a target, its maximum."""
        return torch.cat((gradient, scores_of(prepared, self.attention_target), maximum), 1)

    @torch.no_grad()
    def block_gradients(
        self, kernel: Attention, prepared: torch.Tensor, payload: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return gradients over the edges from own rows to the m target rows of a block: of own rows [n, out], without
        the part through scores; of their scores as sources [n, heads]; and this rank's part of the gradient of the
        targets' scores [m, heads]. ``payload``: what the owner of the block sent, from :meth:`block_payload`."""
        heads, width = self.spec.heads, self.spec.width_out
        gradient, target, maximum = (part.contiguous() for part in payload.split([width + heads, heads, heads], 1))
        scores = Scores(scores_of(prepared, self.attention_source), target)
        of_rows, _, of = kernel.backward(gradient, prepared, None, scores, maximum)
        return of_rows, of.source, of.target

    @torch.no_grad()
    def score_gradients(
        self, of_rows: torch.Tensor, of_source: torch.Tensor, of_target: torch.Tensor, prepared: torch.Tensor,
        *others: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        """Add the part through scores to the gradient of prepared rows, ``of_rows`` [n, out], in place, and add the
        gradients of the attention vectors to their ``.grad``. ``others``: the other ranks' parts of ``of_target``
        [n, heads], concatenated."""
        if others and len(of_target):
            of_target = torch.cat((of_target, *others)).view(-1, *of_target.shape).sum(0)
        for of, vectors in ((of_source, self.attention_source), (of_target, self.attention_target)):
            self._learn(of_rows, of, prepared, vectors)
        return of_rows

    def update(
        self, aggregated: torch.Tensor, own: torch.Tensor | None = None, *, call: Call = autograd
    ) -> torch.Tensor:
        rows = call(_Quotient, aggregated, self.spec.heads)
        return self.finished([], self.bias, rows, call)


def _scores(prepared: torch.Tensor, halo: torch.Tensor | None, source: torch.Tensor, target: torch.Tensor) -> Scores:
    of_source = scores_of(prepared, source)
    if halo is not None:
        of_source = torch.cat((of_source, scores_of(halo, source)))
    return Scores(of_source, scores_of(prepared, target))


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
        of_source = gradient_of_vectors(own, prepared, source)
        add_through(inner, own, source)
        add_through(inner, of.target, target)
        if halo is not None and remote is not None:
            of_source += gradient_of_vectors(of.source[len(prepared) :], halo, source)
            add_through(remote, of.source[len(prepared) :], source)
        return None, inner, remote, None, of_source, gradient_of_vectors(of.target, prepared, target)


class _AttendSources(torch.autograd.Function):
    """Computes the sums of :class:`_Attend` over a sampled block, with all source rows in one tensor."""

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
        add_through(every, of.source, source)
        add_through(every[:rows], of.target, target)
        return (
            None,
            every,
            None,
            gradient_of_vectors(of.source, prepared, source),
            gradient_of_vectors(of.target, own, target),
        )


def gradient_of_vectors(gradient: torch.Tensor, rows: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """Return the gradient [H, d] of the vectors of :func:`~executor.kernels.edges.attention.scores_of`."""
    heads, part = vectors.shape
    return torch.einsum("nh,nhd->hd", gradient, rows.view(len(rows), heads, part))


def add_through(into: torch.Tensor, gradient: torch.Tensor, vectors: torch.Tensor) -> None:
    """Add to ``into`` the gradient of rows through their :func:`~executor.kernels.edges.attention.scores_of`."""
    heads, part = vectors.shape
    into.view(len(into), heads, part).addcmul_(gradient[:, :, None], vectors)


class _Quotient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, aggregated: torch.Tensor, heads: int) -> torch.Tensor:
        aggregated = aggregated.contiguous()
        result = quotient(aggregated, heads)
        ctx.save_for_backward(aggregated, result)
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        aggregated, result = ctx.saved_tensors
        return quotient_backward(gradient, aggregated, result), None
