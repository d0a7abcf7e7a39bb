"""Adding rows, without a second rank."""

from collections.abc import Callable, Sequence

import torch

from executor.kernels.rows import add_rows, max_rows
from executor.state.buffers import Now
from executor.state.context import Handler, RankContext
from simgnn.errors import BackendError
from simgnn.program.ops import Op
from simgnn.program.program import Template

Combine = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Sequence[int]], object]
"""Puts rows together: (rows that are changed, which of them [k], rows [k, F] that arrived, how many of each rank)."""


def add(op: Op, template: Template, context: RankContext) -> Handler:
    """Add what the op reads first to what it writes, in place.

    With a route, the first are rows that arrived, peers ascending, and each is added to the local row that the route
    names; rows named several times take all their parts, in the order of the peers, so that sums are repeatable.
    """
    if op.route is not None:
        return _arrived(op, context, add_rows)
    read, target = context.store.getter(op.reads[0]), context.store.getter(op.writes[0])

    def add_all(now: Now) -> None:
        target(now).add_(read(now))

    return add_all


def add_first(op: Op, template: Template, context: RankContext) -> Handler:
    """Add what the op reads to the first rows of what it writes, in place."""
    read, target = context.store.getter(op.reads[0]), context.store.getter(op.writes[0])

    def add_part(now: Now) -> None:
        part = read(now)
        target(now)[: len(part)].add_(part)

    return add_part


def keep_greater(op: Op, template: Template, context: RankContext) -> Handler:
    """The greater of each element, of rows that arrived and of those that the op's route names, in place."""
    return _arrived(op, context, max_rows)


def _arrived(op: Op, context: RankContext, combine: Combine) -> Handler:
    read, target = context.store.getter(op.reads[0]), context.store.getter(op.writes[0])
    route = context.route(op)
    rows, counts = route.arriving, route.arriving_counts
    if rows is None:
        raise BackendError(f"op '{op.name}' adds along the route '{op.route}', which names no local rows")

    def run(now: Now) -> None:
        combine(target(now), rows, read(now), counts)

    return run
