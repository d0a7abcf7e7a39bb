"""Ops that run a policy's action: the action computes the buffers that the op writes from those that it reads.

State is a buffer that the op reads and writes; an action may change it in place and returns it. Before its first write,
state reads as zeros. It is allocated before the run, so that the first epoch takes as much memory as later epochs.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from executor.state.buffers import Now
from executor.state.context import GroupHandle, Handler, RankContext, policy_context
from simgnn.emit.batches.on_rank import RankAction
from simgnn.errors import BackendError
from simgnn.policy import Action, expect, wrong
from simgnn.program.ops import Access, Op
from simgnn.program.program import Template
from simgnn.program.sizes import Decision
from simgnn.registry import is_external

BEFORE = Now(0, 0, 0)
"""A turn in which every persistent buffer has its full size."""


def act(op: Op, template: Template, context: RankContext) -> Handler:
    """Return a handler that runs the op's policy action on the buffers that the op reads, stores the results in those
    that it writes, and records the policy's decisions. If a guard skips the op, its persistent buffers keep their rows;
    their memory is allocated before the run, as in :func:`executor.handlers.collectives.broadcast`."""
    action, where, store = context.action(op), policy_context(context, op, template), context.store
    zeros, setters = action.starts_from_zeros, context.writes(op)
    getters = [_state_or_rows(access, context) if zeros else store.getter(access) for access in op.reads]
    buffers = context.program.buffers
    persistent = [access.buffer for access in op.writes if op.guard is not None and buffers[access.buffer].persistent]
    for name in persistent:
        store.reserve(name)
    # tests prove that shipped policies agree; if a user's do not, ranks would wait for each other forever
    owned = is_external(action.owner)
    check = result_check(op, action, context) if owned and not isinstance(action, RankAction) else None

    def run(now: Now) -> None:
        for name in persistent:
            store.release(name)
        here, read = where(now), [get(now) for get in getters]
        written = action.run(here, *read)
        if check is not None:
            check(now, written)
        for put, value in zip(setters, written, strict=True):
            put(now, value)
        decided = action.decided(here, read, written)
        if owned and context.control is not None:
            guards = {name: decided[name] for name in here.guards if name in decided}
            check_agreement(context.control, action, {**guards, **action.shared(here, read, written)})
        for name, value in decided.items():
            context.decide(now, name, value)

    return run


def result_check(op: Op, action: Action[Any], context: RankContext) -> Callable[[Now, Any], None]:
    """Return a check of what a user's action returns: an array of the type, device and shape of each buffer that the op
    writes. Rows of width 1 may be numbers; of rows that a policy decides there may be fewer than planned."""
    planned = [context.program.buffers[access.buffer] for access in context.handed_over(op.writes)]
    likes = [torch.empty(0, device=context.store.place(buffer.name)) for buffer in planned]

    def check(now: Now, written: Any) -> None:
        if not isinstance(written, tuple) or len(written) != len(planned):
            raise wrong(action, "run", written, f"a tuple of {len(planned)} arrays")
        for buffer, like, value in zip(planned, likes, written, strict=True):
            rows, shape = context.store.rows(buffer.rows, now), getattr(value, "shape", ())
            if isinstance(buffer.rows, Decision) and shape:
                rows = min(rows, shape[0])
            planned_shape = (rows,) if buffer.width == 1 and len(shape) == 1 else (rows, buffer.width)
            expect(action, "run", value, planned_shape, buffer.dtype, like)

    return check


def check_agreement(control: GroupHandle, action: Action[Any], told: Mapping[str, float]) -> None:
    """Raise :class:`BackendError` on all ranks if two ranks have different numbers: whether ops run, a state."""
    if not told or control.process_group is None:
        return
    mine = torch.tensor([told[name] for name in sorted(told)], dtype=torch.float64)
    found = [torch.empty_like(mine) for _ in control.members]
    dist.all_gather(found, mine, group=control.process_group)
    differs = [not other.view(torch.int64).equal(found[0].view(torch.int64)) for other in found]  # NaN equals NaN
    if any(differs):
        kind, other = type(action.owner), differs.index(True)
        first, second = ([int(n) if n.is_integer() else n for n in found[at].tolist()] for at in (0, other))
        raise BackendError(
            f"{kind.__module__}.{kind.__qualname__} decided differently in {action.label}: rank {control.members[0]} "
            f"{first}, rank {control.members[other]} {second} for {', '.join(sorted(told))}; expected the same on all "
            f"ranks: make it depend on nothing that differs by rank ({sys.modules[kind.__module__].__file__})"
        )


def _state_or_rows(access: Access, context: RankContext) -> Callable[[Now], Any]:
    get, buffer = context.store.getter(access), context.program.buffers[access.buffer]
    if buffer.persistent and buffer.depth == 1 and get(BEFORE) is None:
        context.store.setter(access)(BEFORE, context.store.zeros(buffer, BEFORE))

    def read(now: Now) -> Any:
        found = get(now)
        return context.store.zeros(buffer, now) if found is None else found

    return read
