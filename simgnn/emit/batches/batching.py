"""What every choice of slot ``batching`` is."""

from simgnn.policy import BatchingTraits


class Batching(BatchingTraits):
    """A choice of slot ``batching``: which vertices one training step covers."""
