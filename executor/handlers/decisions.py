"""Ops that run a policy's action: the action computes the buffers that the op writes from those that it reads.

State is a buffer that the op reads and writes; an action may change it in place and returns it. Before its first write,
state reads as zeros. It is allocated before the run, so that the first epoch takes as much memory as later epochs.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from executor.recording.failure import place_of
from executor.state.buffers import Now
from executor.state.context import GroupHandle, Handler, RankContext, policy_context
from simgnn.emit.batches.on_rank import RankAction
from simgnn.policy import Action, PolicyError, expect, wrong
from simgnn.program.ops import Access, Op
from simgnn.program.program import Template
from simgnn.program.sizes import Decision
from simgnn.registry import file_of, is_external

BEFORE = Now(0, 0, 0)
"""A turn in which every persistent buffer has its full size."""


def act(op: Op, template: Template, context: RankContext) -> Handler:
    """Return a handler that runs the op's policy action on the buffers that the op reads, stores the results in those
    that it writes, and records the policy's decisions. If a guard skips the op, its persistent buffers keep their rows;
    their memory is allocated before the run, as in :func:`executor.handlers.collectives.broadcast`."""
    action, where, store = context.action(op), policy_context(context, op, template), context.store
    zeros, setters = action.starts_from_zeros, context.writes(op)
    getters = [_state_or_rows(access, context) if zeros else store.getter(access) for access in op.inputs]
    buffers = context.program.buffers
    persistent = [access.buffer for access in op.writes if op.guard is not None and buffers[access.buffer].persistent]
    for name in persistent:
        store.reserve(name)
    # tests prove that shipped policies agree; if a user's do not, ranks would wait for each other forever
    owned = is_external(action.owner)
    check = result_check(op, action, context) if owned and not isinstance(action, RankAction) else None
    compares = owned and context.control is not None and type(action).shared is not Action.shared

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
        if compares or (owned and here.guards):
            guards = {name: decided[name] for name in here.guards if name in decided}
            check_agreement(context.control, action, {**guards, **action.shared(here, read, written)})
        for name, value in decided.items():
            context.decide(now, name, value)

    def run_of_user(now: Now) -> None:
        try:
            run(now)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            if place_of(error):
                raise
            fault = f"{type(error).__name__}: {error}; a method probably returned another value than its base states"
            raise PolicyError(f"{named(action)}: {fault} ({file_of(type(action.owner))})") from error

    return run_of_user if owned else run


def result_check(op: Op, action: Action[Any], context: RankContext) -> Callable[[Now, Any], None]:
    """Return a check of what a user's action returns: an array of the type, device and shape of each buffer that the op
    writes. Rows of width 1 may be numbers; of rows that a policy decides there may be fewer than planned."""
    planned = [(access, context.program.buffers[access.buffer]) for access in context.handed_over(op.writes)]
    likes = [torch.empty(0, device=context.store.place(buffer.name)) for _, buffer in planned]

    def check(now: Now, written: Any) -> None:
        if not isinstance(written, tuple) or len(written) != len(planned):
            raise wrong(action, "run", written, f"a tuple of {len(planned)} arrays")
        for (access, buffer), like, value in zip(planned, likes, written, strict=True):
            rows, shape = context.store.rows_of(access, now), getattr(value, "shape", ())
            if isinstance(buffer.rows, Decision) and shape:
                rows = min(rows, shape[0])
            planned_shape = (rows,) if buffer.width == 1 and len(shape) == 1 else (rows, buffer.width)
            expect(action, "run", value, planned_shape, buffer.dtype, like)

    return check


def check_agreement(control: GroupHandle | None, action: Action[Any], told: Mapping[str, float]) -> None:
    """Raise :class:`PolicyError` on all ranks if two ranks have different numbers: whether ops run, a state."""
    if control is None or control.process_group is None:
        return
    found: list[Any] = [None] * len(control.members)
    mine = {name: repr(int(number) if float(number).is_integer() else number) for name, number in told.items()}
    dist.all_gather_object(found, mine, group=control.process_group)
    for rank, other in zip(control.members, found, strict=True):
        for name in sorted(name for name in {*found[0], *other} if found[0].get(name) != other.get(name)):
            raise PolicyError(
                f"{named(action)} decided differently: {name} is {found[0].get(name, 'absent')} on rank "
                f"{control.members[0]} and {other.get(name, 'absent')} on rank {rank}; expected the same on all ranks: "
                f"make it depend on nothing that differs by rank ({file_of(type(action.owner))})"
            )


def named(action: Action[Any]) -> str:
    """Return the user's method that an action calls, or the action's class if it is the user's own."""
    own = type(action.owner if action.calls else action)
    return f"{own.__module__}.{own.__qualname__}.{action.calls or 'run'}"


def _state_or_rows(access: Access, context: RankContext) -> Callable[[Now], Any]:
    get, buffer = context.store.getter(access), context.program.buffers[access.buffer]
    if buffer.persistent and buffer.depth == 1 and get(BEFORE) is None:
        context.store.setter(access)(BEFORE, context.store.zeros(access, BEFORE))

    def read(now: Now) -> Any:
        found = get(now)
        return context.store.zeros(access, now) if found is None else found

    return read
