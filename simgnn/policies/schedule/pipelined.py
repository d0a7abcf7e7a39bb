"""Overlap on the full graph: halo rows and their gradients travel while ranks compute."""

from typing import ClassVar, Literal

from simgnn.policy import Moves, Schedule
from simgnn.program.ops import Nature, Op, Stream


class Pipelined(Schedule):
    """A layer sums own rows before halo rows have arrived, and sends gradients of halo rows before it computes the
    others. Losses equal those of ``bsp`` to the last bit.

    Where rows are late (a freshness such as ``one-epoch-stale``), a layer has all its rows when it begins, and sums
    them at once. The sums of gradients over ranks then have a stream and a process group of their own: behind late rows
    on one stream they would wait for these, and the next epoch for both."""

    serves: ClassVar[tuple[Moves, ...]] = ("rows",)

    kind: Literal["pipelined"] = "pipelined"

    @property
    def sums_own_first(self) -> bool:
        """Always true."""
        return True

    def stream(self, nature: Nature, op: Op) -> Stream:
        """The stream of the op's nature; sums of gradients beside late rows have one of their own."""
        if nature is Nature.SUMMING:
            return Stream(nature.value, group=nature.value)
        return super().stream(nature, op)
