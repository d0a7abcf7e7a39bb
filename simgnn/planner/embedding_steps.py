"""Where the ops that learn embeddings stand in a step: at its end, or beside the next one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from simgnn.emit.batches.embeddings import APPLY, PICK, SUM, PushOps
from simgnn.policy import MiniBatchSchedule
from simgnn.program.ops import Dependency, Op


@dataclass(frozen=True)
class TrainingOps:
    """The ops that train a staged batch, in program order: ``beside`` the ``chain``, which is one op after the other,
    and ``aside`` from it, when it has ended, beside the next step. The next step waits for the end of the chain."""

    chain: tuple[Op, ...]
    beside: tuple[Op, ...] = ()
    aside: tuple[Op, ...] = ()

    @property
    def trained(self) -> str:
        """The last op of the chain."""
        return self.chain[-1].name

    def starting(self, ready: str) -> list[Op]:
        """All ops: they wait for the op ``ready``, which completes the batch's rows, the chain for that of the step
        before."""
        chain = after(self.chain, (Dependency(ready), Dependency(self.trained, steps_back=1)))
        beside = after(self.beside, (Dependency(ready),)) if self.beside else []
        return [*beside, *chain, *self.aside]


def training_ops(
    training: Sequence[Op], pushed: PushOps | None, delay: int, schedule: MiniBatchSchedule
) -> TrainingOps:
    """``training``: from the first layer to the optimizer.

    What is pushed is applied at the end of its step, as docs/systems/distdgl.md has it. With a ``delay`` a step applies
    what the one before pushed, when all ranks of its host have their rows. Where the schedule lets ops run beside
    training, gradients travel and rows change beside it; ranks meet in the sum of gradients after that, so that rows of
    the step that follows are pulled from what has changed on every host.
    """
    if pushed is None:
        return TrainingOps(in_order(training))
    if not delay:
        return TrainingOps(in_order((*training, pushed.pick, *pushed.push, *pushed.apply)))
    if not schedule.pushes_beside:
        return TrainingOps(in_order((*pushed.apply, *training, pushed.pick, *pushed.push)))
    chain = list(in_order((*training, pushed.pick)))
    meet = next(place for place, op in enumerate(chain) if op.phase == "update")
    chain[meet] = replace(chain[meet], after=(*chain[meet].after, Dependency(APPLY)))
    applied = list(in_order(pushed.apply))
    applied[-1] = replace(applied[-1], after=(*applied[-1].after, Dependency(SUM, steps_back=1)))
    return TrainingOps(tuple(chain), tuple(applied), tuple(after(in_order(pushed.push), (Dependency(PICK),))))


def in_order(ops: Sequence[Op]) -> tuple[Op, ...]:
    """Ops, each after the one before."""
    return (ops[0], *(replace(op, after=(Dependency(before.name),)) for before, op in pairwise(ops)))


def after(ops: Sequence[Op], dependencies: tuple[Dependency, ...]) -> list[Op]:
    """A chain whose first op waits for more."""
    return [replace(ops[0], after=(*ops[0].after, *dependencies)), *ops[1:]]
