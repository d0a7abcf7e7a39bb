"""Bulk synchronous: one op after the other, communication never beside computation."""

from typing import ClassVar, Literal

from simgnn.policies.base import Policy


class Bsp(Policy):
    """Ops of a rank run in program order, each after the one before."""

    slot: ClassVar[str] = "schedule"

    kind: Literal["bsp"] = "bsp"
