"""Attention over in-edges: maximum scores, weighted sums and their backward. CPU: Numba; other devices: torch.

Of an edge from source j to row i and a head h: score s = leaky(source_score[j, h] + target_score[i, h]), weight
w = exp(s - maximum[i, h]). A row's sums are N = sum of w * P[j] and D = sum of w; N / D is softmax attention whatever
``maximum`` is, as long as all parts of a row's sums have the same. Rows below ``looped`` have a self loop.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from executor.kernels.edges import attention_kernels as kernels
from executor.kernels.edges.structure import Structure
from executor.kernels.launch import array, compiled_for, default_threads, even_parts, launch

SLOPE = 0.2
"""Of the leaky ReLU below zero. Source: Velickovic et al., ICLR 2018, section 2.1."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Attention scores by head: ``source`` [n + h, H] of all source rows, ``target`` [n, H] of the rows that attend."""

    source: torch.Tensor
    target: torch.Tensor


@dataclass(frozen=True, eq=False)
class Attention:
    """The kernels of one adjacency. ``structure``: n rows over n + h sources, ``transpose``: its edges by source.

    ``ceiling``: limit of the exponent score - maximum in :meth:`backward`. If rows have changed since the maxima were
    computed, a score may exceed its maximum; ``ceiling`` = 0 then keeps weights at most 1, as those of a softmax are.
    """

    structure: Structure
    transpose: Structure
    looped: int
    threads: int | None = None
    ceiling: float = math.inf

    def maximum(self, scores: Scores) -> torch.Tensor:
        """Greatest score of each row and head, [n, H]; -inf where a row has no edge here."""
        out = torch.empty_like(scores.target)
        if not compiled_for(scores.source):
            edges = self._edges(scores)
            out.fill_(-torch.inf)
            index = edges.target[:, None].expand_as(edges.score)
            return out.scatter_reduce_(0, index, edges.score, "amax")
        arguments = (*self._arrays(self.structure), array(scores.source), array(scores.target), self.looped, SLOPE)
        self._launch((kernels.maxima, kernels.maxima_parallel), self.structure, 0, None, (*arguments, array(out)))
        return out

    def forward(
        self, inner: torch.Tensor, halo: torch.Tensor | None, scores: Scores, maximum: torch.Tensor
    ) -> torch.Tensor:
        """Return the sums [N | D], [n, H d + H], over ``inner`` [n, H d] and ``halo`` [h, H d] (None if h = 0)."""
        width, heads = inner.shape[1], maximum.shape[1]
        out = inner.new_empty((self.structure.rows, width + heads))
        if not compiled_for(inner):
            edges = self._edges(scores)
            weight = torch.exp(edges.score - maximum[edges.target])
            rows = _joined(inner, halo)[edges.source].view(-1, heads, width // heads)
            out.zero_()
            out[:, :width].index_add_(0, edges.target, (rows * weight[:, :, None]).flatten(1))
            out[:, width:].index_add_(0, edges.target, weight)
            return out
        arguments = (
            *self._arrays(self.structure), array(inner), _remote(inner, halo), array(scores.source),
            array(scores.target), array(maximum), self.looped, SLOPE, array(out),
        )  # fmt: skip
        self._launch((kernels.sums, kernels.sums_parallel), self.structure, 0, None, arguments)
        return out

    def backward(
        self, gradient: torch.Tensor, inner: torch.Tensor, halo: torch.Tensor | None, scores: Scores,
        maximum: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor | None, Scores]:  # fmt: skip
        """Return gradients of ``inner``, ``halo`` and scores from that of [N | D].

        The first two leave out the part through the scores. ``maximum`` is constant: N / D does not depend on it.
        """
        gradient, maximum = gradient.contiguous(), maximum.contiguous()
        if not compiled_for(inner):
            return self._backward_anywhere(gradient, inner, halo, scores, maximum)
        parts = (
            array(gradient), array(scores.source), array(scores.target), array(maximum), self.looped, SLOPE,
            self.ceiling,
        )  # fmt: skip
        found = Scores(torch.empty_like(scores.source), torch.empty_like(scores.target))
        rows = (array(inner), _remote(inner, halo))
        self._launch(
            (kernels.target_gradients, kernels.target_gradients_parallel), self.structure, 0, None,
            (*self._arrays(self.structure), *rows, *parts, array(found.target)),
        )  # fmt: skip
        gradients: list[torch.Tensor | None] = []
        for first, own in ((0, inner), (len(inner), halo)):
            if own is None or not len(own):
                gradients.append(None)
                continue
            out = torch.empty_like(own)
            arguments = (
                *self._arrays(self.transpose),
                array(own.contiguous()),
                *parts,
                array(found.source),
                array(out),
                first,
            )
            pair = kernels.source_gradients, kernels.source_gradients_parallel
            self._launch(pair, self.transpose, first, first + len(own), arguments)
            gradients.append(out)
        assert gradients[0] is not None or not len(inner)
        return torch.empty_like(inner) if gradients[0] is None else gradients[0], gradients[1], found

    def _backward_anywhere(
        self, gradient: torch.Tensor, inner: torch.Tensor, halo: torch.Tensor | None, scores: Scores,
        maximum: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor | None, Scores]:  # fmt: skip
        width, heads = inner.shape[1], maximum.shape[1]
        edges = self._edges(scores)
        weight = torch.exp((edges.score - maximum[edges.target]).clamp_(max=self.ceiling))
        sums = gradient[:, :width][edges.target].view(-1, heads, width // heads)
        both = _joined(inner, halo)
        rows = both[edges.source].view_as(sums)
        of_score = ((rows * sums).sum(2) + gradient[:, width:][edges.target]) * weight
        of_score = torch.where(edges.score > 0, of_score, SLOPE * of_score)
        found = Scores(torch.zeros_like(scores.source), torch.zeros_like(scores.target))
        found.source.index_add_(0, edges.source, of_score)
        found.target.index_add_(0, edges.target, of_score)
        of_rows = torch.zeros_like(both).index_add_(0, edges.source, (sums * weight[:, :, None]).flatten(1))
        return of_rows[: len(inner)], None if halo is None else of_rows[len(inner) :], found

    def _edges(self, scores: Scores) -> "_Edges":
        """Return every edge and self loop with its score, for devices on which torch does the work."""
        device = scores.source.device
        loops = torch.arange(self.looped, device=device)
        degrees = self.structure.indptr.diff()
        rows = torch.arange(self.structure.rows, device=device)
        source = torch.cat((self.structure.indices.long(), loops))
        target = torch.cat((torch.repeat_interleave(rows, degrees), loops))
        score = torch.nn.functional.leaky_relu(scores.source[source] + scores.target[target], SLOPE)
        return _Edges(source, target, score)

    @staticmethod
    def _arrays(structure: Structure) -> tuple[NDArray[np.int64], NDArray[Any]]:
        return structure.csr.indptr, structure.csr.indices

    def _launch(
        self, pair: tuple[Any, Any], structure: Structure, first: int, last: int | None, arguments: tuple[Any, ...]
    ) -> None:
        """Run a kernel on rows ``first`` to ``last`` of a structure. ``pair``: its serial and its parallel function."""
        bounds = first + structure.bounds(self.threads or default_threads(), first, last)
        launch(*pair, arguments, bounds)


@dataclass(frozen=True, eq=False)
class _Edges:
    source: torch.Tensor
    target: torch.Tensor
    score: torch.Tensor


def _joined(inner: torch.Tensor, halo: torch.Tensor | None) -> torch.Tensor:
    return inner if halo is None else torch.cat((inner, halo))


def _remote(inner: torch.Tensor, halo: torch.Tensor | None) -> NDArray[Any]:
    if halo is None:
        return np.empty((0, inner.shape[1]), array(inner).dtype)
    return array(halo.contiguous())


def scores_of(rows: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """Return the dot products [n, H] of each head's part of the rows [n, H d] with its vector [H, d]; no autograd."""
    heads, part = vectors.shape
    if not compiled_for(rows):
        return torch.einsum("nhd,hd->nh", rows.view(len(rows), heads, part), vectors).contiguous()
    out = rows.new_empty((len(rows), heads))
    arguments = (array(rows), array(vectors.contiguous().view(1, -1)), array(out))
    launch(kernels.row_scores, kernels.row_scores_parallel, arguments, even_parts(len(out), default_threads()))
    return out


def quotient(sums: torch.Tensor, heads: int) -> torch.Tensor:
    """Divide weighted sums by the sums of weights: N / D, [n, H d], from ``sums`` = [N | D]; no autograd."""
    width = sums.shape[1] - heads
    out = sums.new_empty((len(sums), width))
    if not compiled_for(sums):
        shape = (len(sums), heads, width // heads)
        return torch.div(sums[:, :width].view(shape), sums[:, width:, None], out=out.view(shape)).flatten(1)
    arguments = (array(sums), array(out))
    launch(kernels.quotients, kernels.quotients_parallel, arguments, even_parts(len(out), default_threads()))
    return out


def quotient_backward(gradient: torch.Tensor, sums: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Return the gradient of ``sums`` = [N | D] from ``gradient``, that of the ``result`` of :func:`quotient`."""
    gradient, width = gradient.contiguous(), result.shape[1]
    out = torch.empty_like(sums)
    if not compiled_for(sums):
        shape = (len(sums), sums.shape[1] - width, -1)
        of_sums = gradient.view(shape) / sums[:, width:, None]
        out[:, :width] = of_sums.flatten(1)
        out[:, width:] = -(of_sums * result.view(shape)).sum(2)
        return out
    arguments = (array(gradient), array(sums), array(result), array(out))
    parts = even_parts(len(out), default_threads())
    launch(kernels.quotient_gradients, kernels.quotient_gradients_parallel, arguments, parts)
    return out
