"""Sums over one block of edges at a time, as blocks of rows arrive."""

from executor.handlers.attended_blocks import attend
from executor.handlers.collectives import age_check
from executor.handlers.segments import segment
from executor.state.buffers import Now
from executor.state.context import Handler, RankContext
from simgnn.errors import BackendError
from simgnn.program.ops import Op
from simgnn.program.program import Template


def aggregate(op: Op, template: Template, context: RankContext) -> Handler:
    """A module's segment; or one block of a sum where ``options["block"]`` names one, of the module's attention where
    the op names a module."""
    if "block" not in op.options:
        return segment(op, template, context)
    return add_block(op, template, context) if op.segment is None else attend(op, template, context)


def add_block(op: Op, template: Template, context: RankContext) -> Handler:
    """Add to the sums that the op writes what the block of rank ``options["block"]`` gives them.

    The op reads that rank's rows: first its own (used on that rank itself), then, with several ranks, those that
    arrived; and the sums so far, where there are any. ``options["scaling"]`` names the sum, ``options["transposed"]`` =
    1 takes the edges the other way round, ``options["finish"]`` = 1 ends the sums. ``options["oldest_epochs"]`` with
    the versions of all blocks (read from the buffer ``options["versions"]``): how old a block in use may be.
    """
    blocks, root = context.blocks, int(op.options["block"])
    if blocks is None:
        raise BackendError(f"op '{op.name}' sums over blocks of edges, which this run has not made")
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
