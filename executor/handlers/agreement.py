"""Guards: what each rank wants, what all ranks agree on, and the versions of what was sent."""

from collections.abc import Mapping

import torch

from executor.buffers import Now
from executor.handlers import decisions
from executor.handlers.context import Factory, Handler, RankContext
from simgnn.errors import BackendError
from simgnn.policies.blocks import NEVER
from simgnn.program.ops import Op
from simgnn.program.program import Template


def select(op: Op, template: Template, context: RankContext) -> Handler:
    """The face of a policy that ``options["face"]`` names: "flag" and "agree" below; else rows that travel."""
    return FACES.get(str(op.options.get("face", "")), decisions.select)(op, template, context)


def flag(op: Op, template: Template, context: RankContext) -> Handler:
    """``policy.change(rows, sent) -> change``: has what this rank holds moved too far from what it sent last?

    Reads the rows and the copy of what was sent (nothing yet: yes); writes a flag (uint8 [1, 1]) and the change
    (float64 [1, 2]: gap, limit).
    """
    policy = context.policy(op)
    read, read_sent = (context.store.getter(access) for access in op.reads)
    put_flag, put_change = (context.store.setter(access) for access in op.writes)

    def run(now: Now) -> None:
        sent = read_sent(now)
        change = None if sent is None else policy.change(read(now), sent)
        wants = change is None or not change.small
        put_flag(now, torch.tensor([[int(wants)]], dtype=torch.uint8))
        put_change(now, torch.tensor([[0.0, 0.0] if change is None else list(change)], dtype=torch.float64))

    return run


def agree(op: Op, template: Template, context: RankContext) -> Handler:
    """``policy.active(epoch, versions, flags) -> active``: which roots send, the same on all ranks.

    Reads the versions (int64 [P, 1], made here at first) and, where decisions depend on values, the flags of all ranks
    (uint8 [P, 1]) and this rank's change; writes the versions and what is active (uint8 [P, 1]). That of root r is the
    guard ``options["point"]/root-r``, where the template has it.
    """
    policy, ranks = context.policy(op), context.program.ranks
    versions, put_versions = context.store.getter(op.reads[0]), context.store.setter(op.writes[0])
    put_active = context.store.setter(op.writes[1])
    told = [context.store.getter(access) for access in op.reads[1:]]
    guarded = {other.guard.decision for other in template.ops if other.guard is not None}
    names = [f"{op.options['point']}/root-{root}" for root in range(ranks)]

    def run(now: Now) -> None:
        known = versions(now)
        if known is None:
            known = torch.full((ranks, 1), NEVER, dtype=torch.int64)
        flags, change = [get(now).flatten() for get in told] if told else (None, None)
        active = policy.active(now.epoch, known.flatten().tolist(), None if flags is None else flags.tolist())
        if change is not None and known[context.rank, 0] != NEVER and not active[context.rank]:
            _check_change(op, context, now, *change.tolist())
        put_versions(now, known)
        put_active(now, torch.tensor(active, dtype=torch.uint8)[:, None])
        for name, sends in zip(names, active, strict=True):
            if name in guarded:
                context.decide(now, name, int(sends))

    return run


def _check_change(op: Op, context: RankContext, now: Now, gap: float, limit: float) -> None:
    """A rank that does not send must have changed little, whatever was agreed."""
    if not gap <= limit:
        raise BackendError(
            f"op '{op.name}': rank {context.rank} does not send in epoch {now.epoch + 1} although its block has moved "
            f"by {gap:.6g}; expected at most {limit:.6g} (freshness.bound_change): this is a fault of the backend, "
            "not of the experiment"
        )


FACES: Mapping[str, Factory] = {"flag": flag, "agree": agree}
