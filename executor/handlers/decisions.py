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
from simgnn.errors import BackendError
from simgnn.policy import Action
from simgnn.program.ops import Access, Op
from simgnn.program.program import Template
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
    checked = context.control if is_external(action.owner) else None

    def run(now: Now) -> None:
        for name in persistent:
            store.release(name)
        here, read = where(now), [get(now) for get in getters]
        written = action.run(here, *read)
        for put, value in zip(setters, written, strict=True):
            put(now, value)
        decided = action.decided(here, read, written)
        if checked is not None:
            check_agreement(checked, action, {name: decided[name] for name in here.guards if name in decided})
        for name, value in decided.items():
            context.decide(now, name, value)

    return run


def check_agreement(control: GroupHandle, action: Action[Any], guards: Mapping[str, int]) -> None:
    """Raise :class:`BackendError` on all ranks if two ranks decided differently whether ops run (``guards``)."""
    if not guards or control.process_group is None:
        return
    mine = torch.tensor([guards[name] for name in sorted(guards)], dtype=torch.int64)
    found = [torch.empty_like(mine) for _ in control.members]
    dist.all_gather(found, mine, group=control.process_group)
    differing = [rank for rank, other in zip(control.members, found, strict=True) if not other.equal(found[0])]
    if differing:
        kind = type(action.owner)
        raise BackendError(
            f"{kind.__module__}.{kind.__qualname__} decided differently in {action.label}: rank {control.members[0]} "
            f"{found[0].tolist()}, rank {differing[0]} {found[differing[0]].tolist()} for {', '.join(sorted(guards))}; "
            "expected the same decision on all ranks: make it depend on the arguments only "
            f"({sys.modules[kind.__module__].__file__})"
        )


def _state_or_rows(access: Access, context: RankContext) -> Callable[[Now], Any]:
    get, buffer = context.store.getter(access), context.program.buffers[access.buffer]
    if buffer.persistent and buffer.depth == 1 and get(BEFORE) is None:
        context.store.setter(access)(BEFORE, context.store.zeros(buffer, BEFORE))

    def read(now: Now) -> Any:
        found = get(now)
        return context.store.zeros(buffer, now) if found is None else found

    return read
