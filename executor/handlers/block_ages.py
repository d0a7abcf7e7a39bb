"""The check of an op that sums over blocks: no block in use is older than the bound that the op states."""

from collections.abc import Sequence

from executor.state.context import Handler, RankContext
from simgnn.emit.guarded_blocks import check_ages
from simgnn.program.ops import Op


def age_check(op: Op, context: RankContext, rows: Sequence[int]) -> Handler:
    """:func:`simgnn.emit.guards.check_ages` with the bound ``options["oldest_epochs"]``; an op without it checks
    nothing. ``rows`` [P]: of each rank's block; ``options["versions"]``: the buffer of versions."""
    if "oldest_epochs" not in op.options:
        return lambda now: None
    name, oldest = str(op.options["versions"]), int(op.options["oldest_epochs"])
    read = context.store.getter(next(access for access in op.reads if access.buffer == name))
    others = [root for root, count in enumerate(rows) if count and root != context.rank]
    return lambda now: check_ages(context.rank, now.epoch, read(now), others, oldest)
