"""Bulk synchronous: one op after the other, communication never beside computation."""

from typing import Literal

from simgnn.policies.schedule.base import Schedule, StepEnds
from simgnn.program.ops import Dependency


class Bsp(Schedule):
    """Ops of a rank run in program order, each after the one before."""

    kind: Literal["bsp"] = "bsp"

    def fitted(self, batches: int) -> "Bsp":
        """See :class:`Schedule`."""
        return self

    @property
    def drawing_threads(self) -> int:
        """See :class:`Schedule`."""
        return 1

    @property
    def drawn_batches(self) -> int:
        """See :class:`Schedule`."""
        return 1

    def staged_batches(self, steps: int) -> int:
        """See :class:`Schedule`."""
        return 1

    @property
    def pushes_beside(self) -> bool:
        """See :class:`Schedule`."""
        return False

    def before_draw(self, ends: StepEnds) -> tuple[Dependency, ...]:
        """See :class:`Schedule`."""
        return tuple(Dependency(op, steps_back=1) for op in dict.fromkeys((ends.trained, ends.staged)))

    def before_rows(self, ends: StepEnds) -> tuple[Dependency, ...]:
        """See :class:`Schedule`."""
        return self.before_draw(ends)

    def before_epoch(self, ends: StepEnds) -> tuple[Dependency, ...]:
        """See :class:`Schedule`."""
        return ()
