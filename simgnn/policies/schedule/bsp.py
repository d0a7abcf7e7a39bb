"""Bulk synchronous: no op runs ahead; communication overlaps computation only if the two share no buffer."""

from typing import ClassVar, Literal

from simgnn.policy import MiniBatchSchedule, Moves


class Bsp(MiniBatchSchedule):
    """Ops of a rank run in program order, each after the one before."""

    serves: ClassVar[tuple[Moves, ...]] = ("rows", "blocks", "batches", "chunks")

    kind: Literal["bsp"] = "bsp"
