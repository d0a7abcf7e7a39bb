"""Full-graph training: one step an epoch, over all vertices."""

from typing import Literal

from simgnn.emit.batches.neighbours import Batching


class Full(Batching):
    """Every step trains on all vertices."""

    kind: Literal["full"] = "full"
