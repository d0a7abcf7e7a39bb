"""Rows inside a layer's update that no other op sees, which take memory all the same.

Widths, in elements; each has as many rows as the layer computes. Read off the modules in ``executor/layers``.
"""

from typing import NamedTuple

from simgnn.model.spec import LayerSpec


def saved_rows(layer: LayerSpec, summed_apart: bool) -> dict[str, int]:
    """What the update leaves for its reverse beside what it reads and writes.

    GIN: the input of its MLP (own and summed rows added up, unless they are multiplied each: ``summed_apart``), and
    that of the MLP's second product. GAT: the weighted means of its rows, before bias and activation.
    """
    if layer.kind == "gin":
        total = {} if summed_apart else {"total": layer.width_in}
        return {**total, "inside": layer.hidden}
    return {"mean": layer.width_out} if layer.attends else {}


def reversing_rows(layer: LayerSpec) -> dict[str, int]:
    """What the reverse of the update holds, beside the gradients that it reads and writes.

    GIN: the gradient of what its MLP holds inside. GAT: that of the means; without an activation it is the one that
    came in. Deviation: where torch's kernels reverse the quotient (GPUs), they hold two more of these for a moment.
    """
    if layer.kind == "gin":
        return {"inside": layer.hidden}
    return {"mean": layer.width_out} if layer.attends and layer.activation else {}


class ReversedRows(NamedTuple):
    """What the reverse of an update holds for a moment, in elements a row: ``width`` beside the gradients of weights,
    and at least ``least`` in all. ``copies_own``: the gradient of own rows is a copy, made after everything else."""

    width: int
    least: int
    copies_own: bool


def passing_rows(layer: LayerSpec, through: bool, own_gradient: bool) -> ReversedRows:
    """What the reverse of the update holds beside what it writes: gradients of the sums (``through``) and of own rows.

    An activation makes a masked copy of the gradient that comes in, unless one of the gradients that are written is
    that copy (of sums that nothing is multiplied by). A limit makes one more, scaled down, before anything is written.
    GIN's own and summed rows are added up, so their one gradient is written, and copied when the MLP's are gone.
    """
    made = (layer.activation + (layer.gradient_limit > 0)) * layer.width_out
    inside = sum(reversing_rows(layer).values())
    summed = layer.aggregated_width if through else 0
    if layer.adds_own_rows and own_gradient:
        return ReversedRows(max(made - summed, inside), 0, True)
    passed_on = through and layer.has_prepare
    written = inside + summed + (layer.width_in if own_gradient else 0)
    least = max(made - written, 0) if layer.gradient_limit else 0
    return ReversedRows(0 if passed_on or not made else layer.width_out, least, False)
