"""Overlap on the full graph: halo rows and their gradients travel while ranks sum their own rows."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from simgnn.policy import Choices, Moves, Refusal, Schedule


class Pipelined(Schedule):
    """A layer sums own rows before halo rows have arrived, and sends gradients of halo rows before it computes the
    others. Losses equal those of ``bsp`` to the last bit, with attention up to rounding."""

    serves: ClassVar[tuple[Moves, ...]] = ("rows",)

    kind: Literal["pipelined"] = "pipelined"

    @property
    def sums_own_first(self) -> bool:
        """Always true."""
        return True

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        """Reject vertex-cuts, whose ranks exchange sums and not rows, so that no sum can run during the exchange."""
        if choices.communication.cut == "vertex-cut":
            yield Refusal(
                "schedule", "kind",
                f"got 'pipelined' with communication.kind = '{choices.communication.label}', expected 'bsp': ranks of "
                "a vertex-cut exchange sums, so that nothing can be summed while rows travel",
            )  # fmt: skip
