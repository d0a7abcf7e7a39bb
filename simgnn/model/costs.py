"""The cost of each segment (such as "update") of a layer: pieces of primitive work (:class:`simgnn.program.ops.Work`),
and rows inside the update that take memory but that no other op reads.

Sizes are of any type T: numbers, or the planner's columns. A dense product [rows, inner] @ [inner, outer] runs backward
as one product for the weights and, if the input needs a gradient, one for the input. Rows inside the update are given
by their width in elements, as the modules in ``executor/layers`` make them: one of each for every row of the layer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from simgnn.model.spec import LayerSpec

T = TypeVar("T")
EXPONENTIAL_PASSES = 3
"""The cost of an exponential, in reads or writes of an element."""


@dataclass(frozen=True)
class Piece(Generic[T]):
    """One piece of work: a primitive of the device curves and its sizes. ``locality``: name of the partition's table of
    cache reuse for its indices, if not the aggregation's. ``held``: elements that the piece computes beside its op's
    output, and holds until the op adds them to a buffer."""

    primitive: str
    sizes: Mapping[str, T | int]
    locality: str | None = None
    held: int = 0


@dataclass(frozen=True)
class RowSet(Generic[T]):
    """The rows that a segment reads: how many, and (sparse features) how many stored values. ``centred``: they stand
    for sparse rows minus their mean; one more column holds how many times the mean is to be subtracted."""

    rows: T
    nonzeros: T | None = None
    centred: bool = False


def product(rows: RowSet[T], inner: int, outer: int) -> list[Piece[T]]:
    """The forward of rows @ W. For centred rows it uses a copy of W with one more row, -(mean @ W)."""
    if rows.nonzeros is not None:
        extended: list[Piece[T]] = []
        if rows.centred:
            extended.append(Piece("elementwise", {"rows": inner, "width": outer, "passes": 1}))
            inner += 1
            extended.append(Piece("copy", {"rows": inner, "width": outer}, held=inner * outer))
        sizes: dict[str, T | int] = {"nonzeros": rows.nonzeros, "rows": rows.rows, "sources": inner, "width": outer}
        return [*extended, Piece("sparse_matmul", sizes, "locality/features/forward")]
    return [Piece("matmul", {"rows": rows.rows, "inner": inner, "outer": outer})]


def product_backward(rows: RowSet[T], inner: int, outer: int, input_gradient: bool) -> list[Piece[T]]:
    """The backward of rows @ W: the gradient of W, added to that from other rows, then the gradient of the rows. For
    centred rows the gradient of W has one more row; its product with the mean is subtracted from the others."""
    added = Piece[T]("elementwise", {"rows": inner, "width": outer, "passes": 3})
    if rows.nonzeros is not None:
        less: list[Piece[T]] = []
        if rows.centred:
            less.append(Piece("elementwise", {"rows": inner, "width": outer, "passes": 2}))
            inner += 1
        sizes: dict[str, T | int] = {"nonzeros": rows.nonzeros, "rows": inner, "sources": rows.rows, "width": outer}
        return [Piece("sparse_matmul", sizes, "locality/features/backward", inner * outer), *less, added]
    weights: dict[str, T | int] = {"rows": inner, "inner": rows.rows, "outer": outer, "crossed": 1}
    pieces: list[Piece[T]] = [Piece("matmul", weights, held=inner * outer), added]
    if input_gradient:
        pieces.append(Piece("matmul", {"rows": rows.rows, "inner": outer, "outer": inner}))
    return pieces


def pass_over(rows: T, width: int, passes: int) -> Piece[T]:
    """Elementwise work that reads or writes [rows, width] ``passes`` times."""
    return Piece("elementwise", {"rows": rows, "width": width, "passes": passes})


def aggregate(edges: T, rows: T, sources: T, width: int, weighted: bool) -> list[Piece[T]]:
    """The sum of source rows over the in-edges of each row; for backward, swap rows and sources. A ``weighted`` sum
    costs as much, and a pass that reads one weight an edge: our assumption, no machine's weighted sums were measured.
    """
    summed = Piece[T]("spmm", {"edges": edges, "rows": rows, "sources": sources, "width": width})
    return [summed, pass_over(edges, 1, 1)] if weighted else [summed]


def scores(layer: LayerSpec, rows: T, passes: int) -> Piece[T]:
    """Attention scores [rows, heads] of prepared rows, or their backward: every row is read, and may be written in
    place, ``passes`` times."""
    sizes: dict[str, T | int] = {"rows": rows, "width": layer.prepared_width, "heads": layer.heads, "passes": passes}
    return Piece("attention_scores", sizes)


def _attend(primitive: str, layer: LayerSpec, edges: T, rows: T, sources: T, width: int) -> Piece[T]:
    """A pass over edges that computes a result of width ``width`` for each of ``rows`` from gathered rows."""
    sizes: dict[str, T | int] = {"edges": edges, "rows": rows, "sources": sources, "width": width}
    return Piece(primitive, {**sizes, "heads": layer.heads})


def attention_maximum(layer: LayerSpec, edges: T, rows: T, sources: T) -> list[Piece[T]]:
    """The scores of sources and targets, then the largest score over the in-edges of each row, for each head."""
    greatest = _attend("attention_maximum", layer, edges, rows, sources, layer.heads)
    return [scores(layer, sources, 1), scores(layer, rows, 1), greatest]


def sums(layer: LayerSpec, edges: T, rows: T, sources: T) -> list[Piece[T]]:
    """The sums of source rows; with attention, scores and sums of weights and of weighted rows."""
    if not layer.attends:
        return aggregate(edges, rows, sources, layer.prepared_width, layer.weighted)
    summed = _attend("attention_sums", layer, edges, rows, sources, layer.prepared_width)
    return [scores(layer, sources, 1), scores(layer, rows, 1), summed]


def sums_backward(layer: LayerSpec, edges: T, rows: T, sources: T) -> list[Piece[T]]:
    """The backward of :func:`sums`. With attention: gradients of scores by target and of rows by source; then those of
    the attention vectors and of rows through their scores, which are computed again."""
    if not layer.attends:
        return aggregate(edges, sources, rows, layer.prepared_width, layer.weighted)
    reversed_ = _attend("attention_gradients", layer, edges, sources, rows, layer.prepared_width)
    return [reversed_, scores(layer, sources, 3), scores(layer, rows, 3)]


def attended_block(layer: LayerSpec, edges: T, rows: T, sources: T, added: bool) -> list[Piece[T]]:
    """Attention over one more block of ``sources`` rows: scores, maxima, weighted sums. If these are ``added`` to the
    sums of earlier blocks, those are also rescaled, as a new maximum changes their weights."""
    pieces: list[Piece[T]] = [
        *attention_maximum(layer, edges, rows, sources),
        _attend("attention_sums", layer, edges, rows, sources, layer.prepared_width),
    ]
    return [*pieces, pass_over(rows, layer.aggregated_width, 3)] if added else pieces


def attended_block_backward(layer: LayerSpec, edges: T, rows: T, targets: T, added: bool) -> list[Piece[T]]:
    """The backward of :func:`attended_block` for its source ``rows`` and one block of ``targets``: split the gradients
    that arrive, then compute the gradients of scores, by source and by target, and of rows."""
    pieces: list[Piece[T]] = [
        pass_over(targets, layer.aggregated_width + 2 * layer.heads, 2),
        scores(layer, rows, 1),
        _attend("attention_gradients", layer, edges, rows, targets, layer.prepared_width),
    ]
    return [*pieces, pass_over(rows, layer.aggregated_width, 3)] if added else pieces


def block_scores_backward(layer: LayerSpec, rows: T) -> list[Piece[T]]:
    """Gradients of rows and of both attention vectors through the scores of sources and targets, after all blocks."""
    return [pass_over(rows, layer.prepared_width, 2), scores(layer, rows, 4)]


def update(layer: LayerSpec, aggregated: RowSet[T], own: RowSet[T]) -> list[Piece[T]]:
    """The forward after the aggregation: dense products, then bias and activation in one pass in place."""
    rows = aggregated.rows
    pieces: list[Piece[T]] = []
    if layer.kind == "gin":
        if own.nonzeros is not None and aggregated.nonzeros is None:
            pieces += product(own, layer.width_in, layer.hidden)
            pieces.append(pass_over(rows, layer.hidden, 1))
        elif aggregated.nonzeros is None:
            pieces.append(pass_over(rows, layer.width_in, 3))
        pieces += product(aggregated, layer.width_in, layer.hidden)
        pieces.append(pass_over(rows, layer.hidden, 2))
        pieces += product(RowSet(rows), layer.hidden, layer.width_out)
        pieces.append(_finished(layer, rows))
        return pieces
    if layer.kind == "sage":
        pieces += product(own, layer.width_in, layer.width_out)
        pieces.append(pass_over(rows, layer.width_out, 1))
    if layer.order == "aggregate-first":
        pieces += product(aggregated, layer.width_in, layer.width_out)
    if layer.attends:  # sums divided by weights
        pieces.append(pass_over(rows, layer.width_out, 2))
    pieces.append(_finished(layer, rows))
    return pieces


def _finished(layer: LayerSpec, rows: T) -> Piece[T]:
    """Bias and activation; ELU computes an exponential of each element in forward only."""
    return pass_over(rows, layer.width_out, 2 + EXPONENTIAL_PASSES * (layer.follows == "elu"))


def dropout(layer: LayerSpec, rows: T) -> list[Piece[T]]:
    """Dropout of a layer's output, in place, or of its gradient. Drawing the mask counts as free."""
    return [pass_over(rows, layer.width_out, 2)]


def update_backward(
    layer: LayerSpec, aggregated: RowSet[T], own: RowSet[T], aggregated_gradient: bool, own_gradient: bool
) -> list[Piece[T]]:
    """The backward of :func:`update`: the activation's mask and the bias' sums in one pass, then the products.

    Without activation there are only the sums; but a gradient that passes through unchanged is copied."""
    rows = aggregated.rows
    copied = layer.order == "transform-first"
    pieces: list[Piece[T]] = [pass_over(rows, layer.width_out, 3 if layer.activation or copied else 1)]
    if layer.gradient_limit:
        pieces.append(pass_over(rows, layer.width_out, 3))  # its norm, then scaled
    if layer.attends:  # through the quotient, to sums and weights
        pieces.append(pass_over(rows, layer.width_out, 3))
    if layer.kind == "gin":
        pieces += product_backward(RowSet(rows), layer.hidden, layer.width_out, True)
        pieces.append(pass_over(rows, layer.hidden, 3))
        if own.nonzeros is not None and aggregated.nonzeros is None:
            pieces += product_backward(own, layer.width_in, layer.hidden, False)
        pieces += product_backward(aggregated, layer.width_in, layer.hidden, aggregated_gradient)
        if own_gradient:
            pieces.append(pass_over(rows, layer.width_in, 2))
        return pieces
    if layer.kind == "sage":
        pieces += product_backward(own, layer.width_in, layer.width_out, own_gradient)
    if layer.order == "aggregate-first":
        pieces += product_backward(aggregated, layer.width_in, layer.width_out, aggregated_gradient)
    return pieces


def saved_rows(layer: LayerSpec, summed_apart: bool) -> dict[str, int]:
    """The rows that the update saves for its backward beside its inputs and outputs.

    GIN: the input of its MLP (own plus summed rows, unless ``summed_apart``: each has a product of its own), and that
    of the MLP's second product. GAT: the weighted means of its rows, before bias and activation."""
    if layer.kind == "gin":
        total = {} if summed_apart else {"total": layer.width_in}
        return {**total, "inside": layer.hidden}
    return {"mean": layer.width_out} if layer.attends else {}


def reversing_rows(layer: LayerSpec) -> dict[str, int]:
    """The rows that the backward of the update holds beside the gradients that it reads and writes.

    GIN: the gradient of the MLP's inner rows. GAT: that of the means; without an activation it is the incoming
    gradient. Not modelled: on GPUs, torch's backward of the division briefly holds two more of these."""
    if layer.kind == "gin":
        return {"inside": layer.hidden}
    return {"mean": layer.width_out} if layer.attends and layer.activation else {}


class ReversedRows(NamedTuple):
    """Scratch memory of an update's backward, in elements per row: the gradients of weights plus ``width``, or
    ``least`` if that is more. ``copies_own``: the gradient of own rows is a copy, made last."""

    width: int
    least: int
    copies_own: bool


def passing_rows(layer: LayerSpec, through: bool, own_gradient: bool) -> ReversedRows:
    """Rows that the update's backward holds beside its outputs, gradients of sums (if ``through``) and of own rows.

    An activation makes a masked copy of the incoming gradient, which takes no scratch memory if it is itself the
    gradient of the sums (transform-first: no product follows the sums). A gradient limit makes one more copy, scaled
    down, before any output is written. GIN adds own rows to the sums, so both have one gradient: it is written for the
    sums, and copied for own rows after the MLP's gradients are freed."""
    made = (layer.activation + (layer.gradient_limit > 0)) * layer.width_out
    inside = sum(reversing_rows(layer).values())
    summed = layer.aggregated_width if through else 0
    if layer.adds_own_rows and own_gradient:
        return ReversedRows(max(made - summed, inside), 0, True)
    passed_on = through and layer.has_prepare
    written = inside + summed + (layer.width_in if own_gradient else 0)
    least = max(made - written, 0) if layer.gradient_limit else 0
    return ReversedRows(0 if passed_on or not made else layer.width_out, least, False)
