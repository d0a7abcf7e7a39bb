"""Full-graph training: one step an epoch, over all vertices."""

from typing import ClassVar, Literal

from simgnn.policies.base import Policy


class Full(Policy):
    """All vertices in one step."""

    slot: ClassVar[str] = "batching"

    kind: Literal["full"] = "full"

    @property
    def steps(self) -> int:
        """Training steps in one epoch."""
        return 1
