"""Full-graph training: one step an epoch, over all vertices."""

from typing import Literal

from simgnn.emit.batches.neighbours import Batching


class Full(Batching):
    """All vertices in one step."""

    kind: Literal["full"] = "full"
