"""A schedule for the full graph: sums that steer the run travel on a stream of their own, beside the backward pass."""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from simgnn.policy import Schedule
from simgnn.program.dispatch import Observed, Ready
from simgnn.program.ops import Dependency, Nature, Op, Stream


class Beside(Schedule):
    """Control messages leave the stream of rows; of ops that are ready on another stream the last one runs next."""

    apart: bool = Field(default=True, description="control messages have a stream of their own")
    latest: bool = Field(default=True, description="of the ready ops the last one runs next, not the first")
    chained: bool = Field(default=False, description="each op waits for the one before it")

    def stream(self, nature: Nature, op: Op) -> Stream:
        if self.apart and op.transfer is not None and op.transfer.control:
            return Stream("control", group="control")
        return super().stream(nature, op)

    def after(self, nature: Nature, op: Op, before: Sequence[Op]) -> Sequence[Dependency]:
        return [Dependency(before[-1].name)] if self.chained and before else []

    def pick(self, ready: Sequence[Ready], observed: Observed, state: Any) -> tuple[int, Any]:
        return len(ready) - 1 if self.latest else 0, state
