"""Tables of the functions that make an op's handler: one by the kind of the op, one by its :class:`Form` (variant)."""

from collections.abc import Mapping
from functools import partial

from executor.handlers import blocks, collectives, decisions, pairwise, rows, segments, training
from executor.kernels.rows import max_rows
from executor.state.context import Factory, Handler, RankContext
from simgnn.program.kinds import Form, OpKind
from simgnn.program.ops import Op
from simgnn.program.program import Template


def handler_of(op: Op, template: Template, context: RankContext) -> Handler:
    """Return the function that runs an op on this rank, chosen by its :class:`Form`, its policy action, or its kind."""
    if op.form is not None:
        return FORM_HANDLERS[op.form](op, template, context)
    # the action of a fetch says only where rows lie
    acts = op.action is not None and op.kind is not OpKind.FETCH
    return (decisions.act if acts else HANDLERS[op.kind])(op, template, context)


HANDLERS: Mapping[OpKind, Factory] = {
    OpKind.AGGREGATE: blocks.aggregate,
    OpKind.TRANSFORM: segments.segment,
    OpKind.ELEMENTWISE: segments.segment,
    OpKind.LOSS: training.loss,
    OpKind.SELECT: decisions.act,
    OpKind.ENCODE: decisions.act,
    OpKind.DECODE: decisions.act,
    OpKind.ADD: rows.add,
    OpKind.SAMPLE: decisions.act,
    OpKind.OPTIMIZE: training.optimize,
    OpKind.EXCHANGE: pairwise.exchange,
    OpKind.BROADCAST: collectives.broadcast,
    OpKind.ALLREDUCE: collectives.allreduce,
    OpKind.ALLGATHER: collectives.allgather,
    OpKind.FETCH: pairwise.fetch,
    OpKind.H2D: rows.to_device,
    OpKind.D2H: rows.to_host,
    OpKind.COPY: rows.copy,
    OpKind.PEER_READ: pairwise.peer_read,
    OpKind.BARRIER: collectives.barrier,
}
FORM_HANDLERS: Mapping[Form, Factory] = {
    Form.PUT: rows.put,
    Form.SPARSE_ROWS: rows.sparse,
    Form.OWN_ROWS: rows.to_shared,
    Form.MERGED_ROWS: rows.merge,
    Form.OWN_VIEWS: decisions.act,
    Form.GREATER: partial(rows.add, combine=max_rows),
    Form.FIRST_ROWS: rows.add,
    Form.ZEROS: rows.zeros,
    Form.DROPOUT: training.dropout,
    Form.BATCH_DROPOUT: partial(training.dropout, batched=True),
    Form.RANK_MEANS: partial(training.loss, by_rank=True),
    Form.REMOTE_ROWS: partial(pairwise.fetch, remote=True),
}
