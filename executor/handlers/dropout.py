"""Rows, or their gradient, of which some elements are dropped while a model trains."""

import torch

from executor.buffers import Now
from executor.handlers.context import Handler, RankContext
from executor.kernels.dropout import drop_out
from simgnn.program.ops import Op
from simgnn.sampling.seeds import dropout_seed, layer_key


def dropout(op: Op, context: RankContext) -> Handler:
    """Drop elements of the rows that the op reads first and writes. Second it reads the vertices of these rows, and
    perhaps of more behind them: they and ``options["drawn"]`` decide which, see :mod:`executor.kernels.dropout`.

    ``"epoch"``: all ranks draw alike, so that copies of a vertex do; ``"batch"``: each draws for its own batch.
    ``options["dropped"]``: how many 65,536ths. Backward names the op that it belongs to by the layer alone: the mask is
    drawn again.
    """
    store = context.store
    read, vertices = (store.getter(access) for access in op.reads)
    put = store.setter(op.writes[0])
    dropped, batched = int(op.options["dropped"]), op.options["drawn"] == "batch"

    def run(now: Now) -> None:
        batch = (context.rank, now.step) if batched else None
        rows: torch.Tensor = read(now)
        key = layer_key(dropout_seed(context.seed, now.epoch, batch), op.layer)
        put(now, drop_out(rows, vertices(now)[: len(rows)], key, dropped))

    return run
