"""Bulk synchronous: nothing runs ahead, and communication is beside computation only where no buffer orders the two."""

from typing import Literal

from simgnn.policy import MiniBatchSchedule, StepEnds
from simgnn.program.ops import Dependency


class Bsp(MiniBatchSchedule):
    """Ops of a rank run in program order, each after the one before."""

    kind: Literal["bsp"] = "bsp"

    def fitted(self, batches: int) -> "Bsp":
        """The schedule itself: nothing is staged ahead."""
        return self

    @property
    def drawing_threads(self) -> int:
        """One batch, the one that is trained next."""
        return 1

    @property
    def drawn_batches(self) -> int:
        """The one batch in training."""
        return 1

    def staged_batches(self, steps: int) -> int:
        """The one batch in training."""
        return 1

    @property
    def pushes_beside(self) -> bool:
        """False: a push is a part of its step."""
        return False

    def before_draw(self, ends: StepEnds) -> tuple[Dependency, ...]:
        """The end of the step before."""
        return tuple(Dependency(op, steps_back=1) for op in dict.fromkeys((ends.trained, ends.staged)))

    def before_rows(self, ends: StepEnds) -> tuple[Dependency, ...]:
        """The end of the step before."""
        return self.before_draw(ends)

    def before_epoch(self, ends: StepEnds) -> tuple[Dependency, ...]:
        """Nothing: an epoch begins like any step."""
        return ()
