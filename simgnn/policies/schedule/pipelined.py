"""Overlap on the full graph: halo rows and their gradients travel while ranks sum their own rows."""

from typing import ClassVar, Literal

from simgnn.policy import Moves, Schedule


class Pipelined(Schedule):
    """A layer sums own rows before halo rows have arrived, and sends gradients of halo rows before it computes the
    others. Losses equal those of ``bsp`` to the last bit, with attention up to rounding."""

    serves: ClassVar[tuple[Moves, ...]] = ("rows",)

    kind: Literal["pipelined"] = "pipelined"

    @property
    def sums_own_first(self) -> bool:
        """Always true."""
        return True
