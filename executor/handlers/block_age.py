"""The check that no block in use is older than its staleness bound."""

from collections.abc import Sequence

from executor.buffers import Now
from executor.handlers.context import Handler, RankContext
from simgnn.errors import BackendError
from simgnn.policies.blocks import NEVER
from simgnn.program.ops import Op


def age_check(op: Op, context: RankContext, rows: Sequence[int]) -> Handler:
    """Refuses to go on where a block that others sent is older than ``options["oldest_epochs"]``, or was never sent at
    all: its version is the epoch in which it arrived, whatever was decided. An op without that option checks nothing.

    ``rows`` [P]: of each rank's block. Versions are read from the buffer ``options["versions"]``.
    """
    if "oldest_epochs" not in op.options:
        return lambda now: None
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
