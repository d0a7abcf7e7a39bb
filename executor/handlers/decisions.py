"""Ops that a policy carries out: selecting rows, encoding and decoding them, sampling. The policy comes by name."""

from typing import Any

from executor.buffers import Now
from executor.handlers.context import Handler, RankContext, policy_context
from simgnn.program.ops import Op
from simgnn.program.program import Template


def select(op: Op, template: Template, context: RankContext) -> Handler:
    """``policy.select(context, rows, state) -> state, mask, message``: which rows travel, and what of them.

    The op reads the rows first and writes mask and message. State is kept by sync point (``options["point"]``, else the
    op's name) and made by ``policy.init(context, shape)``; it is donated: select may change it and returns it.
    ``options["decision"]`` names the decision that the number of selected rows is recorded under.
    """
    policy, where = context.policy(op), policy_context(context, op)
    read, setters = context.store.getter(op.reads[0]), context.writes(op)
    point = str(op.options.get("point", op.name))
    decision = op.options.get("decision")

    def run(now: Now) -> None:
        rows, here = read(now), where(now)
        state = _state(context, policy, point, here, tuple(rows.shape))
        context.states[point], mask, message = policy.select(here, rows, state)
        for put, value in zip(setters, (mask, message), strict=True):
            put(now, value)
        if decision is not None:
            context.decisions[str(decision)] = int(mask.sum())

    return run


def encode(op: Op, template: Template, context: RankContext) -> Handler:
    """``policy.encode(context, *read) -> written``: rows become what travels."""
    return _applied(op, context, "encode")


def decode(op: Op, template: Template, context: RankContext) -> Handler:
    """``policy.decode(context, *read) -> written``.

    With a point, ``policy.commit(context, state, mask, decoded)`` follows, and the op reads the mask last.
    """
    point = op.options.get("point")
    if point is None:
        return _applied(op, context, "decode")
    policy, where = context.policy(op), policy_context(context, op)
    getters, put, key = context.reads(op), context.writes(op)[0], str(point)

    def run(now: Now) -> None:
        here = where(now)
        *packed, mask = [get(now) for get in getters]
        decoded = policy.decode(here, *packed)
        state = _state(context, policy, key, here, tuple(decoded.shape))
        context.states[key] = policy.commit(here, state, mask, decoded)
        put(now, decoded)

    return run


def sample(op: Op, template: Template, context: RankContext) -> Handler:
    """``policy(context, *read) -> written``: a sampler that is a pure function of the seeds that it reads and of where
    it is."""
    return _applied(op, context, "__call__")


def _applied(op: Op, context: RankContext, face: str) -> Handler:
    function, where = getattr(context.policy(op), face), policy_context(context, op)
    getters, setters = context.reads(op), context.writes(op)

    def run(now: Now) -> None:
        written = function(where(now), *[get(now) for get in getters])
        values = (written,) if len(setters) == 1 else written
        for put, value in zip(setters, values, strict=True):
            put(now, value)

    return run


def _state(context: RankContext, policy: Any, point: str, here: Any, shape: tuple[int, ...]) -> Any:
    if point not in context.states:
        context.states[point] = policy.init(here, shape)
    return context.states[point]
