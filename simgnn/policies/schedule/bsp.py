"""Bulk synchronous: nothing runs ahead, and communication is beside computation only where no buffer orders the two."""

from typing import Literal

from simgnn.policy import MiniBatchSchedule


class Bsp(MiniBatchSchedule):
    """Ops of a rank run in program order, each after the one before."""

    kind: Literal["bsp"] = "bsp"
