"""Batches are staged ahead of the training step."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from simgnn.policy import Choices, MiniBatchSchedule, Moves, Refusal, StepEnds
from simgnn.program.ops import Dependency

Count = Annotated[int, Field(ge=1, le=65_536)]


class Prefetch(MiniBatchSchedule):
    """A window of batches, filled in the background (DistDGL: Zheng et al., IA3 2020; RapidGNN).

    ``window`` 1 stages nothing ahead. ``staged``: ``rows``, all that training reads, on the device (RapidGNN); or
    ``blocks``, whose rows are pulled when the step before has ended (DistDGL). ``lanes``: threads that draw, at most
    one per batch of the window. ``across_epochs``: RapidGNN stages no rows of the next epoch before an epoch has ended;
    nothing is staged over a stop (:class:`simgnn.program.drain_points.Stops`). A queue of D drawn batches behind W
    threads (DistDGL) is a window of W + D + 1: with the batches that are being drawn and the one in training."""

    serves: ClassVar[tuple[Moves, ...]] = ("batches",)

    amounts: ClassVar[tuple[str, ...]] = ("window", "lanes")

    kind: Literal["prefetch"] = "prefetch"
    window: Count = Field(default=4, description="batches held at once, including the one in training")
    staged: Literal["rows", "blocks"] = Field(
        default="rows", description="part of later batches that is held: all rows, or only blocks"
    )
    lanes: Count = Field(default=1, description="threads that draw batches")
    across_epochs: bool = Field(
        default=False,
        description="stage rows of the next epoch before this one has ended (but the first, and before evaluations and "
        "checkpoints)",
    )

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        if self.lanes > 1 and choices.batching.asks_hosts:
            yield Refusal(
                "schedule", "lanes",
                f"got {self.lanes} with batching.kind = '{choices.batching.label}', whose hosts draw for one another, "
                "expected 1: they draw one batch of every rank together; or let each rank draw alone",
            )  # fmt: skip
        if self.staged == "blocks" and self.across_epochs:
            message = "got true with schedule.staged = 'blocks', expected false: no rows are staged ahead; remove it"
            yield Refusal("schedule", "across_epochs", message)
        if self.staged == "rows" and choices.batching.mini_batches and choices.placement.learns_rows:
            yield Refusal(
                "schedule", "staged",
                f"got 'rows' with {choices.placement.learns_rows}, expected 'blocks': the vectors change in every "
                "step, so rows must be pulled after the step before has ended (--set schedule.staged=blocks)",
            )  # fmt: skip

    def fitted(self, batches: int) -> "Prefetch":
        window = min(self.window, max(batches, 1))
        return self.model_copy(update={"window": window, "lanes": min(self.lanes, window)})

    @property
    def drawing_threads(self) -> int:
        return self.lanes

    @property
    def drawn_batches(self) -> int:
        return self.window

    def staged_batches(self, steps: int) -> int:
        if self.staged == "blocks":
            return 1
        # an epoch that nothing is staged beyond needs no more buffers than it has steps
        return self.window if self.across_epochs else min(self.window, steps)

    @property
    def pushes_beside(self) -> bool:
        return True

    def before_draw(self, ends: StepEnds) -> tuple[Dependency, ...]:
        """Let a batch wait until the batch whose place in the window it takes is released."""
        return (Dependency(ends.released, steps_back=self.window),)

    def before_rows(self, ends: StepEnds) -> tuple[Dependency, ...]:
        """Let the rows of a batch wait for a free buffer, and until the previous batch is staged: batches are staged
        one after the other, as RapidGNN's prefetcher and DistDGL's trainer do."""
        free = Dependency(ends.trained, steps_back=1)
        if self.staged == "rows":
            free = Dependency(ends.released, steps_back=self.window)
        return (free, Dependency(ends.staged, steps_back=1))

    def before_epoch(self, ends: StepEnds) -> tuple[Dependency, ...]:
        if self.staged == "blocks" or self.across_epochs:
            return ()
        return (Dependency(ends.trained, steps_back=1),)
