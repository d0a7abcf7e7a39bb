"""One handler factory for every op kind and every form: ``(op, template, context) -> callable``.

A test checks that the two tables are complete."""

from collections.abc import Mapping

from executor.handlers import (
    blocks,
    collectives,
    copies,
    decisions,
    dropout,
    fetch,
    pairwise,
    segments,
    tensors,
    training,
)
from executor.state.context import Factory, Handler, RankContext
from simgnn.program.kinds import Form, OpKind
from simgnn.program.ops import Op
from simgnn.program.program import Template


def handler_of(op: Op, template: Template, context: RankContext) -> Handler:
    """What runs an op on this rank: the handler of its form, the action of a policy, or the handler of its kind."""
    if op.form is not None:
        return FORM_HANDLERS[op.form](op, template, context)
    # a fetch asks its action where rows lie, and brings them itself
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
    OpKind.ADD: tensors.add,
    OpKind.SAMPLE: decisions.act,
    OpKind.OPTIMIZE: training.optimize,
    OpKind.EXCHANGE: pairwise.exchange,
    OpKind.BROADCAST: collectives.broadcast,
    OpKind.ALLREDUCE: collectives.allreduce,
    OpKind.ALLGATHER: collectives.allgather,
    OpKind.FETCH: fetch.fetch,
    OpKind.H2D: copies.to_device,
    OpKind.D2H: copies.to_host,
    OpKind.COPY: copies.copy,
    OpKind.PEER_READ: pairwise.peer_read,
    OpKind.BARRIER: collectives.barrier,
}
FORM_HANDLERS: Mapping[Form, Factory] = {
    Form.PUT: copies.put,
    Form.SPARSE_ROWS: copies.sparse,
    Form.OWN_ROWS: copies.to_host,
    Form.GREATER: tensors.keep_greater,
    Form.FIRST_ROWS: tensors.add_first,
    Form.DROPOUT: dropout.dropout,
    Form.BATCH_DROPOUT: dropout.batch_dropout,
    Form.RANK_MEANS: training.rank_mean_loss,
    Form.REMOTE_ROWS: fetch.fetch_remote,
}
