"""Rows inside a built-in layer's update that no other op sees, which take memory all the same.

Widths by name; each has as many rows as the layer computes. Read off the modules in ``executor/layers``.
"""

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
