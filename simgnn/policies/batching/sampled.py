"""Mini-batches sampled while training runs (DistDGL: Zheng et al., IA3 2020)."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from simgnn.policies.batching.neighbours import NeighbourSampling


class Sampled(NeighbourSampling):
    """Online neighbour sampling. It draws what ``seeded`` draws, so that the two train on equal batches."""

    known_ahead: ClassVar[bool] = False

    kind: Literal["sampled"] = "sampled"
    fanouts: Annotated[tuple[int, ...], Field(min_length=1, max_length=1000)] = Field(
        default=(15, 10, 5), description="neighbours by hop from the seed vertices; -1: all"
    )
