"""What every choice of slot ``batching`` is."""

from typing import ClassVar

from simgnn.policy import Policy


class Batching(Policy):
    """Which vertices one training step covers."""

    slot: ClassVar[str] = "batching"
