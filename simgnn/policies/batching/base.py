"""What every choice of slot ``batching`` is."""

from abc import ABC, abstractmethod
from typing import ClassVar

from simgnn.policies.base import Policy


class Batching(Policy, ABC):
    """Which vertices one training step covers."""

    slot: ClassVar[str] = "batching"

    @abstractmethod
    def untrainable(self) -> str | None:
        """Why no training can be planned with it: got, expected, remedy; None where it can."""
