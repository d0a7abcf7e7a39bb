"""Bytes that training on a whole graph in one memory takes, in closed form."""

from collections.abc import Sequence


def vertex_data_bytes(vertices: int, widths: Sequence[int], item_bytes: int) -> int:
    """Return the bytes of all rows and their gradients: input features, and the output of each layer. ``widths``: of
    the input rows, then of each layer's output. Source: HongTu's table of data sizes, which counts gradients of
    features, too."""
    return 2 * item_bytes * vertices * sum(widths)


def gcn_intermediate_bytes(vertices: int, widths: Sequence[int], item_bytes: int) -> int:
    """Return the bytes of what the layers of a GCN keep for the backward pass beside :func:`vertex_data_bytes`: for
    each vertex two rows of the width of each hidden layer's output, and three of that of the last. Source: HongTu's
    table of data sizes, from which these numbers of rows are inferred."""
    *hidden, last = widths[1:]
    return item_bytes * vertices * (2 * sum(hidden) + 3 * last)
