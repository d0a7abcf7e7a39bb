"""Rows, or their gradient, of which some elements are dropped while a model trains."""

import torch

from executor.kernels.dropout import drop_out
from executor.state.buffers import Now
from executor.state.context import Handler, RankContext
from simgnn.program.ops import Op
from simgnn.program.program import Template
from simgnn.sampling.draw.seeds import dropout_seed, layer_key


def dropout(op: Op, template: Template, context: RankContext) -> Handler:
    """Drop elements of the rows that the op reads first and writes. All ranks draw alike, so that copies of a vertex
    are equal.

    Second the op reads the vertices of these rows, and perhaps of more behind them: they decide which elements, see
    :mod:`executor.kernels.dropout`. ``options["dropped"]``: how many 65,536ths. Backward draws the mask of the layer
    again.
    """
    return _dropout(op, context, batched=False)


def batch_dropout(op: Op, template: Template, context: RankContext) -> Handler:
    """The same where each rank draws for its own mini-batch."""
    return _dropout(op, context, batched=True)


def _dropout(op: Op, context: RankContext, batched: bool) -> Handler:
    store = context.store
    read, vertices = (store.getter(access) for access in op.reads)
    put = store.setter(op.writes[0])
    dropped = int(op.options["dropped"])

    def run(now: Now) -> None:
        batch = (context.rank, now.step) if batched else None
        rows: torch.Tensor = read(now)
        key = layer_key(dropout_seed(context.seed, now.epoch, batch), op.layer)
        put(now, drop_out(rows, vertices(now)[: len(rows)], key, dropped))

    return run
