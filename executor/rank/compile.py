"""Compile a program's templates to flat lists of callables, so that nothing is looked up while it runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from executor.handlers import handler_of
from executor.recording.metrics import Observe
from executor.state.buffers import Now
from executor.state.context import Handler, RankContext, Sent
from simgnn.program.dispatch import Order
from simgnn.program.drain_points import in_one_thread
from simgnn.program.program import Program, Template


@dataclass(frozen=True, slots=True)
class Step:
    """A compiled op. ``guard``: the op is skipped if this decision is zero. ``free``: slots of the buffer store
    whose tensors no later op of the template uses. ``touched``: slots that this op uses and that some op frees.
    ``replaced``: slots that it uses whose tensors ops may free or replace by others."""

    op_id: int
    name: str
    run: Handler
    guard: str | None
    free: tuple[int, ...]
    touched: tuple[int, ...]
    replaced: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CompiledTemplate:
    """The ops of a template that this rank runs, in program order. ``order``: the ops that each op waits for.
    ``serial``: see :func:`simgnn.program.drain_points.in_one_thread`."""

    name: str
    steps: tuple[Step, ...]
    order: Order
    serial: bool


class Coming(NamedTuple):
    """A turn (a step of training or of an evaluation) that has not begun yet."""

    template: CompiledTemplate
    now: Now


def compile_program(
    program: Program, context: RankContext, observers: Mapping[str, Observe]
) -> dict[str, CompiledTemplate]:
    """Compile all templates. ``observers``: by buffer, a function called with its value after a step's last write."""
    return {template.name: _compile(program, template, context, observers) for template in program.templates.values()}


def _compile(
    program: Program, template: Template, context: RankContext, observers: Mapping[str, Observe]
) -> CompiledTemplate:
    free = context.store.free_after(template)
    dying = {slot for slots in free for slot in slots}
    constants = {context.store.slot(name) for name in context.store.constants & program.buffers.keys()}
    last_write = {access.buffer: op.name for op in template.ops for access in op.writes}
    order = Order.of(program, template, [program.has(op, context.rank) for op in template.ops])
    steps, pending_free = [], set[int]()
    for op in template.ops:
        pending_free.update(free[template.index[op.name]])
        if op.name not in order.position:
            continue
        run = handler_of(op, template, context)
        for access in op.writes:
            if access.buffer in observers and last_write[access.buffer] == op.name:
                run = _observed(run, context.store.getter(access), observers[access.buffer])
        slots = {context.store.slot(access.buffer) for access in op.reads + op.writes}
        steps.append(
            Step(
                op_id=program.op_ids[template.name, op.name],
                name=op.name,
                run=run,
                guard=None if op.guard is None else op.guard.decision,
                free=tuple(sorted(pending_free)),
                touched=tuple(sorted(slots & dying)),
                replaced=tuple(sorted(slots - constants)),
            )
        )
        pending_free.clear()
    return CompiledTemplate(template.name, tuple(steps), order, in_one_thread(program, template, context.rank))


def _observed(run: Handler, read: Callable[[Now], torch.Tensor], observe: Observe) -> Handler:
    def run_and_tell(now: Now) -> Sent | None:
        sent = run(now)
        observe(now, read(now))
        return sent

    return run_and_tell
