"""Sums over one block of edges at a time, as blocks of rows arrive; and the check that no row in use is too old."""

from collections.abc import Sequence

from executor.buffers import Now
from executor.handlers.context import Handler, RankContext
from executor.handlers.segments import segment
from simgnn.errors import BackendError
from simgnn.policies.blocks import NEVER
from simgnn.program.ops import Op
from simgnn.program.program import Template


def aggregate(op: Op, template: Template, context: RankContext) -> Handler:
    """A module's segment, or one block of a sum where ``options["block"]`` names one."""
    return add_block(op, template, context) if "block" in op.options else segment(op, template, context)


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
    check = None
    if "oldest_epochs" in op.options:
        check = _age_check(op, context, [len(degrees) for degrees in blocks.degrees])

    def run(now: Now) -> None:
        if check is not None:
            check(now)
        put(now, block.add(read(now), None if total is None else total(now), finish))

    return run


def _age_check(op: Op, context: RankContext, rows: Sequence[int]) -> Handler:
    """Refuses to go on where a block that others sent is older than the staleness bound, or was never sent at all: its
    version is the epoch in which it arrived, whatever was decided. ``rows`` [P]: of each rank's block."""
    name, oldest = str(op.options["versions"]), int(op.options["oldest_epochs"])
    read = context.store.getter(next(access for access in op.reads if access.buffer == name))
    others = [root for root, count in enumerate(rows) if count and root != context.rank]

    def check(now: Now) -> None:
        versions: list[int] = read(now).flatten().tolist()
        for root in others:
            version = versions[root]
            if version == NEVER or now.epoch - version > oldest:
                came = "was never sent" if version == NEVER else f"is of epoch {version + 1}"
                raise BackendError(
                    f"op '{op.name}': the block of rank {root} in use on rank {context.rank} in epoch {now.epoch + 1} "
                    f"{came}; expected at most {oldest} epochs old (freshness.bound_epochs): this is a fault of the "
                    "program or of the backend, not of the experiment"
                )

    return check
