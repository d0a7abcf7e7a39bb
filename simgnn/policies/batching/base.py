"""What every choice of slot ``batching`` is."""

from typing import ClassVar

from simgnn.policy import Policy


class Batching(Policy):
    """Which vertices one training step covers. ``mini_batches``: a step trains on a part of them; ``known_ahead``: a
    run's batches are known before it begins."""

    slot: ClassVar[str] = "batching"
    mini_batches: ClassVar[bool] = False
    known_ahead: ClassVar[bool] = False
