"""One handler factory for every op kind: ``(op, template, context) -> callable``. A test checks that none lacks."""

from collections.abc import Mapping

from executor.handlers import (
    agreement,
    blocks,
    collectives,
    copies,
    decisions,
    fetch,
    pairwise,
    segments,
    tensors,
    training,
)
from executor.handlers.context import Factory, Handler, RankContext
from simgnn.program.kinds import OpKind
from simgnn.program.ops import Op
from simgnn.program.program import Template


def handler_of(op: Op, template: Template, context: RankContext) -> Handler:
    """What runs an op on this rank: the action of a policy, or the handler of its kind."""
    make = HANDLERS[op.kind] if op.action is None else decisions.act
    return make(op, template, context)


HANDLERS: Mapping[OpKind, Factory] = {
    OpKind.AGGREGATE: blocks.aggregate,
    OpKind.TRANSFORM: segments.segment,
    OpKind.ELEMENTWISE: tensors.elementwise,
    OpKind.LOSS: training.loss,
    OpKind.SELECT: agreement.select,
    OpKind.ENCODE: decisions.encode,
    OpKind.DECODE: decisions.decode,
    OpKind.ADD: tensors.add,
    OpKind.SAMPLE: decisions.sample,
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
