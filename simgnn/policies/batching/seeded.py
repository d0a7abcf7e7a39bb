"""Mini-batches known before training begins (RapidGNN): sampled ahead of time from the experiment's seed."""

from typing import ClassVar, Literal

from pydantic import Field

from simgnn.emit.batches.neighbours import NeighbourSampling
from simgnn.program.ops import Work


class Seeded(NeighbourSampling):
    """Neighbour sampling before training begins. The default fan-outs are ours, since the paper states none."""

    known_ahead: ClassVar[bool] = True

    kind: Literal["seeded"] = "seeded"
    fanouts: tuple[int, ...] = Field(
        default=(25, 10),
        min_length=1,
        max_length=1000,
        description="most neighbours per vertex, by hop from the seed vertices; -1: all",
    )

    def drawing(self, hops: int) -> tuple[Work, ...]:
        """Return no work: batches are read ahead from disk, which no profile prices (docs/systems/rapidgnn.md)."""
        return ()
