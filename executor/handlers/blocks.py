"""Sums over the edges from one block of rows at a time, as blocks arrive."""

from executor.handlers.attended_blocks import attend
from executor.handlers.collectives import age_check
from executor.handlers.segments import segment
from executor.state.buffers import Now
from executor.state.context import Handler, RankContext
from simgnn.errors import BackendError
from simgnn.program.ops import Op
from simgnn.program.program import Template


def aggregate(op: Op, template: Template, context: RankContext) -> Handler:
    """Run a layer's aggregation; with ``options["block"]``, add one block of rows to sums over edges or attention."""
    if "block" not in op.options:
        return segment(op, template, context)
    return add_block(op, template, context) if op.segment is None else attend(op, template, context)


def add_block(op: Op, template: Template, context: RankContext) -> Handler:
    """Add the weighted rows of rank ``options["block"]``, one block, to the sums over edges that the op writes.

    The op reads that rank's rows: first the buffer used on that rank itself, then, with several ranks, the buffer of
    arrived rows; and the previous sums, if there are any. ``options["scaling"]`` names the edge weights (gcn, mean...),
    ``options["transposed"]`` = 1 reverses the edges, ``options["finish"]`` = 1 scales the sums after the last block.
    ``options["oldest_epochs"]`` limits the age of a block; the op then reads the versions of all blocks from the buffer
    ``options["versions"]``.
    """
    blocks, root = context.blocks, int(op.options["block"])
    if blocks is None:
        raise BackendError(f"op '{op.name}' sums block by block, but this run has no blocks of edges")
    block = blocks.block(str(op.options["scaling"]), root, bool(op.options.get("transposed", 0)))
    target, versions = op.writes[0].buffer, str(op.options.get("versions", ""))
    rows = [access for access in op.reads if access.buffer not in (target, versions)]
    read = context.store.getter(rows[0] if context.rank == root or len(rows) == 1 else rows[1])
    put, finish = context.store.setter(op.writes[0]), bool(op.options.get("finish", 0))
    total = next((context.store.getter(a) for a in op.reads if a.buffer == target), None)
    check = age_check(op, context, [len(degrees) for degrees in blocks.degrees])

    def run(now: Now) -> None:
        check(now)
        put(now, block.add(read(now), None if total is None else total(now), finish))

    return run
