"""Bulk synchronous: no op runs ahead; communication overlaps computation only if the two share no buffer."""

from typing import Literal

from simgnn.policy import MiniBatchSchedule


class Bsp(MiniBatchSchedule):
    """Ops of a rank run in program order, each after the one before."""

    kind: Literal["bsp"] = "bsp"
