"""A schedule for mini-batches: blocks are drawn ahead of training, rows are brought when a step begins."""

from pydantic import Field

from simgnn.policy import MiniBatchSchedule, StepEnds
from simgnn.program.ops import Dependency


class Ahead(MiniBatchSchedule):
    """``window`` batches are drawn at most, the one in training included."""

    window: int = Field(default=3, ge=1, le=100, description="batches whose blocks are held")

    def fitted(self, batches: int) -> "Ahead":
        return self.model_copy(update={"window": min(self.window, max(batches, 1))})

    @property
    def drawn_batches(self) -> int:
        return self.window

    def before_draw(self, ends: StepEnds) -> tuple[Dependency, ...]:
        return (Dependency(ends.released, steps_back=self.window),) if self.window > 1 else super().before_draw(ends)
