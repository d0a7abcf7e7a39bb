"""Mini-batches sampled while training runs (DistDGL: Zheng et al., IA3 2020)."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from simgnn.emit.batches.names import edges_of, rows_after
from simgnn.emit.batches.neighbours import NeighbourSampling
from simgnn.policy import Choices, Refusal, chosen
from simgnn.program.ops import Work


class Sampled(NeighbourSampling):
    """Neighbour sampling while training runs. It draws the same batches as ``seeded``.

    ``structure``: ``partitioned``, a host holds the in-edges of its own vertices, and draws from them for other hosts
    on request (docs/systems/distdgl.md); ``replicated``, it holds the whole graph, and ranks draw alone.
    ``unsupervised``: labels are not read; rows of the last layer, of ``model.hidden`` elements, are trained to be alike
    for a seed vertex and a neighbour, and unlike for vertices that are none (ByteGNN: Zheng et al., PVLDB 15(6), 2022;
    docs/mini_batches.md)."""

    known_ahead: ClassVar[bool] = False

    kind: Literal["sampled"] = "sampled"
    fanouts: tuple[int, ...] = Field(
        default=(15, 10, 5),
        min_length=1,
        max_length=1000,
        description="most neighbours per vertex, by hop from the seed vertices; -1: all",
    )

    structure: Literal["partitioned", "replicated"] = Field(
        default="partitioned", description="part of the graph that a host holds"
    )

    unsupervised: bool = Field(default=False, description="train without labels, on neighbours and non-neighbours")
    negatives: int = Field(
        default=5, ge=1, le=1000, description="non-neighbours drawn of each seed vertex in unsupervised training"
    )

    @property
    def negatives_drawn(self) -> int:
        return self.negatives if self.unsupervised else 0

    def refuses(self, choices: Choices) -> Iterator[Refusal]:
        yield from super().refuses(choices)
        if not self.unsupervised and chosen(self, ["negatives"]):
            message = f"got {self.negatives} without batching.unsupervised, expected none: labels need no negatives"
            yield Refusal("batching", "negatives", message)

    @property
    def asks_hosts(self) -> bool:
        return self.structure == "partitioned"

    def drawing(self, hops: int) -> tuple[Work, ...]:
        return tuple(
            Work("sample", {"vertices": rows_after(hop - 1), "edges": edges_of(hop), "item_bytes": 8})
            for hop in range(1, hops + 1)
        )
